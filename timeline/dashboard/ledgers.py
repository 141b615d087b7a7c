"""The last compactions: how long they took, what they wrote, and whether their ledgers balance."""

from __future__ import annotations

from ..audit.group_ledger import LEDGER, decode_ledgers
from ..errors import MissingFileError, PhantombaseError
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.instant import Instant
from ..merge.ledger import Ledger, total
from ..service.states.table_state import TableState
from ..table.table import Table
from ..terminal.plain import Row, moment

_SHOWN = 10


def compaction_rows(table: Table, state: TableState) -> list[Row]:
    """The newest completed compactions of the active timeline, newest first. `work_s`: of all file groups, one after
    the other; `slowest`: the one that took longest.
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
        return {**row, "problem": "archived meanwhile"}
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
        "slowest": None if slowest is None else _named(*slowest),
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


def _named(seconds: float, stat: WriteStat) -> Row:
    return {"partition": stat.partition_path or "", "file_id": stat.file_id, "seconds": seconds}


def _balanced(ledger: Ledger) -> bool:
    """The equations that need no file."""
    touched = ledger.kept + ledger.replaced + ledger.deleted
    return (
        ledger.base_rows == ledger.untouched + touched
        and ledger.rows_out == ledger.base_rows - ledger.deleted + ledger.inserts
        and ledger.update_keys == ledger.update_keys_in_base + ledger.inserts
    )
