"""Compactions and log compactions: how an attempt executes one (`job.Job`), and what its commit says.

The commit is as Hudi 0.15 and 1.2 write it, plus the ledger. A lost file is merged again from its inputs, which are
retained until a clean: the commit states the size and the ledger of each file, so the new file must have the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import MalformedError, MissingFileError, StorageError
from phantombase.timeline.format.clean import decode_clean_plan
from phantombase.timeline.format.commit_metadata import LATEST_SCHEMA, LEDGER, CommitMetadata
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.compaction_plan import (
    TOTAL_IO_READ_MB,
    TOTAL_LOG_FILES_SIZE,
    CompactionPlan,
    planned_paths,
)
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout, Slicing
from phantombase.timeline.format.ledger import Expiry, decode_ledgers
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.planning.partition_walk import why_planned
from phantombase.timeline.read.windows import cleans
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.in_progress import pending_replacing_writes
from phantombase.timeline.table.table import Snapshot, Table, TableSchema
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import GroupKey, TableView

from .hudi_executors import inflight_path
from .inputs import Input, expiry_of, has_barrier, planned_inputs
from .job import Clauses
from .outcome import CommitDecision, Placement, ReplacedGroup
from .slice_record import SliceDone, compaction_commit, keep_ledger, log_compaction_commit
from .slice_task import SliceChunk, SliceTask, StageSpec, StageTask, compact_slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction or log compaction, as a `Job`. `plan`: None for the job of a decision."""

    requested: Instant
    plan: CompactionPlan | None = None

    name = "compaction"
    waits_for = "writes that began before this compaction are still pending"
    places_early = True

    @staticmethod
    def planned(table: Table, instant: str) -> Compaction:
        """From the plan. Errors: see `InstantFiles.compaction_plan`."""
        plan = table.compaction_plan(instant)
        requested = Instant(requested_time=instant, action=plan.action, state=State.REQUESTED)
        return Compaction(requested=requested, plan=plan)

    @property
    def undo(self) -> str:
        return f"compactor-daemon unschedule TABLE {self.requested.requested_time}"

    @property
    def _plan(self) -> CompactionPlan:
        assert self.plan is not None, "made from a plan"
        return self.plan

    @property
    def facts(self) -> Mapping[str, Any]:
        """What its row in the history says of the plan."""
        metrics = [one.metrics or {} for one in self._plan.operations]
        logs, read_mb = (sum(of.get(name, 0.0) for of in metrics) for name in (TOTAL_LOG_FILES_SIZE, TOTAL_IO_READ_MB))
        kind = {} if self.requested.action == "compaction" else {"kind": "log compaction"}
        why = why_planned(self._plan) or "a plan of Hudi"
        return {**kind, "why": why, "planned_bytes": max(round(logs), round(read_mb) << 20)}

    @property
    def partitions(self) -> frozenset[str]:
        return frozenset(partition for partition, _ in self._plan.groups)

    def is_planned(self, table: Table) -> bool:
        return table.compaction_plan(self.requested.requested_time).groups == self._plan.groups

    def barrier(self, table: Snapshot) -> frozenset[str]:
        # The plan is visible to every write that begins from here on. Writes that are pending now may have begun before
        # the plan was visible: they must end before the decision.
        pending = table.timeline.pending_delta_commits if has_barrier(table, self._plan) else ()
        # So must older pending replace commits: the file group that one replaces may be cleaned, and the replace commit
        # archived, while this compaction is pending.
        instant = self.requested.requested_time
        pending += tuple(i for i in pending_replacing_writes(table) if i.requested_time < instant)
        return frozenset(i.requested_time for i in pending)

    def waiting(self, table: Snapshot, barrier: frozenset[str]) -> list[Instant]:
        return [i for i in table.timeline.inflight_writers if i.requested_time in barrier]

    def tasks(self, table: Table, attempt: int, output: OutputOptions) -> tuple[list[SliceTask], TableSchema]:
        instant = self.requested.requested_time
        view = table.load_plan_view([self._plan])
        seen = table.with_timeline(view.timeline)
        schema = seen.newest_schema(before=instant)
        rules = merge_rules(seen, schema, output, expiry_of(seen, view, self._plan, schema, output, instant))
        inputs = planned_inputs(table, view, self._plan, instant, rules)
        measure = Measure.of(table, schema)
        found = tasks_for(enumerate(inputs), rules, schema, output, instant=instant, attempt=attempt, measure=measure)
        return found, schema

    def staged_before(self, table: Table, tasks: Sequence[StageTask]) -> Mapping[int, SliceDone]:
        return {}

    def commit(self, done: Sequence[SliceDone], schema: TableSchema, properties: Mapping[str, str]) -> CommitMetadata:
        commit = log_compaction_commit if self._plan.merges_logs else compaction_commit
        return commit(done, schema, properties)

    def passed(self, table: Table, done: Sequence[SliceDone]) -> tuple[str, ...]:
        return _passed(table.layout, self._plan, done)

    def replaced(self, done: Sequence[SliceDone]) -> tuple[ReplacedGroup, ...]:
        return ()

    def skipped(self, done: Sequence[SliceDone]) -> tuple[str, ...]:
        return ()

    def clauses(self, table: Snapshot, decision: CommitDecision) -> Clauses:
        back = _back(table, decision.instant, decision.passed) if decision.passed else ()
        return Clauses(broken=f"file group {back[0]} is not replaced any more" if back else "")

    def current(self, table: Snapshot, decision: CommitDecision) -> CommitDecision:
        return without_groups(decision, table.facts.replaced_groups(table.timeline), table.layout)

    def begin_placing(self, table: Table, decision: CommitDecision) -> None:
        """Nothing: no inflight file is made."""

    def begin_completing(self, table: Table, decision: CommitDecision) -> None:
        # An inflight file can only be that of a dead Hudi executor; Hudi refuses to work concurrently with it.
        if table.storage.find(inflight := inflight_path(table, decision.instant)) is not None:
            table.storage.delete(inflight)

    def built_upon(self, table: Table, decision: CommitDecision, *, is_valid: bool) -> str:
        return "other processes have built upon it" if is_built_upon(table, decision, is_valid=is_valid) else ""

    def make_again(self, table: Table, decision: CommitDecision, placement: Placement) -> str:
        return merge_again(table, decision, placement)

    def stays(self, table: Table, decision: CommitDecision, why: str) -> None:
        """Nothing: it is logged. Restored rows are visible again, and no row that was written since is lost."""

    def end(self, table: Table, decision: CommitDecision, done: Instant) -> None:
        keep_ledger(table, decision, done)


def merge_rules(
    table: Snapshot, schema: TableSchema, output: OutputOptions, expiry: Expiry | None = None
) -> SliceRules:
    """How slices are merged and what their ledgers count. `expiry`: see `expiry_of`."""
    rules = slice_rules(table, schema, every_duplicate=not table.config.merges_as_1x, batch_rows=output.batch_rows)
    return replace(rules, memory_bytes=output.memory_limit, spill_folder=output.spill_dir, identity=True, expiry=expiry)


def tasks_for(
    inputs: Iterable[tuple[int, Input]],
    rules: SliceRules,
    schema: TableSchema,
    output: OutputOptions,
    *,
    instant: str,
    attempt: int,
    measure: Measure | None = None,
) -> list[SliceTask]:
    """One task per file to be made; each input comes with its position in the plan."""
    common = StageSpec(
        instant=instant, attempt=attempt, rules=rules, schema_text=schema.file_text, output=output, measure=measure
    )
    return [SliceTask(common, SliceChunk(position=n, slice=one.slice, log=one.log)) for n, one in inputs]


def single_task(
    table: Table,
    view: TableView,
    plan: CompactionPlan,
    schema: TableSchema,
    output: OutputOptions,
    *,
    instant: str,
    attempt: int,
    position: int,
    measure: Measure | None = None,
) -> SliceTask:
    """The task of one file of a plan, at its `position`, from a view of the plan's partitions."""
    seen = table.with_timeline(view.timeline)
    rules = merge_rules(seen, schema, output, expiry_of(seen, view, plan.only(position), schema, output, instant))
    (one,) = planned_inputs(table, view, plan.only(position), instant, rules)
    (task,) = tasks_for([(position, one)], rules, schema, output, instant=instant, attempt=attempt, measure=measure)
    return task


def _passed(layout: Layout, plan: CompactionPlan, done: Sequence[SliceDone]) -> tuple[str, ...]:
    """The replaced file groups, which were left out: they have no inputs. Their replace commit may be rolled back
    before this decision is published. Then logs on the plan's slice would hide the rows below them. Only version 6 has
    such logs: from version 8 on, no log is named after the plan."""
    if plan.merges_logs or layout.slicing is not Slicing.BY_BASE_INSTANT:
        return ()
    return tuple(f"{d.partition}/{d.file_id}" for d in done if not d.inputs)


def is_built_upon(table: Table, decision: CommitDecision, *, is_valid: bool) -> bool:
    """See `Job.built_upon`."""
    now, plan = table.with_timeline(table.load_timeline()), _plan(table, decision.instant)
    if _is_planned(now, decision):
        return True
    later = list(_written_since(now, decision))
    # With the plan, readers find the logs on its slice also without the commit.
    if plan is None and any(name.instant == decision.instant for _, name in later):
        return True
    below = {group for group, name in later if isinstance(name, BaseFileName)}
    if plan is not None:
        return bool(below) or _lacks_inputs(now, plan, logs_too=is_valid)
    # If the plan was removed, what was merged is unknown.
    replaced = table.facts.replaced_groups(now.timeline)
    shown = {placed_group(p.final) for p in decision.placements} - below - set(replaced)
    partitions = sorted({partition for partition, _ in shown})
    list_ahead(table.storage, partitions)
    found = {join(p, entry.name): name for p in partitions for entry, name in data_files(table, p)}
    if any(placed_group(p.final) in shown and p.final not in found for p in decision.placements):
        return False  # its files were reverted before the commit was put: readers would miss this file
    return bool(below) or _is_cleaned(now, decision, shown, found)


def _plan(table: Table, instant: str) -> CompactionPlan | None:
    try:
        return table.compaction_plan(instant)
    except MissingFileError:
        return None


def _is_planned(table: Snapshot, decision: CommitDecision) -> bool:
    finals = {p.final for p in decision.placements}
    others = [i.requested_time for i in table.timeline.pending_merges if i.requested_time != decision.instant]
    return any(not finals.isdisjoint(planned_paths(table.compaction_plan(other))) for other in others)


def _written_since(table: Snapshot, decision: CommitDecision) -> Iterator[tuple[GroupKey, BaseFileName | LogFileName]]:
    """Files of the same file groups that later writes name."""
    groups = {placed_group(p.final) for p in decision.placements}
    for instant in table.timeline.completed:
        if instant.requested_time > decision.instant:
            for path in table.commit_metadata(instant).named_files:
                partition, _, text = path.rpartition("/")
                name = parse_data_file(text)
                if name is not None and (partition, name.file_id) in groups:
                    yield (partition, name.file_id), name


def _is_cleaned(
    table: Snapshot,
    decision: CommitDecision,
    groups: Collection[GroupKey],
    found: Mapping[str, BaseFileName | LogFileName],
) -> bool:
    """Whether a cleaner, which saw the compaction completed, removed all earlier files of a file group."""
    left = {(path.rpartition("/")[0], name.file_id) for path, name in found.items() if name.instant < decision.instant}
    bare = set(groups) - left
    for clean in cleans(table.timeline) if bare else ():
        if clean.requested_time > decision.instant:
            files = table.files.needed_plan(clean, decode_clean_plan).files
            named = ((p, parse_data_file(text)) for p, texts in files.items() for text in texts)
            if any(name is not None and (p, name.file_id) in bare for p, name in named):
                return True
    return False


def _lacks_inputs(table: Snapshot, plan: CompactionPlan, *, logs_too: bool) -> bool:
    """Whether a cleaner removed what was merged. A rollback removes the log of its write, too."""
    replaced = table.facts.replaced_groups(table.timeline)
    for operation in plan.operations:
        if (operation.partition_path, operation.file_id) not in replaced:
            for path in planned_paths(CompactionPlan(operations=(operation,))):
                is_base = isinstance(parse_data_file(path.rpartition("/")[2]), BaseFileName)
                if (is_base or logs_too) and table.storage.find(path) is None:
                    return True
    return False


def without_groups(decision: CommitDecision, gone: Collection[GroupKey], layout: Layout) -> CommitDecision:
    """The decision without the files of these file groups (pure). It retains their ledgers."""
    kept = tuple(p for p in decision.placements if placed_group(p.final) not in gone)
    if len(kept) == len(decision.placements):
        return decision
    finals = {p.final for p in kept}
    metadata = decode_commit(decision.content, decision.completed_path)
    stats = {
        partition: left
        for partition, of in metadata.partition_to_write_stats.items()
        if (left := tuple(s for s in of if s.path in finals))
    }
    content = encode_commit(replace(metadata, partition_to_write_stats=stats), layout.encoding)
    return replace(decision, placements=kept, content=content)


def placed_group(final: str) -> GroupKey:
    """The file group of the file with this path. MalformedError: not a data file."""
    partition, _, text = final.rpartition("/")
    name = parse_data_file(text)
    if name is None:
        raise MalformedError("not the name of a data file", path=final)
    return partition, name.file_id


_TODO = "Run again with the release that decided, and the libraries it had."
_TODO_UNKNOWN = (
    "The decision does not name its options, so the defaults were used. Run again with the release that decided, and "
    "the codec, bloom, row group and memory options it had."
)


def merge_again(table: Table, decision: CommitDecision, placement: Placement) -> str:
    """The path of a new staged file for one placement of a decision. MissingFileError: an input is lost too.
    StorageError: the new file is not the decided one."""
    plan, output = table.compaction_plan(decision.instant), placement.output or OutputOptions()
    name = parse_data_file(placement.final.rpartition("/")[2])
    assert name is not None
    position, attempt = (int(part) for part in str(name.token).split("-")[:2])
    view = table.load_plan_view([plan.only(position)], pending=table.files.requested_merge(decision.instant))
    metadata = decode_commit(decision.content, decision.completed_path).extra_metadata
    seen = table.with_timeline(view.timeline)
    schema = seen.schema_written(metadata["schema"], decision.instant, evolved=metadata.get(LATEST_SCHEMA))
    task = single_task(table, view, plan, schema, output, instant=decision.instant, attempt=attempt, position=position)
    if task.log is not None and isinstance(name, LogFileName):  # later logs may have taken the next versions
        task = replace(task, part=replace(task.part, log=replace(task.log, version=name.version)))
    storage = table.storage
    storage.delete(task.record_path)  # it names the lost file
    done = compact_slice(storage, task)
    ledgers = {group.key: group.ledger for group in decode_ledgers(metadata[LEDGER], decision.completed_path)}
    same = (done.final, done.size, done.ledger) == (placement.final, placement.size, ledgers[task.slice.key])
    if done.staged is None or not same:
        if done.staged is not None:
            storage.delete(done.staged)
        raise StorageError(
            "a published base file is lost, and merging its inputs again gave another file than was decided",
            path=placement.final,
            instant=decision.instant,
            expected=f"{placement.size} bytes and the ledger of the commit",
            found=f"{done.size} bytes",
            todo=f"{_TODO if placement.output is not None else _TODO_UNKNOWN} "
            "Until then nothing of the compaction is removed.",
        )
    return done.staged


def _back(table: Snapshot, instant: str, passed: Collection[str]) -> tuple[str, ...]:
    """The file groups that were left out as replaced and are not replaced any more. If the replace commit was archived
    since, the files of the group were removed; if it was rolled back, they exist."""
    replaced = table.facts.replaced_groups(table.timeline)
    found, plan = [], table.compaction_plan(instant)
    for operation in plan.operations:
        partition, group = operation.partition_path, f"{operation.partition_path}/{operation.file_id}"
        if group in passed and (partition, operation.file_id) not in replaced:
            paths = planned_paths(replace(plan, operations=(operation,)))
            if any(table.storage.find(path) is not None for path in paths):
                found.append(group)
    return tuple(found)
