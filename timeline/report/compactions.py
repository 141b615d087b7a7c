"""The completed compactions of a table: how long each took, what went in and out, and whether its ledger balances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ..errors import LedgerError, MissingFileError, PhantombaseError
from ..format.commit_metadata import LEDGER, CommitMetadata, WriteStat
from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..merge.ledger import Ledger, decode_ledgers, total
from ..table.table import Table
from ..terminal.text_table import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestGroup:
    """The file group that took longest."""

    partition: str
    file_id: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCompaction:
    """A completed compaction. `took_s`: from its request to its end. `work_s`: summed over all file groups.

    `by`, `balanced`, and what a ledger counts: None without a ledger, as after Hudi's. `problem`: its commit or ledger
    cannot be read.
    """

    instant: str
    completion_time: str | None
    by: str | None = None
    took_s: float | None = None
    file_groups: int | None = None
    rows_in: int | None = None
    log_entries: int | None = None
    rows_out: int | None = None
    bytes_out: int | None = None
    work_s: float | None = None
    slowest: SlowestGroup | None = None
    balanced: bool | None = None
    problem: str | None = None


def completed_compactions(table: Table, timeline: Timeline, count: int) -> tuple[CompletedCompaction, ...]:
    """The newest completed compactions of the active timeline, of phantombase or of Hudi, newest first."""
    return tuple(islice(_completed(table, timeline), count))


def _completed(table: Table, timeline: Timeline) -> Iterator[CompletedCompaction]:
    for instant in filter(timeline.is_compaction, reversed(timeline.completed)):
        begun, ended = moment(instant.requested_time), moment(instant.completion_time or "")
        found = CompletedCompaction(
            instant=instant.requested_time,
            completion_time=instant.completion_time,
            took_s=(ended - begun).total_seconds() if begun and ended else None,
        )
        try:
            metadata = table.commit_metadata(instant)
            if metadata.compacted:  # it may also be a write, from when the table was COPY_ON_WRITE
                yield _with_counts(found, metadata, table, instant)
        except MissingFileError:
            yield replace(found, problem="archived since then")
        except PhantombaseError as error:
            yield replace(found, problem=str(error))


def _with_counts(
    found: CompletedCompaction, metadata: CommitMetadata, table: Table, instant: Instant
) -> CompletedCompaction:
    stats = [s for stats in metadata.partition_to_write_stats.values() for s in stats]
    worked = [(_work_s(s), s) for s in stats if s.runtime_stats is not None]
    seconds, slowest = max(worked, key=lambda one: one[0], default=(0.0, None))
    found = replace(
        found,
        by="hudi",
        file_groups=len(stats),
        rows_out=sum(s.num_writes for s in stats),
        bytes_out=sum(s.file_size_in_bytes or s.total_write_bytes for s in stats),
        work_s=round(sum(seconds for seconds, _ in worked), 3) if worked else None,
        slowest=None
        if slowest is None
        else SlowestGroup(partition=slowest.partition_path or "", file_id=slowest.file_id, seconds=seconds),
    )
    if (text := metadata.extra_metadata.get(LEDGER)) is None:
        return found
    found = replace(found, by="phantombase")
    try:
        ledger = total(group.ledger for group in decode_ledgers(text, table.instant_path(instant)))
    except PhantombaseError as error:
        return replace(found, problem=str(error))
    return replace(
        found,
        rows_in=ledger.base_rows,
        log_entries=ledger.log_entries,
        rows_out=ledger.rows_out,
        balanced=_balances(ledger),
    )


def _work_s(stat: WriteStat) -> float:
    times = stat.runtime_stats
    return 0.0 if times is None else (times.total_scan_time + times.total_create_time + times.total_upsert_time) / 1000


def _balances(ledger: Ledger) -> bool:
    """Whether the equations hold that need no file."""
    try:
        ledger.check_itself("")
    except LedgerError:
        return False
    return True
