"""What a plan has to merge, according to the view (closure): at least what the plan names, and nothing later.

A file that the plan names may be missing because its file group was replaced, or because its write was rolled back or
removed by a restore. Then it need not be merged. Otherwise it is lost, and that is an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import BarrierError, MissingFileError, StalePlanError, UnsupportedError, UsageError
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.ledger import Expiry
from phantombase.timeline.format.record_key import looks_like_bucket
from phantombase.timeline.merge.rule import SliceRules, can_expire
from phantombase.timeline.metadata_table.record_index import upkeep_of
from phantombase.timeline.metadata_table.records.keys import OF_ROWS, RowsChange
from phantombase.timeline.planning.log_compaction import LogPiece, folds_exactly, planned_pieces, runs_of
from phantombase.timeline.table.in_progress import merges_no_logs
from phantombase.timeline.table.table import Snapshot, Table, TableSchema
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, TableView, input_names, slice_before

from .log_task import LogOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What becomes one file: a slice, or with `log` some of its log files. A `slice` without files: nothing to do."""

    slice: FileSlice
    log: LogOutput | None = None


def planned_inputs(table: Table, view: TableView, plan: CompactionPlan, instant: str, rules: SliceRules) -> list[Input]:
    """What an instant has to merge, in plan order. MissingFileError: the plan names a file that is not there. A
    compaction merges all logs that the view holds before the instant, also logs that the plan does not name. A log
    compaction merges exactly the planned logs: they are neighbours in the order of reading, and later logs come before
    or after them. StalePlanError: they are not neighbours any more. BarrierError: a pending write may come between
    them."""
    groups = view.by_key()
    _refuse_forming(view, plan, instant)
    if plan.merges_logs and merges_no_logs(table):
        raise UnsupportedError(
            "log compaction of consistent-hashing buckets is not supported",
            path=table.storage.base_path,
            instant=instant,
            todo=f"Let Hudi execute it, or cancel it: compactor-daemon unschedule TABLE {instant}.",
        )
    found = ((o, groups.get((o.partition_path, o.file_id))) for o in plan.operations)
    if plan.merges_logs:
        return [_planned_logs(table, view, group, o, instant, rules) for o, group in found]
    return [Input(slice=_closed(view, group, instant, o)) for o, group in found]


def _refuse_forming(view: TableView, plan: CompactionPlan, instant: str) -> None:
    """BarrierError: the base file of a planned group will come from a resize that is pending. Hudi makes such plans."""
    for partition, file_id in sorted(plan.groups & view.facts.forming):
        raise BarrierError(
            "a file group of the plan is one that a pending resize of buckets will make",
            path=f"{partition}/{file_id}",
            instant=instant,
            todo="Let Hudi execute its clustering. Then run again.",
        )


def expiry_of(
    table: Table, view: TableView, plan: CompactionPlan, schema: TableSchema, output: OutputOptions, instant: str
) -> Expiry | None:
    """Which rows a compaction leaves out. "Now" is the time of its plan, so every attempt leaves out the same ones.
    None: none; so does a log compaction, behind whose rows an older version in the base file would appear. Errors: see
    `check_record_ttl`. `view`: of the partitions of the plan."""
    if output.row_age is None or plan.merges_logs:
        return None
    column, age_s = output.row_age
    partitions = {partition for partition, _ in plan.groups}
    groups = {*plan.groups, *(g.key for g in view.living() if g.partition in partitions)}
    _check_record_ttl(table, schema, column, groups)
    return Expiry(column=column, before_ms=table.times.milliseconds(instant) - 1000 * age_s)


def check_record_ttl(output: OutputOptions, table: Snapshot, plan: CompactionPlan | None = None) -> None:
    """Before a plan is requested, or the option is kept for later ones. UsageError: the column of `record_ttl` has no
    date or time. UnsupportedError: keys are looked up, so the table must know of each key that ends. A writer that
    finds a key in the old base file, while the compaction is pending, puts its row into a log of that file group;
    under any index but that of buckets, later writers do not look for the key there, and would write it a second time.
    An index of keys in the metadata table would name a key that is gone."""
    if output.row_age is not None and not (plan is not None and plan.merges_logs):
        groups = () if plan is None else plan.groups
        _check_record_ttl(table, table.newest_schema(), output.row_age[0], groups)


def _check_record_ttl(table: Table, schema: TableSchema, column: str, groups: Iterable[GroupKey]) -> None:
    path, types = table.storage.base_path, {one.name: one.type for one in schema.arrow}
    if column not in types or not can_expire(types[column]):
        fit = sorted(name for name, kind in types.items() if can_expire(kind))
        raise UsageError(
            "record-ttl needs a column of the table with a date or a timestamp",
            path=path,
            expected=", ".join(fit) or "one; the table has none",
            found=f"{column}, {types.get(column, 'which is no top-level column')}",
            todo=_WITHOUT_TTL,
        )
    if lost := [name for name in upkeep_of(table, RowsChange()).dropped if name.startswith(OF_ROWS)]:
        raise UnsupportedError(
            "record-ttl beside an index of keys in the metadata table is not supported",
            path=path,
            found=", ".join(lost),
            todo=f"Drop the index with Hudi. {_WITHOUT_TTL}",
        )
    for partition, file_id in sorted(groups):
        if not looks_like_bucket(file_id):
            raise UnsupportedError(
                "record-ttl needs a table with a bucket index: keys that are looked up could be doubled",
                path=path,
                expected="file groups of buckets only",
                found=f"{partition}/{file_id}".lstrip("/"),
                todo=f"Delete old rows by key, or old partitions: partition-ttl. {_WITHOUT_TTL}",
            )


_WITHOUT_TTL = "Without record-ttl all rows stay."


def has_barrier(table: Table, plan: CompactionPlan) -> bool:
    """Whether writes that are pending when the plan becomes visible must end before it is executed. Log compactions
    need no barrier from version 8 on. A write that may come between the planned files is a conflict at once
    (`planned_inputs`); every other write has its place before or after them, whenever it completes."""
    return not plan.merges_logs or table.layout.slicing is Slicing.BY_BASE_INSTANT


def _closed(view: TableView, group: FileGroup | None, instant: str, operation: CompactionOperation) -> FileSlice:
    if (operation.partition_path, operation.file_id) in view.facts.replaced:
        # No reader reads a replaced file group. But a file placed there after its cleaning would become visible once
        # the replace commit is archived.
        return _without_files(operation)
    slice_ = slice_before(group, instant) if group is not None else None
    have = set(input_names(slice_)) if slice_ is not None else set()
    base = [operation.data_file_path] if operation.data_file_path else []
    want = {*base, *(log for log in operation.merged_logs if not _is_rolled_back(view, log))}
    if want - have or (slice_ is None and base):
        raise _missing(view, operation, instant, want, have)
    _refuse_flaws(view, group, instant)
    return slice_ or _without_files(operation)


def _refuse_flaws(view: TableView, group: FileGroup | None, instant: str) -> None:
    """MissingFileError, MalformedError: a file of the group is lost or damaged, whether the plan names it or not."""
    for flaw in group.flaws if group is not None else ():
        error = flaw.error()
        raise error.advising(f"{_for_the_others(view, group, instant)} {error.todo}")


def _for_the_others(view: TableView, group: FileGroup | None, instant: str) -> str:
    """How the other file groups of a plan are compacted, although this one cannot be."""
    if group is None or not _is_written_under(group, instant, view):
        return (
            f"For the other file groups of the plan: `compactor-daemon unschedule TABLE {instant}`, then `schedule` "
            "again: it leaves this file group out."
        )
    others = [other for other in view.groups if other.pending_compaction == instant]
    frees = f"`compactor-daemon unschedule TABLE {instant}` frees those of the plan without logs on it. "
    return (
        f"For the other file groups: {'' if all(_is_written_under(o, instant, view) for o in others) else frees}"
        f"Write the partition {group.partition!r} again by insert_overwrite; then `compactor-daemon compact TABLE` "
        "skips this file group."
    )


def _is_rolled_back(view: TableView, log: str) -> bool:
    """Whether the write that a log is named after is neither committed nor pending. Rollbacks and restores remove such
    logs. On version 6 the name of a log does not show its write, and a rollback leaves the file where it is."""
    timeline = view.timeline
    if timeline.layout.slicing is Slicing.BY_BASE_INSTANT:
        return False
    write = LogFileName.parse(log).instant
    known = timeline.is_committed(write) or write in timeline.pending_writes
    return not known and not timeline.needs_archive(write)


def _planned_logs(
    table: Table,
    view: TableView,
    group: FileGroup | None,
    operation: CompactionOperation,
    instant: str,
    rules: SliceRules,
) -> Input:
    wanted = set(operation.delta_file_paths)
    home = next((s for s in group.slices if wanted & set(input_names(s))), None) if group is not None else None
    is_replaced = (operation.partition_path, operation.file_id) in view.facts.replaced
    if is_replaced or (group is not None and _is_compacted(group, home, operation)):
        return Input(slice=_without_files(operation))  # no reader reads these logs any more: nothing to do
    have = set(input_names(home)) if home is not None else set()
    if home is None or wanted - have:
        raise _missing(view, operation, instant, wanted, have)
    _refuse_flaws(view, group, instant)
    pieces, bottom = _neighbours(table, view, home, operation, instant, rules)
    files = {f for p in pieces for f in (*p.files, *p.replaced)}
    by_name = table.layout.slicing is Slicing.BY_BASE_INSTANT
    version = max(log.name.version for log in home.logs) + 1 if by_name else 1
    output = LogOutput(
        instant=home.base_instant if by_name else instant,
        version=version,
        fold=folds_exactly(rules, pieces, bottom=bottom),
    )
    return Input(slice=replace(home, base=None, logs=tuple(log for log in home.logs if log in files)), log=output)


def _neighbours(
    table: Table, view: TableView, home: FileSlice, operation: CompactionOperation, instant: str, rules: SliceRules
) -> tuple[tuple[LogPiece, ...], bool]:
    """See `planned_pieces`. BarrierError: they can be merged, unless one of the pending writes comes between them."""
    writes = view.timeline.pending_delta_commits
    try:
        return planned_pieces(runs_of(table.storage, home, rules, writes), operation, instant)
    except StalePlanError:
        if not writes:
            raise
    planned_pieces(runs_of(table.storage, home, rules, ()), operation, instant)
    raise BarrierError(
        "a pending write may come between the planned log files",
        path=f"{operation.partition_path}/{operation.file_id}",
        instant=instant,
        found=", ".join(i.requested_time for i in writes),
        todo="Let the writer finish. If it is dead, the next Hudi writer rolls it back. Then run again.",
    )


def _is_compacted(group: FileGroup, home: FileSlice | None, operation: CompactionOperation) -> bool:
    """Whether a compaction has merged the planned logs into a base file since then. Hudi plans compactions also of file
    groups that a pending log compaction names."""
    since = home.base_instant if home is not None else operation.base_instant_time or ""
    return any(s.base is not None and s.base_instant > since for s in group.slices)


def _without_files(operation: CompactionOperation) -> FileSlice:
    return FileSlice(
        partition=operation.partition_path,
        file_id=operation.file_id,
        base_instant=operation.base_instant_time or "",
        base=None,
        logs=(),
    )


def _missing(
    view: TableView, operation: CompactionOperation, instant: str, want: set[str], have: set[str]
) -> MissingFileError:
    group = view.by_key().get((operation.partition_path, operation.file_id))
    return MissingFileError(
        "the compaction plan names a file that is not there",
        path=f"{operation.partition_path}/{min(want - have, default=operation.file_id)}",
        instant=instant,
        expected=f"{len(want)} files of file group {operation.file_id}",
        found=f"{len(want & have)} of them",
        todo="Restore the file: compacting without it would lose its rows. If it is lost for good, restore the table "
        "to an instant before it was written, `compactor-daemon restore TABLE --to INSTANT`, or write its partition "
        f"again by insert_overwrite. {_for_the_others(view, group, instant)}",
    )


def _is_written_under(group: FileGroup, instant: str, view: TableView) -> bool:
    """Version 6: whether a log lies on the plan's phantom slice. Without the plan no reader would find that log."""
    if view.timeline.layout.slicing is not Slicing.BY_BASE_INSTANT or group.pending_compaction != instant:
        return False
    return any(slice_.logs for slice_ in group.slices if slice_.base_instant == instant)
