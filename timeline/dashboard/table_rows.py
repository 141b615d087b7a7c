"""Tables as plain dicts: sizes in bytes, times in seconds, names as in the JSON of `timeline show`.

A table's row has the last compactions (their duration and output, and whether their ledgers balance), and its debt over
the last day, as far as this process has sampled it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median

from ..clocks import clock_ms
from ..errors import MissingFileError, PhantombaseError
from ..format.commit_metadata import LEDGER, CommitMetadata, WriteStat
from ..format.instant import MERGES, Instant
from ..instants.timeline import since_completed, since_request
from ..instants.triggers import TriggerOptions
from ..locks.table_lock import STORAGE, inspect_lock
from ..merge.ledger import Ledger, decode_ledgers, total
from ..report.overview import next_plan_row, overview
from ..service.served_tables import Held, ServedTable
from ..service.table_state import ServedState
from ..table.table import Table, from_one_snapshot
from ..terminal.text_table import Row, moment
from .health import FleetInfo, Health, Word, health_of
from .orders import CommandSettings

_SHOWN = 10


def compaction_rows(table: Table, state: ServedState) -> list[Row]:
    """The newest completed compactions of the active timeline, newest first. `work_s`: summed over all file groups;
    `slowest`: the file group that took longest.
    """
    done = [i for i in state.timeline.completed if i.family == "commit"]
    return [_row(table, instant) for instant in reversed(done[-_SHOWN:])]


def _row(table: Table, instant: Instant) -> Row:
    begun, ended = moment(instant.requested_time), moment(instant.completion_time or "")
    row = {
        "instant": instant.requested_time,
        "by": None,
        "took_s": (ended - begun).total_seconds() if begun and ended else None,
        "file_groups": None,
        "rows_in": None,
        "log_entries": None,
        "rows_out": None,
        "bytes_out": None,
        "work_s": None,
        "slowest": None,
        "balanced": None,
        "problem": None,
    }
    try:
        return {**row, **_of_metadata(table.commit_metadata(instant), table.instant_path(instant))}
    except MissingFileError:
        return {**row, "problem": "archived since then"}
    except PhantombaseError as error:
        return {**row, "problem": str(error)}


def _of_metadata(metadata: CommitMetadata, path: str) -> Row:
    stats = [s for stats in metadata.partition_to_write_stats.values() for s in stats]
    worked = [(_work_s(s), s) for s in stats if s.runtime_stats is not None]
    slowest = max(worked, key=lambda one: one[0], default=None)
    found: Row = {
        "file_groups": len(stats),
        "rows_out": sum(s.num_writes for s in stats),
        "bytes_out": sum(s.file_size_in_bytes or s.total_write_bytes for s in stats),
        "work_s": round(sum(seconds for seconds, _ in worked), 3) if worked else None,
        "slowest": None if slowest is None else _write_named(*slowest),
    }
    text = metadata.extra_metadata.get(LEDGER)
    if text is None:
        return {**found, "by": "Hudi"}
    ledger = total(group.ledger for group in decode_ledgers(text, path))
    counts = {"rows_in": ledger.base_rows, "log_entries": ledger.log_entries, "rows_out": ledger.rows_out}
    return {**found, **counts, "by": "phantombase", "balanced": _balanced(ledger)}


def _work_s(stat: WriteStat) -> float:
    times = stat.runtime_stats
    return 0.0 if times is None else (times.total_scan_time + times.total_create_time + times.total_upsert_time) / 1000


def _write_named(seconds: float, stat: WriteStat) -> Row:
    return {"partition": stat.partition_path or "", "file_id": stat.file_id, "seconds": seconds}


def _balanced(ledger: Ledger) -> bool:
    """Whether the equations hold that need no file."""
    touched = ledger.kept + ledger.replaced + ledger.deleted
    return (
        ledger.base_rows == ledger.untouched + touched
        and ledger.rows_out == ledger.base_rows - ledger.deleted + ledger.inserts
        and ledger.update_keys == ledger.update_keys_in_base + ledger.inserts
    )


_EVERY_S = 60.0
_KEPT = 24 * 60
_NAMES = ("log_bytes", "log_files", "read_amplification")


class Trends:
    """One sample a minute, for a day."""

    def __init__(self) -> None:
        self._samples: defaultdict[str, deque[Row]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def add(self, path: str, at_s: float, numbers: Row) -> None:
        """Adds `numbers` as a sample, unless the last sample is younger than a minute."""
        samples = self._samples[path]
        if not samples or at_s - samples[-1]["at_s"] >= _EVERY_S:
            samples.append({"at_s": round(at_s, 3), **{name: numbers[name] for name in _NAMES}})

    def of(self, path: str) -> list[Row]:
        """The samples, oldest first."""
        return list(self._samples[path])


_SETTINGS, _TRIGGER = CommandSettings(), TriggerOptions()
_FRESH_S = 5.0
_HOUR_S = 3600.0


class TableRows:
    """Makes the rows. `slo_s`: a compaction that is pending for longer is late, None: as in `FleetInfo`; `settings`:
    with the lock whose holder is shown.
    """

    def __init__(
        self, slo_s: float | None, fleet_info: FleetInfo | None = None, settings: CommandSettings = _SETTINGS
    ) -> None:
        self._slo_s, self._fleet_info, self._settings = slo_s, fleet_info, settings
        self.trends = Trends()

    async def all(self, tables: Iterable[ServedTable]) -> list[Row]:
        """All tables, worst first, then by name."""
        rows = await asyncio.gather(*(self.one(table) for table in tables))
        order = [word.value for word in Word]
        return sorted(rows, key=lambda row: (order.index(row["health"]), row["served_as"]))

    async def one(self, table: ServedTable, *, whole: bool = False, lock: bool = False) -> Row:
        """One table. `whole`: all that its page shows; `lock`: also which process holds its lock."""
        try:
            held = await table.load() if whole else await recent(table)
            row = await asyncio.to_thread(self._row, table, held, whole)
            return row | {"lock": await asyncio.to_thread(self._lock, table.table)} if lock else row
        except PhantombaseError as error:
            return await asyncio.to_thread(self._unread, table, error)

    def _unread(self, table: ServedTable, why: PhantombaseError) -> Row:
        """A table whose files cannot be read. If a plan is the reason, the table is stuck: a plan can be cancelled."""
        broken, slo_s = Health(Word.BROKEN, str(why)), self._slo_of(table.path)
        try:
            opened = table.opened()
            pending = from_one_snapshot(lambda: overview(opened.snapshot(), pending_only=True))["pending"]
        except PhantombaseError:
            return _named(table, broken, {"slo_s": slo_s})
        health = health_of(pending, None)
        more = {"slo_s": slo_s, "pending": pending, "name": opened.config.name}
        return _named(table, health if health.word is Word.STUCK else broken, more)

    def _row(self, table: ServedTable, held: Held, whole: bool) -> Row:
        shown = from_one_snapshot(lambda: overview(table.table.snapshot()))
        numbers = debt(held.state)
        numbers |= _writes(held.state, table.table, shown["pending"])
        slo_s = self._slo_of(table.path)
        numbers |= {"pending_instants": len(shown["pending"]), "slo_s": slo_s}
        self.trends.add(table.path, time.time(), numbers)
        asked = whole or any(row["action"] in MERGES for row in shown["pending"])
        fleet_info, problem = self._about(table.table, whole) if asked else (None, None)
        worked_on = (fleet_info or {}).get("pending", ())
        refused = next((f.refused for f in held.state.partitions.values() if f.refused is not None), None)
        health = health_of(shown["pending"], slo_s, worked_on, refused)
        if not whole:
            return _named(table, health, numbers | {"work": worked_on})
        kinds = held.state.kinds
        for row in (*shown["instants"], *shown["pending"]):
            row["kind"] = kinds.get((row["instant"], _family(row)), row["action"])
        return _named(
            table,
            health,
            {
                **numbers,
                **shown,
                "timezone": zone_of(table.table),
                "now": table.table.now().strftime("%Y-%m-%d %H:%M:%S"),
                "compactions": compaction_rows(table.table, held.state),
                "trend": self.trends.of(table.path),
                "next_plan": (fleet_info or {}).get("next_plan")
                or next_plan_row(held.state.timeline, table.table.now(), _TRIGGER),
                "fleet_info": fleet_info,
                "fleet_info_problem": problem,
            },
        )

    def _lock(self, table: Table) -> Row:
        given = self._settings.lock_of(table.config.name)
        if given is None and self._settings.sole_writer:
            given = STORAGE
        seen = inspect_lock(table.storage, given, table.config.properties, clock_ms())
        return {**asdict(seen), "state": seen.state.value}

    def _slo_of(self, path: str) -> float | None:
        return self._slo_s if self._slo_s is not None or self._fleet_info is None else self._fleet_info.slo_s(path)

    def _about(self, table: Table, whole: bool) -> tuple[Row | None, str | None]:
        if self._fleet_info is None:
            return None, None
        try:
            return self._fleet_info.about(table, whole=whole), None
        except PhantombaseError as error:
            return None, str(error)


def zone_of(table: Table) -> str:
    """The zone of a table's instants: UTC if the table's configuration says so, else that of `--timezone`."""
    return "UTC" if table.config.utc_timezone else table.clock.timezone


async def recent(table: ServedTable) -> Held:
    """A state that was loaded within the last seconds."""
    held = table.newest
    return held if held is not None and time.monotonic() - held.loaded_s < _FRESH_S else await table.load()


def _named(table: ServedTable, health: Health, more: Row) -> Row:
    return {"served_as": table.name, "path": table.path, "health": health.word.value, "reason": health.reason, **more}


def _family(row: Row) -> str:
    pending = {"compaction": "commit", "logcompaction": "deltacommit", "clustering": "replacecommit"}
    return pending.get(row["action"], str(row["action"]))


def debt(state: ServedState) -> Row:
    """The work for future compactions: the log files that readers merge."""
    debts = [d for files in state.partitions.values() for d in files.debts]
    waiting = [d for d in debts if d.log_files and d.pending_compaction is None]
    counts = [d.log_files for d in debts if d.log_files]
    log_bytes, base_bytes = sum(d.log_bytes for d in debts), sum(d.base_bytes for d in debts)
    return {
        "partitions": len(state.partitions),
        "file_groups": len(debts),
        "file_groups_with_logs": len(counts),
        "file_groups_waiting": len(waiting),
        "log_files": sum(counts),
        "log_files_max": max(counts, default=0),
        "log_files_median": median(counts) if counts else 0,
        "log_bytes": log_bytes,
        "log_files_waiting": sum(d.log_files for d in waiting),
        "log_bytes_waiting": sum(d.log_bytes for d in waiting),
        "base_bytes": base_bytes,
        "read_amplification": round((base_bytes + log_bytes) / base_bytes, 3) if base_bytes else None,
    }


def _done_ages(state: ServedState, now: datetime) -> Iterator[float]:
    """Seconds since each completed compaction; on version 6 since its request if its end is unknown."""
    for one in state.timeline.completed:
        if one.family == "commit" and (at := moment(state.timeline.completed_at(one))) is not None:
            yield (now - at).total_seconds()


def _writes(state: ServedState, table: Table, pending: list[Row]) -> Row:
    timeline = state.timeline
    deltas = [i.requested_time for i in timeline.completed if i.action == "deltacommit"]
    compacted = max((i.requested_time for i in timeline.completed if i.action == "commit"), default=None)
    compactions = [row for row in pending if row["action"] == "compaction"]
    asked, done = since_request(timeline), since_completed(timeline)
    now = table.now().replace(tzinfo=None)
    last = moment(timeline.latest_completed or "")
    ages = [(now - at).total_seconds() for time_ in deltas if (at := moment(time_)) is not None]
    return {
        "last_write": timeline.latest_completed or None,
        "seconds_since_write": None if last is None else (now - last).total_seconds(),
        "writes_last_hour": sum(age < _HOUR_S for age in ages),
        "compactions_last_hour": sum(age < _HOUR_S for age in _done_ages(state, now)),
        "last_compaction": compacted,
        "delta_commits_since_compaction": sum(compacted is None or time > compacted for time in deltas),
        "delta_commits_since_request": 0 if asked is None else asked.commits,
        "seconds_since_compaction": None if done is None or moment(done.instant) is None else done.seconds(now),
        "pending_compactions": len(compactions),
        "oldest_pending_s": max((row["age_s"] or 0.0 for row in compactions), default=None),
        "utc_offset_s": round((now - datetime.now(UTC).replace(tzinfo=None)).total_seconds()),
        "active_instants": len(timeline.instants),
        "timeline_start": timeline.start or None,
    }
