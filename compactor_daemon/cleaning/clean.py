"""Cleans a table: under the table lock the plan becomes visible, outside of it the files go.

    finish     a clean that is pending: of a process that died, or of Hudi
    choose     see `cleaning.choice`
    request    <T>.clean.requested: from here on the files of the plan are not needed, and will be removed
    begin      pins once more: a plan with files that one holds is taken back. Then <T>.clean.inflight
    remove     the files
    complete   the metadata table, then <T>.clean

Whatever dies, the next run, of phantombase or Hudi, removes the rest: a file that is gone counts as removed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from phantombase.timeline.cleaning.choice import Choice, Gone, choose
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.clean import CleanPlan, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import check_keepable
from phantombase.timeline.pins.pin import all_pins, forget_expired
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.half_upgraded import refuse_half_upgraded
from phantombase.timeline.table.instant_puts import put_requested
from phantombase.timeline.table.pending_restores import refuse_pending_restore
from phantombase.timeline.table.pending_rollbacks import refuse_half_rolled_back
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import TableView
from phantombase.timeline.windows.retained import cleans, retained_by, retained_since

from ..attempt.unfinished import tidy
from .execute import Finished, begin, execute, finish_pending, to_finish
from .facts import gather_facts, load_whole, without


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """`instant`: of the clean; None: nothing was to be removed, or a dry run. `files`, `bytes`: removed, or would be.

    `finished`: pending cleans that were finished, or would be. `left`: files that the bounds left to the next clean.
    `retained`, `why`, `kept`: see `Choice`.
    """

    instant: str | None
    gone: tuple[Gone, ...]
    files: int
    bytes: int
    left: int
    retained: str | None
    why: str
    kept: dict[str, int] = field(default_factory=dict)
    finished: tuple[Finished, ...] = ()


def clean_table(table: Table, options: CleanOptions, lock: TableLock, *, dry_run: bool = False) -> CleanResult:
    """Removes what may go by `options`. `dry_run`: changes nothing, and takes no lock.

    Errors: LockError, ConflictError (a pending clean names files that are in use), StorageError, MalformedError,
    UnsupportedError (the metadata table cannot be kept). Whatever happens, the next run continues.
    """
    check_keepable(table.reload(), moves_rows=False)
    if dry_run:
        view = load_whole(seen := table.reload())
        shown = would_clean(seen, view, options)
        for clean in cleans(view.timeline) if shown.gone else ():
            if clean.completed:
                retained_by(seen, clean)  # a record that cannot be read ends a run, too
        return shown
    tidy(table, lock)
    finished = finish_pending(table, lock)
    with lock.hold("plan a clean") as section:
        seen = table.still()
        if seen.load_timeline().pending("clean"):
            raise ConflictError(
                "another process began a clean meanwhile", path=seen.storage.base_path, todo="Run again."
            )
        known = {pin.path for pin in all_pins(table.storage)}
        view = load_whole(seen)
        choice = _choice(seen, view, options, dry_run=False)
        if not choice.gone:
            return _result(None, choice, finished)
        plan = _plan(view, choice, options, retained_since(seen, view.timeline))
        clean = Instant(requested_time=seen.next_time(view.timeline), action="clean", state=State.REQUESTED)
        put_requested(table, clean, encode_clean_plan(plan, table.storage.base_path), section)
        if not begin(table, clean, plan, section, known):
            raise ConflictError(
                "a reader pinned the table while a clean was planned",
                path=table.storage.base_path,
                instant=clean.requested_time,
                todo="Nothing was removed. Run again.",
            )
    execute(table, clean.requested_time, plan, lock)
    forget_expired(table.storage)
    return _result(clean.requested_time, choice, finished)


def would_clean(table: Table, view: TableView, options: CleanOptions) -> CleanResult:
    """What `clean_table` would do, or its error; nothing is changed. `view`: of `load_whole`."""
    finishing = to_finish(table)
    gone = {join(part, name) for plan in finishing.values() for part, names in plan.files.items() for name in names}
    choice = _choice(table, without(view, gone) if gone else view, options, dry_run=True)
    if choice.gone:
        table.times.check_zone(view.timeline)
    finished = tuple(Finished(instant=instant, files=plan.count) for instant, plan in finishing.items())
    return _result(None, choice, finished)


def _choice(table: Table, view: TableView, options: CleanOptions, *, dry_run: bool) -> Choice:
    refuse_half_upgraded(table)
    refuse_pending_restore(table, view.timeline)
    refuse_half_rolled_back(table, view.timeline)  # behind its write lies what will be the newest state
    return choose(view, gather_facts(table, view, options, dry_run=dry_run), options)


def _plan(view: TableView, choice: Choice, options: CleanOptions, before: str) -> CleanPlan:
    """`before`: what earlier cleans retained."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for one in choice.gone:
        files[one.partition] += one.files
    writes, retained = view.timeline.completed_writes, choice.retained
    if retained:
        # Earlier cleans may be archived first, and what they removed stays gone. But no border passes a replace commit
        # whose file groups are still there, nor a write that pends and may become one: Hudi would archive it.
        gone = {(one.partition, one.file_id) for one in choice.gone}
        there = (view.facts.replaced.get(group.key) for group in view.groups if group.key not in gone)
        stays = [before, *(time for time in there if time is not None), *view.timeline.pending_writes]
        retained = max(retained, min(stays))
    found = writes.get(retained or "")
    return CleanPlan(
        policy=options.policy.hudi_name,
        files={partition: tuple(names) for partition, names in sorted(files.items())},
        retained=(retained, "deltacommit" if found is None else found.family) if retained else None,
        last_completed=max(writes, default=""),
        savepoints=tuple(i.requested_time for i in view.timeline.instants if i.action == "savepoint" and i.completed),
    )


def _result(instant: str | None, choice: Choice, finished: tuple[Finished, ...]) -> CleanResult:
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
