"""Tables that are written, compacted and cleaned whenever they are listed: only what may lack rows is read again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench import memory
from bench.processes import run
from phantombase import ExecuteOptions, Executor, read, schedule, writer
from phantombase import compact as compact_all
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import archive, compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import deep

_NUMBERS = count(100)


def _compacted(path: Path) -> None:
    upsert(path, one_row("k0", next(_NUMBERS)))
    compact(path)
    upsert(path, one_row("k1", next(_NUMBERS)))


def _go_on(path: Path, retain: int) -> Path:
    """Writes, a compaction and a clean that removes files; gives the record of the clean."""
    _compacted(path)
    done = clean_table(open_table(path), CleanOptions(retain=retain, floor_s=0), LOCK)
    assert done.files
    table = open_table(path)
    (clean,) = (i for i in table.load_timeline().instants if i.requested_time == done.instant)
    return path / table.instant_path(clean)


def _rows(path: Path, storage: Storage | None = None) -> list[dict[str, Any]]:
    rows = read_table(open_table(path, storage), ReadOptions()).select(["id", "ts"])
    found: list[dict[str, Any]] = rows.sort_by("id").to_pylist()
    return found


def _beside(path: Path, service: Callable[[], object]) -> tuple[list[dict[str, Any]], int]:
    """The rows of a read during whose listings the service runs, and how often that was."""
    runs = []

    def hook(call: Call) -> Any:
        if call.name == "list" and call.path == "a":
            runs.append(call)
            service()
        return call.do()

    return _rows(path, HookedStorage(LocalStorage(str(path)), hook)), len(runs)


def _once(do: Callable[[], object]) -> Callable[[], None]:
    left = [do]

    def once() -> None:
        if left:
            left.pop()()

    return once


@one_of("version", 9, 6)
def test_a_clean_that_retains_what_is_read(version: int, tmp_path: Path) -> None:
    """It would be refused at every try, and a large table that is written every minute could not be read at all."""
    path = tmp_path / "trips"
    long_table(path, version, 4, compact_at=1)
    for _ in range(3):
        _compacted(path)
    before = _rows(path)
    assert _beside(path, partial(_go_on, path, 4)) == (before, 1)


@one_of("version", 6, 9)
def test_a_clean_whose_record_cannot_be_read_may_have_retained_nothing(version: int, tmp_path: Path) -> None:
    """Hudi writes it in place: it may be empty for a moment."""
    path = tmp_path / "trips"
    long_table(path, version, 4, compact_at=1)
    rows, runs = _beside(path, _once(lambda: _go_on(path, 1).write_bytes(b"")))
    assert runs == 2
    assert rows == _rows(path)


@one_of("version", 9, 6)
def test_a_compaction_that_is_archived_meanwhile(version: int, tmp_path: Path) -> None:
    """It pended when the reader loaded the timeline, and is not on the one that is loaded behind the listing."""
    path = tmp_path / "trips"
    long_table(path, version, 3, compact_at=None)
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    upsert(path, one_row("k0", next(_NUMBERS)))

    def service() -> None:
        run_all(open_table(path))
        upsert(path, one_row("k1", next(_NUMBERS)))
        assert clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK).files
        assert archive(path).archived
        assert not any(i.action == "commit" for i in open_table(path).load_timeline().completed)

    rows, runs = _beside(path, _once(service))
    assert runs == 2
    assert rows == _rows(path)


# Tables of very many columns: what they cost grows with their number, not with its square.


FEW, MANY = 300, 4 * 300
MOST = 5
"""Four times the columns may take five times the steps; the square takes sixteen."""


def batch(columns: int, rows: int, ts: int) -> pa.Table:
    kinds = [pa.float64(), pa.int64(), pa.string(), pa.bool_()]
    values = {f"c{n}": pa.array([n % 2] * rows, pa.int64()).cast(kinds[n % 4]) for n in range(columns)}
    return pa.table({"id": [f"k{n}" for n in range(rows)], "ts": [ts] * rows} | values)


def steps(do: Callable[[], object]) -> int:
    """How many calls and lines of this thread it takes: the same number each time, on a busy machine too."""
    found = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal found
        found += event.endswith("call")

    def traced(_frame: object, event: str, _argument: object) -> object:
        nonlocal found
        found += event == "line"
        return traced

    before = sys.gettrace()
    sys.setprofile(called)
    sys.settrace(traced)  # type: ignore[arg-type]
    try:
        do()
    finally:
        sys.settrace(before)
        sys.setprofile(None)
    return found


def costs(columns: int, version: int, log: str, path: str) -> dict[str, int]:
    """What each path costs on a table of so many columns."""
    described = writer(batch(columns, 20, 1)).table("t", version=version).key("id").ordering("ts")
    newer = writer(batch(columns, 5, 2)).conf({"hoodie.logfile.data.block.format": log})
    found = {
        "bulk_insert": steps(lambda: described.bulk_insert(path)),
        "upsert": steps(lambda: newer.upsert(path)),
        "read": steps(lambda: read(path).to_arrow()),
        "filter": steps(lambda: read(path, filter="ts = 2").to_arrow()),
        "increment": steps(lambda: read(path, query="incremental", begin="earliest").to_arrow()),
        "schedule": steps(lambda: schedule(path, sole_writer=True)),
        "compact": steps(lambda: compact_all(path, execute=ExecuteOptions(executor=Executor.LOCAL))),
        "read again": steps(lambda: read(path).to_arrow()),
    }
    assert read(path, ["ts"]).to_arrow()["ts"].to_pylist().count(2) == 5
    return found


@pytest.mark.parametrize(("version", "log"), [(9, "parquet"), deep(9, "avro"), deep(6, "avro")])
def test_what_each_path_costs(version: int, log: str, tmp_path: Path) -> None:
    """Loops below a call, too."""
    costs(8, version, log, str(tmp_path / "t"))  # loads what is needed
    few, many = (costs(columns, version, log, str(tmp_path / f"t{columns}")) for columns in (FEW, MANY))
    assert {what: many[what] / few[what] for what in many if many[what] > MOST * few[what]} == {}, (few, many)


# Resident memory of a read grows little while the logs grow to several times the limit.


_LIMIT = 32 << 20
_LOG_BYTES = 10 << 20
_FILES = 16


@pytest.mark.deep
def test_a_read_of_much_log_data_takes_little_more_memory(tmp_path: Path) -> None:
    """160 MiB of log entries, none of which can be forgotten early, under a limit of 32 MiB; as bytes in Arrow they are
    more, and the allocators keep some of what they had."""
    size = memory._write(tmp_path, _LOG_BYTES)
    assert _FILES * size > 4 * _LIMIT
    peaks = {}
    for files in (4, _FILES):
        command = [sys.executable, "-m", "bench.memory", "--one", "read", str(tmp_path), str(files), str(_LIMIT)]
        peaks[files] = run(command).peak_private_bytes
    assert peaks[_FILES] < 1.5 * peaks[4]
    assert peaks[_FILES] - peaks[4] < (_FILES - 4) * size * 0.75
