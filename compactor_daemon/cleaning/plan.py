"""What a clean would do: the facts for its choice, the pending cleans that it would finish, and its result.

Nothing is changed, and no module that executes cleans is imported: `status` shows the result. A file that cannot be
read is an error."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan
from phantombase.timeline.format.instant import State
from phantombase.timeline.instants.instant_files import Torn, load_state_files, retained_by
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.read.pins import Pin, all_pins, live_pins
from phantombase.timeline.read.windows import cleans, earliest_to_retain
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.in_progress import clustered_file_groups, refuse_in_progress
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.table.torn import removable
from phantombase.timeline.view.view import GroupKey, TableView

from ..undo.savepoint import savepoints, state_files
from .choice import CleanChoice, CleanFacts, CleanOptions, Gone, Policy, choose, held_files


def load_whole(table: Table) -> TableView:
    """A view whose timeline has all writes that completed after the point in time of a pin, archived ones too. On
    version 6 no archived instant has a completion time, and archiving stops at a pin."""
    return whole(table, from_one_snapshot(table.load_view))


def whole(table: Table, view: TableView) -> TableView:
    """A view that was loaded, as `load_whole`."""
    if not table.layout.has_completion_times or view.timeline.archived:
        return view
    return replace(view, timeline=table.with_archive(view.timeline))


def without(view: TableView, gone: Collection[str]) -> TableView:
    """The view after the removal of these paths, which are complete file slices (pure)."""
    left = (
        replace(group, slices=tuple(s for s in group.slices if not all(file.path in gone for file in s.files)))
        for group in view.groups
    )
    return replace(view, groups=tuple(group for group in left if group.slices))


def gather_facts(table: Table, view: TableView, options: CleanOptions, *, dry_run: bool) -> CleanFacts:
    """The facts for the choice on `view`. `dry_run`: puts nothing on storage, so expired pins count. MalformedError: a
    pin, savepoint or plan cannot be read; it may forbid anything."""
    from ..attempt.finish import unfinished_compactions  # late: `status` starts without it

    seen, now_ms = table.with_timeline(view.timeline), clock_ms()
    hours = options.retained if options.policy is Policy.HOURS else 0
    return CleanFacts(
        # Points in time are subtracted: times of day jump by an hour when the clocks change.
        hours_ago=table.times.moment(now_ms - hours * 3_600_000),
        floor=table.times.moment(now_ms - int(options.floor_s * 1000)),
        written=_written(seen),
        holds=tuple(pin.holds for pin in (all_pins if dry_run else live_pins)(table.storage)),
        savepoints=frozenset(savepointed(seen, view)),
        unfinished=frozenset(unfinished_compactions(seen)),
        clustering=frozenset(clustered_file_groups(seen)),
    )


def _written(table: Snapshot) -> dict[str, str]:
    """When the completed files were written. The completion time in a name is decided earlier, perhaps much earlier."""
    return load_state_files(table.storage, table.config).written(table.timeline.completed, table.times.moment)


def savepointed(table: Snapshot, view: TableView) -> Iterator[str]:
    """Paths that savepoints name, and those of their states: during a pending compaction Hudi's names only some."""
    for kept in savepoints(table):
        for files in (kept.savepoint.files, state_files(view, kept.instant)):
            for partition, names in files.items():
                yield from (join(partition, name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult(Shown):
    """`instant`: of the clean; None: nothing was to be removed, or a dry run. `files`, `bytes`: removed, or would be.
    `finished`: pending cleans that were finished, or would be. `left`: files that the bounds left to the next clean.
    `retained`, `why`, `kept`: see `CleanChoice`."""

    instant: str | None
    gone: tuple[Gone, ...]
    files: int
    bytes: int
    left: int
    retained: str | None
    why: str
    kept: dict[str, int] = field(default_factory=dict)
    finished: tuple[Finished, ...] = ()


def would_clean(
    table: Table, view: TableView, options: CleanOptions, only: Collection[GroupKey] | None = None
) -> CleanResult:
    """What `clean_table` would do, or its error; nothing is changed. `view`: of `load_whole`. `only`: see `choose`."""
    check_keepable(table, moves_rows=False)
    refuse_in_progress(table.with_timeline(view.timeline))
    finishing = to_finish(table)
    gone = {join(part, name) for plan in finishing.values() for part, names in plan.files.items() for name in names}
    choice = choice_of(table, without(view, gone) if gone else view, options, dry_run=True, only=only)
    if choice.gone:
        table.times.check_zone(view.timeline)
        for clean in cleans(view.timeline):
            if clean.completed:
                retained_by(table.files, clean)  # a record that cannot be read also ends a run
    finished = tuple(Finished(instant=instant, files=plan.count) for instant, plan in finishing.items())
    return result_of(None, choice, finished)


def choice_of(
    table: Table, view: TableView, options: CleanOptions, *, dry_run: bool, only: Collection[GroupKey] | None = None
) -> CleanChoice:
    """`table`, `view`: of a section, or after `refuse_in_progress`. `only`: see `choose`."""
    if (newest := view.timeline.completed_writes.get(view.timeline.latest_completed)) is not None:
        table.commit_metadata(newest)  # one that cannot be read is an error: only its rollback ends that
    return choose(view, gather_facts(table, view, options, dry_run=dry_run), options, only)


def result_of(instant: str | None, choice: CleanChoice, finished: tuple[Finished, ...]) -> CleanResult:
    return CleanResult(
        instant=instant,
        gone=choice.gone,
        files=sum(len(one.files) for one in choice.gone),
        bytes=sum(one.bytes for one in choice.gone),
        left=sum(len(one.files) for one in choice.left),
        retained=choice.retained,
        why=choice.why,
        kept=dict(choice.kept),
        finished=finished,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Shown):
    """A clean that was pending and was finished: `files` that its plan names."""

    instant: str
    files: int


def to_finish(table: Table) -> dict[str, CleanPlan]:
    """The plans of pending cleans that `finish_pending` would finish, by instant. Its errors; nothing is changed."""
    found, timeline = {}, table.load_timeline()
    for instant in timeline.pending("clean"):
        plan = table.files.plan(instant, decode_clean_plan)
        if isinstance(plan, Torn):
            continue
        if instant.state is State.REQUESTED and is_needed(table, plan, all_pins(table.storage)):
            continue
        refuse_needed(table, instant.requested_time, plan)
        found[instant.requested_time] = plan
    removable(table.with_timeline(timeline), clock_ms, "clean", strict=True)
    if found and table.layout.has_completion_times:
        table.times.check_zone(timeline)
    return found


def is_needed(table: Table, plan: CleanPlan, pins: Sequence[Pin]) -> bool:
    """Whether the newest state, a savepoint, or one of the pins needs a file of the plan."""
    view = load_whole(table.snapshot(cached=False))
    needed = held_files(view, earliest_to_retain(view.timeline, [pin.holds for pin in pins]))
    needed |= frozenset(savepointed(table.with_timeline(view.timeline), view))
    return any(join(partition, name) in needed for partition, names in plan.files.items() for name in names)


def refuse_needed(table: Table, instant: str, plan: CleanPlan) -> None:
    """ConflictError: the plan names files of the newest state, as after a restore to an older one."""
    view = from_one_snapshot(lambda: table.snapshot(cached=False).load_view())
    needed = held_files(view, None)
    if wrong := [p for part, names in plan.files.items() for name in names if (p := join(part, name)) in needed]:
        raise ConflictError(
            "a pending clean names files that readers need",
            path=wrong[0],
            instant=instant,
            found=f"{len(wrong)} of {plan.count} files",
            todo="The table was probably restored behind this clean. Nothing was removed. Stop all writers, remove the "
            "files of the clean from the timeline by hand, then clean again.",
        )
