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

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.clean import CleanPlan, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import check_keepable
from phantombase.timeline.read.pins import all_pins, forget_expired
from phantombase.timeline.read.windows import retained_since
from phantombase.timeline.table.table import Table, put_requested
from phantombase.timeline.view.view import TableView

from ..attempt.unfinished import tidy
from .choice import CleanChoice
from .execute import begin, execute, finish_pending
from .facts import load_whole
from .options import CleanOptions
from .would_clean import CleanResult, choice_of, result_of, would_clean


def clean_table(table: Table, options: CleanOptions, lock: TableLock, *, dry_run: bool = False) -> CleanResult:
    """Removes what may go by `options`. `dry_run`: changes nothing, and takes no lock.

    Errors: LockError, ConflictError (a pending clean names files that are in use), StorageError, MalformedError,
    UnsupportedError (the metadata table cannot be kept). Whatever happens, the next run continues.
    """
    if dry_run:
        seen = table.reload()
        return would_clean(seen, load_whole(seen), options)
    check_keepable(table.reload(), moves_rows=False)
    tidy(table, lock)
    finished = finish_pending(table, lock)
    with lock.hold("plan a clean") as section:
        seen = table.snapshot()
        if seen.load_timeline().pending("clean"):
            raise ConflictError(
                "another process began a clean meanwhile", path=seen.storage.base_path, todo="Run again."
            )
        known = {pin.path for pin in all_pins(table.storage)}
        view = load_whole(seen)
        choice = choice_of(seen, view, options, dry_run=False)
        if not choice.gone:
            return result_of(None, choice, finished)
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
    return result_of(clean.requested_time, choice, finished)


def _plan(view: TableView, choice: CleanChoice, options: CleanOptions, before: str) -> CleanPlan:
    """`before`: what earlier cleans retained."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for one in choice.gone:
        files[one.partition] += one.files
    writes, retained = view.timeline.completed_writes, choice.retained
    if retained:
        # Earlier cleans may be archived first, and what they removed stays gone. But no cutoff passes a replace commit
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
