"""The completed compactions of a table, with what went in and out and whether its ledger balances; and the work for
future ones: the log files that readers merge, and those that no plan holds yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median

from ..errors import LedgerError, MissingFileError, PhantombaseError, UsageError
from ..format.commit_metadata import LEDGER, CommitMetadata, WriteStat
from ..format.compaction_plan import CompactionOperation, planned_paths
from ..format.instant import MERGES, Instant
from ..format.ledger import Ledger, decode_ledgers, total
from ..instants.timeline import Timeline
from ..shown import Shown
from ..storage.folders import join
from ..table.table import Snapshot, Table
from ..terminal.text_table import Row, moment
from ..view.view import GroupDebt, TableView, debt_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog(Shown):
    """Log files that no pending plan holds: each read merges them until they are compacted."""

    file_groups: int
    log_files: int
    log_bytes: int


def backlog(debts: Iterable[GroupDebt]) -> Backlog:
    due = [d for d in debts if d.log_files and d.pending_compaction is None]
    files, size = sum(d.log_files for d in due), sum(d.log_bytes for d in due)
    return Backlog(file_groups=len(due), log_files=files, log_bytes=size)


def view_backlog(view: TableView) -> Backlog:
    """The backlog of a view. MissingFileError, MalformedError: a file is lost or damaged."""
    groups = list(view.living())
    for flaw in (f for g in groups for f in g.flaws):
        raise flaw.error()
    return backlog(debt_of(g) for g in groups if g.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """The log files of a table. `..._waiting`: its backlog. `log_files_max`, `_median`: of file groups with logs.
    `read_amplification`: bytes that a snapshot reads over those of the base files; None without base files."""

    partitions: int
    file_groups: int
    file_groups_with_logs: int
    file_groups_waiting: int
    log_files: int
    log_files_max: int
    log_files_median: float
    log_bytes: int
    log_files_waiting: int
    log_bytes_waiting: int
    base_bytes: int
    read_amplification: float | None


def table_debt(partitions: int, debts: Iterable[GroupDebt]) -> Debt:
    """The debt of a table. `partitions`: their number. `debts`: of all its file groups."""
    debts = list(debts)
    counts = [d.log_files for d in debts if d.log_files]
    waiting, log_bytes, base_bytes = backlog(debts), sum(d.log_bytes for d in debts), sum(d.base_bytes for d in debts)
    return Debt(
        partitions=partitions,
        file_groups=len(debts),
        file_groups_with_logs=len(counts),
        file_groups_waiting=waiting.file_groups,
        log_files=sum(counts),
        log_files_max=max(counts, default=0),
        log_files_median=median(counts) if counts else 0,
        log_bytes=log_bytes,
        log_files_waiting=waiting.log_files,
        log_bytes_waiting=waiting.log_bytes,
        base_bytes=base_bytes,
        read_amplification=amplification(base_bytes, log_bytes),
    )


def amplification(base_bytes: int, log_bytes: int) -> float | None:
    """Bytes read over bytes of base files; None without base files."""
    return round((base_bytes + log_bytes) / base_bytes, 3) if base_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestGroup:
    partition: str
    file_id: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCompaction:
    """A completed compaction. `took_s`: from its request to its end. `work_s`: summed over all file groups. `by`,
    `balanced`, and counts: None without a ledger, as after Hudi's. `problem`: its commit or ledger cannot be read."""

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


def completed_compactions(table: Snapshot, count: int) -> tuple[CompletedCompaction, ...]:
    """The newest completed compactions of the active timeline, of phantombase or of Hudi, newest first."""
    return tuple(islice(_completed(table), count))


def _completed(table: Snapshot) -> Iterator[CompletedCompaction]:
    for instant in filter(table.timeline.is_compaction, reversed(table.timeline.completed)):
        begun, ended = moment(instant.requested_time), moment(instant.completion_time or "")
        took_s = (ended - begun).total_seconds() if begun and ended else None
        found = CompletedCompaction(
            instant=instant.requested_time, completion_time=instant.completion_time, took_s=took_s
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


def plan_facts(table: Table, time: str) -> Row:
    """What `timeline plan` prints of a compaction. UsageError: the instant is none."""
    timeline = table.load_timeline()
    instant = timeline.find(time, "commit") or timeline.find(time, "deltacommit")
    if instant is None:
        raise _no_compaction(table.storage.base_path, timeline, time, "no such instant in the active timeline")
    try:
        compaction = table.compaction_plan(time)
    except MissingFileError:
        if instant.action in MERGES and not instant.completed:
            raise
        raise _no_compaction(table.storage.base_path, timeline, time, f"a {instant.action} without a plan") from None
    sizes: dict[str, int] = {}
    for path in planned_paths(compaction):
        if (entry := table.storage.find(path)) is None:
            raise MissingFileError(
                "a planned file is missing",
                path=path,
                instant=time,
                found=f"the compaction is {instant.state.name.lower()}",
                todo="A cleaner may have removed it after the compaction."
                if instant.completed
                else "Restore the file: the plan cannot be executed without it.",
            )
        sizes[path] = entry.size
    rows = [_operation_row(operation, sizes) for operation in compaction.operations]
    return {
        "table": table.storage.base_path,
        "instant": time,
        "state": instant.state.name.lower(),
        "operations": rows,
        "totals": {
            "operations": len(rows),
            "base_bytes": sum(row["base_bytes"] or 0 for row in rows),
            "log_files": sum(len(row["logs"]) for row in rows),
            "log_bytes": sum(row["log_bytes"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
        },
        "recommended_executors": recommended_executors([row["bytes"] for row in rows]),
    }


def _operation_row(operation: CompactionOperation, sizes: Mapping[str, int]) -> Row:
    base = operation.data_file_path
    logs: list[Row] = [
        {"name": n, "bytes": sizes[join(operation.partition_path, n)]} for n in operation.delta_file_paths
    ]
    base_bytes = sizes[join(operation.partition_path, base)] if base else None
    log_bytes = sum(log["bytes"] for log in logs)
    return {
        "partition": operation.partition_path,
        "file_id": operation.file_id,
        "base_instant": operation.base_instant_time,
        "base_file": base,
        "base_bytes": base_bytes,
        "logs": logs,
        "log_bytes": log_bytes,
        "bytes": (base_bytes or 0) + log_bytes,
    }


def recommended_executors(slice_bytes: Sequence[int]) -> int:
    """How many executors finish a plan soonest: ceil(total bytes / largest slice's bytes). One file slice is one task
    and cannot be divided, so a plan takes at least as long as its largest slice. This many executors are all busy for
    as long as the largest slice takes; more of them would only wait. The result is at most the number of slices, and 0
    for an empty plan."""
    largest = max(slice_bytes, default=0)
    if largest == 0:
        return min(1, len(slice_bytes))
    return min(-(-sum(slice_bytes) // largest), len(slice_bytes))


def _no_compaction(path: str, timeline: Timeline, time: str, found: str) -> UsageError:
    pending = ", ".join(i.requested_time for i in timeline.pending_merges)
    return UsageError(
        "not a compaction",
        path=path,
        instant=time,
        expected=f"one of the pending: {pending}" if pending else None,
        found=found,
        todo="`timeline show TABLE` lists the instants.",
    )
