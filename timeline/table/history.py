"""The history of a table: a row for each unit of work that phantombase did on it, what it took, why it ran, and who did
it; and what that costs by given prices. Beside it, how often readers came: it is what compactions gain.

    .hoodie/.phantombase/history/rows/<end>-<id>.json               one unit of work; `end` in ms since the epoch
    .hoodie/.phantombase/history/packs/<first>-<last>-<id>.<n>.gz   n of them, a line each
    .hoodie/.phantombase/reads/<hour>-<nonce>-<reads>               reads of one process, see `note_read`

Each row is an object of its own, put once: processes lose none of each other's. Now and then a process packs the rows:
it puts the pack, and only then removes the rows that are in it. So each row is in one of the two places at any time. A
reader lists the rows before the packs, and counts a row once that is in both. Packs end after `KEPT_S`, or when there
are more than `KEPT_ROWS` later rows. What cannot be read is counted and left out; it is no part of the table."""

from __future__ import annotations

import gzip
import os
import re
import threading
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from ..clocks import clock_ms
from ..errors import MissingFileError, PhantombaseError
from ..event_log import get_logger
from ..option import check_finite, least_of, option, spelled_class
from ..prefetch import at_once
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import RECORDS

if TYPE_CHECKING:
    import pyarrow as pa

    from .table import Table

READS = f"{RECORDS}/reads"
"""How many reads a process began in an hour since the epoch, by its clock: `<hour>-<its nonce>-<reads>`."""
COUNT_READS = "PHANTOMBASE_COUNT_READS"
"""A variable of readers: those without a pin count, too. Without it such a read writes nothing to a table."""
_READS = re.compile(r"(\d{1,9})-[0-9a-f]{32}-(\d{1,9})")
HOUR_MS = 3_600_000
ROWS, PACKS = f"{RECORDS}/history/rows", f"{RECORDS}/history/packs"
KEPT_ROWS, KEPT_S = 20_000, 400 * 86_400
_PACKED_FROM, ASKED_EVERY = 64, 16
"""How many rows are packed at least; one row of this many looks whether there are as many."""
_ROW, _PACK = re.compile(r"\d{13}-[0-9a-f]{16}\.json"), re.compile(r"\d{13}-(\d{13})-[0-9a-f]{16}\.(\d+)\.gz")
_TEXT = 500
_LISTED_AGAIN = 10
_LEARNED = 10
_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFacts:
    """What a unit of work says of itself. None: unknown, or nothing that its kind has. `why`: it ran. `planned_bytes`:
    that its plan reads, before it began. `rows_read`: of base files, and entries of logs. `bytes_removed`: of files
    that it took away. `files_before`, `files_after`: those that it took in, and those in their place. `core_seconds`:
    how long its tasks held a core, and the processor time of the thread that led it. `requests`: to an object
    store by the process that led it, but for those of the lock."""

    instant: str | None = None
    why: str = ""
    planned_bytes: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    bytes_removed: int | None = None
    rows_read: int | None = None
    rows_written: int | None = None
    files_before: int | None = None
    files_after: int | None = None
    core_seconds: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone(WorkFacts):
    """A unit of work: a row. `outcome`: `done`, `failed` (with its `error`) or `stopped`. `peak_memory`: of the process
    that led it, in bytes, up to its end. `started_ms`, `ended_ms`: since the epoch. `who`: the process, HOST:PID."""

    id: str
    kind: str
    outcome: str
    who: str
    started_ms: int
    ended_ms: int
    error: str = ""
    peak_memory: int | None = None

    @property
    def seconds(self) -> float:
        return max(0, self.ended_ms - self.started_ms) / 1000

    @property
    def bytes(self) -> int:
        """Read and written."""
        return (self.bytes_read or 0) + (self.bytes_written or 0)


def put_work(storage: Storage, work: WorkDone) -> None:
    """Adds a row, and now and then packs the rows. StorageError: it may be there all the same."""
    cut = replace(work, why=work.why[:_TEXT], error=work.error[:_TEXT])
    storage.put_if_absent(f"{ROWS}/{work.ended_ms:013d}-{work.id}.json", msgspec.json.encode(cut))
    if int(work.id, 16) % ASKED_EVERY == 0:
        pack_rows(storage)


def pack_rows(storage: Storage, *, least: int = _PACKED_FROM) -> None:
    """Packs the rows if there are `least`, and removes what is too old or too much. If the process dies on the way,
    rows are in two places, which readers know."""
    paths = _named(storage, ROWS, _ROW)
    if len(paths) < least:
        return
    read = at_once(paths, lambda path: _rows_at(storage, path))
    packed = {path: one for path, ones in zip(paths, read, strict=True) for one in ones or ()}
    if packed:
        ends = sorted(path.rpartition("/")[2][:13] for path in packed)
        lines = b"\n".join(msgspec.json.encode(one) for one in packed.values())
        target = f"{PACKS}/{ends[0]}-{ends[-1]}-{uuid.uuid4().hex[:16]}.{len(packed)}.gz"
        if not storage.put_if_absent(target, gzip.compress(lines)):
            return
    old = f"{max(0, clock_ms() - KEPT_S * 1000):013d}"
    storage.delete_all([p for p in paths if p in packed or p.rpartition("/")[2] < old])
    _remove_packs(storage, old)


def _remove_packs(storage: Storage, old: str) -> None:
    """Removes packs whose last row is older, and from the newest on those beyond `KEPT_ROWS`."""
    rows = 0
    for path in reversed(_named(storage, PACKS, _PACK)):
        if f"{_end_ms(path):013d}" < old or rows >= KEPT_ROWS:
            storage.delete(path)
        else:
            rows += int(path.split(".")[-2])


def _named(storage: Storage, folder: str, form: re.Pattern[str]) -> list[str]:
    """The paths of the files in a folder whose names have this form, the oldest first."""
    entries = listed_if_there(storage, folder) or ()
    return [f"{folder}/{one.name}" for one in entries if form.fullmatch(one.name)]


def _rows_at(storage: Storage, path: str) -> tuple[WorkDone, ...] | None:
    """The rows in a file; None: it is not there any more. Torn: none, see `_unreadable`."""
    try:
        data = storage.read(path)
        lines = gzip.decompress(data).splitlines() if path.endswith(".gz") else [data]
        return tuple(msgspec.json.decode(line, type=WorkDone) for line in lines)
    except MissingFileError:
        return None
    except (msgspec.MsgspecError, OSError, EOFError, zlib.error):
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkHistory:
    """The rows that are kept of a table, in the order in which the work ended. `unreadable`: files that are torn."""

    table: str
    work: tuple[WorkDone, ...]
    unreadable: int = 0


def read_history(storage: Storage, *, last: int | None = None, since_ms: int = 0) -> WorkHistory:
    """The history of a table. `last`: at most this number of rows, the newest. `since_ms`: without work that ended
    before. StorageError: it cannot be read now."""
    found = None
    for left in reversed(range(_LISTED_AGAIN)):
        paths = [*_named(storage, ROWS, _ROW), *_named(storage, PACKS, _PACK)]  # in this order, see the module
        if (found := _read(storage, paths, last, since_ms, whole=left > 0)) is not None:
            break
    rows, unreadable = found or ({}, 0)
    if unreadable:
        _log.warning("history_unreadable", table=storage.base_path, files=unreadable, folder=ROWS.rpartition("/")[0])
    work = sorted((one for one in rows.values() if one.ended_ms >= since_ms), key=lambda one: (one.ended_ms, one.id))
    return WorkHistory(
        table=storage.base_path, work=tuple(work if last is None else work[-last:]), unreadable=unreadable
    )


def _read(
    storage: Storage, paths: Sequence[str], last: int | None, since_ms: int, *, whole: bool
) -> tuple[dict[str, WorkDone], int] | None:
    """The rows by id, and the number of torn files. None, if `whole`: a file was packed, or has ended, since it was
    listed; else it counts as torn."""
    found, unreadable = dict[str, WorkDone](), 0
    newest = [path for path in sorted(paths, key=_end_ms, reverse=True) if _end_ms(path) >= since_ms]
    step = len(newest) if last is None else max(8, min(last, 64))
    for first in range(0, len(newest), step or 1):
        ends = sorted((one.ended_ms for one in found.values()), reverse=True)
        if last is not None and len(ends) >= last and (not last or _end_ms(newest[first]) < ends[last - 1]):
            break
        for rows in at_once(newest[first : first + step], lambda path: _rows_at(storage, path)):
            if rows is None and whole:
                return None
            unreadable += not rows
            found |= {one.id: one for one in rows or ()}
    return found, unreadable


def _end_ms(path: str) -> int:
    """When the last work in a file ended, by its name."""
    return int(path.rpartition("/")[2].split("-")[-2])


# --- estimates, prices, Arrow


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """What work costs, in any currency. None: nothing."""

    price_core_hour: float | None = option(None, "the price of a core for an hour", metavar="PRICE", least=0)
    price_gb: float | None = option(None, "the price of a GB (10^9 bytes) read or written", metavar="PRICE", least=0)
    price_request: float | None = option(
        None, "the price of a request to the object store, such as 0.000005", metavar="PRICE", least=0
    )

    def __post_init__(self) -> None:
        check_finite(self, least_of(PriceOptions))

    def of(self, core_seconds: float, bytes_: float, requests: float) -> float | None:
        """The price of this much. None: no price is given."""
        if self == PriceOptions():
            return None
        prices = (self.price_core_hour or 0.0, self.price_gb or 0.0, self.price_request or 0.0)
        return prices[0] * core_seconds / 3600 + prices[1] * bytes_ / 1e9 + prices[2] * requests


_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "text": ("table", "kind", "instant", "outcome", "why", "error", "who", "host", "id"),
    "time": ("started_ms", "ended_ms"),
    "real": ("seconds", "core_seconds", "estimated_core_seconds", "cost", "estimated_cost"),
    "whole": (
        *("planned_bytes", "bytes_read", "bytes_written", "bytes_removed", "estimated_bytes"),
        *("rows_read", "rows_written", "estimated_rows_written", "files_before", "files_after"),
        *("requests", "estimated_requests", "peak_memory", "estimated_peak_memory", "pid"),
    ),
}
"""The columns of the history by their types, in order; times in ms since the epoch."""
_LIKE = ("bytes", "rows_written", "core_seconds", "requests", "peak_memory")
"""What is estimated: of the work of the same kind before it, as much for a planned byte; the memory as it was."""


def history_rows(history: WorkHistory, prices: PriceOptions | None = None) -> list[dict[str, Any]]:
    """The rows as plain values (pure): each with what was expected of it, `estimated_...`, by its planned bytes and
    what the last work of its kind took; and with its cost, None without prices."""
    before, found = defaultdict[str, list[WorkDone]](list), []
    priced = prices or PriceOptions()
    for one in history.work:
        # From the end on: of all of them it would take a square of the number of rows.
        past = tuple(islice((p for p in reversed(before[one.kind]) if p.ended_ms <= one.started_ms), _LEARNED))
        guess = _guess(one, past)
        expected = (guess.get("core_seconds", 0.0), guess.get("bytes", 0), guess.get("requests", 0))
        host, _, pid = one.who.rpartition(":")
        cost = priced.of(one.core_seconds, one.bytes, one.requests)
        values = {
            **asdict(one),
            **{f"estimated_{name}": guess.get(name) for name in _LIKE},
            "table": history.table,
            "seconds": one.seconds,
            "host": host,
            "pid": int(pid) if pid.isdigit() else None,
            "cost": cost,
            "estimated_cost": priced.of(*expected) if guess else None,
        }
        found.append({name: values[name] for names in _COLUMNS.values() for name in names})
        if one.outcome == "done" and one.planned_bytes:
            before[one.kind].append(one)
    return found


def _guess(one: WorkDone, past: Sequence[WorkDone]) -> dict[str, Any]:
    planned = sum(p.planned_bytes or 0 for p in past)
    if not one.planned_bytes or not planned:
        return {}
    part = one.planned_bytes / planned
    found: dict[str, Any] = {
        name: round(part * sum(getattr(p, name) or 0 for p in past), 3 if name == "core_seconds" else None)
        for name in _LIKE
    }
    return {**found, "peak_memory": max((p.peak_memory or 0 for p in past), default=0) or None}


def sums(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By kind, most core-seconds first (pure): how much work, what it took, and its cost. `rows`: of `history_rows`."""
    kinds = defaultdict[str, list[Mapping[str, Any]]](list)
    for row in rows:
        kinds[row["kind"]].append(row)
    found = [
        {
            "kind": kind,
            "units": len(ones),
            "failed": sum(row["outcome"] == "failed" for row in ones),
            **{name: sum(row[name] or 0 for row in ones) for name in _SUMMED},
            "cost": sum(row["cost"] for row in ones) if ones[0]["cost"] is not None else None,
        }
        for kind, ones in kinds.items()
    ]
    return sorted(found, key=lambda one: (-one["core_seconds"], one["kind"]))


_SUMMED = ("seconds", "core_seconds", "bytes_read", "bytes_written", "bytes_removed", "rows_written", "requests")


def history_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of `history_rows` as an Arrow table, with the same columns where there are none."""
    import pyarrow as pa  # late: pages need none

    kinds = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "time": pa.int64()}
    columns = {name: pa.array([row[name] for row in rows], kinds[kind]) for kind, of in _COLUMNS.items() for name in of}
    for name in _COLUMNS["time"]:
        columns[name.removesuffix("_ms")] = columns.pop(name).cast(pa.timestamp("ms", "UTC"))
    return pa.table(columns)


def reads_by_hour(storage: Storage) -> dict[int, dict[str, int]]:
    """By hour since the epoch: the objects of `READS`, and the reads of each. One request, or none."""
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for entry in listed_if_there(storage, READS) or ():
        if (match := _READS.fullmatch(entry.name)) is not None:
            found[int(match[1])][f"{READS}/{entry.name}"] = int(match[2])
    return found


def reads_an_hour(storage: Storage, now_ms: int) -> int:
    """How many reads that count began in this hour or in the one before, whichever were more."""
    found, hour = reads_by_hour(storage), now_ms // HOUR_MS
    return max(sum(found.get(one, {}).values()) for one in (hour, hour - 1))


_PUT_EACH_MS = 60_000
"""How often a process puts how many reads there were."""


@dataclass(slots=True)
class _Reads:
    """The reads of this process in an hour. `path`: the object that says how many there were at `put_ms`."""

    hour: int
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    count: int = 0
    path: str = ""
    put_ms: int = 0


_reads: dict[tuple[int, str], _Reads] = {}
_counting = threading.Lock()


def note_read(storage: Storage) -> None:
    """Counts a read. At most two requests a minute, and in its first of an hour one that lists what is over. What
    cannot be put is not counted."""
    now_ms, key = clock_ms(), (os.getpid(), storage.base_path)
    hour = now_ms // HOUR_MS
    with _counting:
        one = _reads.get(key)
        if one is None or one.hour != hour:
            one = _reads[key] = _Reads(hour)
        one.count += 1
        if one.path and now_ms - one.put_ms < _PUT_EACH_MS:
            return
        before, path = one.path, f"{READS}/{hour}-{one.nonce}-{one.count}"
        one.path, one.put_ms = path, now_ms
    with suppress(PhantombaseError, OSError):
        storage.put_if_absent(path, b"")
        over = (list(paths) for at, paths in reads_by_hour(storage).items() if at < hour - 1)
        storage.delete_all([before] if before else [path for paths in over for path in paths])


def note_unpinned(open_table: Callable[[], Table]) -> None:
    """Counts a read without a pin, where the environment says so (`COUNT_READS`)."""
    if os.environ.get(COUNT_READS, "0") not in ("", "0", "false"):
        note_read(open_table().storage)
