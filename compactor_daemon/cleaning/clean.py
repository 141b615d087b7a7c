"""Cleans a table: the plan is written under the table lock; files are deleted outside it.

    finish     pending cleans: of a process that died, or of Hudi
    choose     see `cleaning.choice`
    request    <T>.clean.requested: from here on the files of the plan are not needed, and will be removed
    begin      pins are checked again: a plan with files that a pin holds is removed. Then <T>.clean.inflight
    remove     the files
    complete   the metadata table, then <T>.clean

If the process dies, the next run, of phantombase or Hudi, removes the remaining files: one that does not exist counts
as removed. `request` with `begin`, and `complete`, are lock sections; between them any process may remove the files."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_metadata, encode_clean_plan
from phantombase.timeline.format.file_name import PARTITION_METADATA
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.metadata_table.update import Change, apply_update, prepare
from phantombase.timeline.read.pins import all_pins, forget_expired, live_pins
from phantombase.timeline.read.windows import retained_since
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import READ_INSIDE, Guard, exclusive, regardless, rollback_in_progress
from phantombase.timeline.table.table import Snapshot, Table, put_requested
from phantombase.timeline.table.torn import remove_torn
from phantombase.timeline.terminal.text_table import human_bytes, plural
from phantombase.timeline.view.view import GroupKey, TableView

from ..attempt.finish import tidy
from ..unit_of_work import ServiceAnswer, ServiceMeans, note_work, unit_of_work
from .choice import CleanChoice, CleanOptions
from .plan import CleanResult, Finished, choice_of, is_needed, load_whole, refuse_needed, result_of, would_clean

_log = get_logger()
_ROLLED_BACK = {Guard.ROLLBACK: "a plan that is only requested is removed then; another one has removed files already"}
_REMOVED = dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "the files are removed, which only remains to be recorded")
_PARTITION_FILES = (PARTITION_METADATA, f".{PARTITION_METADATA}.crc")


def finish_pending(table: Table, lock: TableLock) -> tuple[Finished, ...]:
    """Finishes the pending cleans, except those whose plan is removed: see `begin`, and `torn.removal_refused`."""
    found = []
    for instant in table.load_timeline().pending("clean"):
        plan = table.files.plan(instant, decode_clean_plan)
        if isinstance(plan, Torn):
            continue
        with exclusive(table, lock, "go on with a clean", _ROLLED_BACK) as held:
            now = held.timeline.find(instant.requested_time, "clean")
            if now is None:
                continue
            if now.state is State.REQUESTED and rollback_in_progress(held) is not None:
                _remove_plan(held, now)  # what it names may be what the rollback brings back
                continue
            if now.state is State.REQUESTED and not begin(held, now, plan):
                continue
        execute(table, instant.requested_time, plan, lock)
        found.append(Finished(instant=instant.requested_time, files=plan.count))
        _log.info("clean_finished", table=table.storage.base_path, instant=instant.requested_time, files=plan.count)
    remove_torn(table, lock, "clean", strict=True)
    return tuple(found)


def begin(table: Table, clean: Instant, plan: CleanPlan, known: Collection[str] | None = None) -> bool:
    """Makes a visible plan inflight: from here on its files may have been removed. `table`: of a section. False: some
    of the files are needed, and the plan was removed. They may be needed by a pin that was put before the plan was
    visible, so that its reader was not refused; where the plan is older than this section, also by a savepoint or the
    newest state: the plan's process may have stalled before the put. `known`: paths of pins with which the plan was
    made in this section."""
    pins = [pin for pin in live_pins(table.storage) if pin.path not in (known or ())]
    if (pins or known is None) and is_needed(table, plan, pins):
        _remove_plan(table, clean)
        return False
    content = b"" if table.layout.has_completion_times else encode_clean_plan(plan, table.storage.base_path)
    table.storage.put_if_absent(table.instant_path(clean.at(State.INFLIGHT)), content)
    return True


def _remove_plan(table: Table, clean: Instant) -> None:
    table.storage.delete(table.instant_path(clean))
    _log.warning("clean_plan_removed", table=table.storage.base_path, instant=clean.requested_time)


def execute(table: Table, instant: str, plan: CleanPlan, lock: TableLock) -> None:
    """Removes the files of an inflight plan and completes it; every step may have been done before."""
    started, storage = time.monotonic(), table.storage
    refuse_needed(table, instant, plan)
    for partition, names in plan.files.items():
        storage.delete_all([join(partition, name) for name in names])
    _complete(table, instant, plan, int((time.monotonic() - started) * 1000), lock)


def _complete(table: Table, instant: str, plan: CleanPlan, took_ms: int, lock: TableLock) -> None:
    change = Change(instant=instant, files={}, moves_rows=False, schema_text=None, removed=plan.files)
    update = prepare(table, change)
    with exclusive(table, lock, "complete a clean", _REMOVED) as table:
        found = table.timeline.find(instant, "clean")
        if found is None:
            raise MissingFileError("a pending clean is gone", path=table.storage.base_path, instant=instant)
        if found.completed:
            return
        if gone := _remove_partitions(table, plan):
            change, update = replace(change, removed_partitions=gone), None
        apply_update(table, change, update)
        done = replace(found.at(State.COMPLETED), completion_time=table.completion_time())
        table.storage.put_if_absent(table.instant_path(done), encode_clean_metadata(plan, instant, took_ms, gone))
    _log.info("cleaned", table=table.storage.base_path, instant=instant, files=plan.count)


def _remove_partitions(table: Snapshot, plan: CleanPlan) -> frozenset[str]:
    """Removes empty partitions; returns which were removed. `table`: of a section. While a write is pending they are
    kept: it may be about to place files there. A removed partition has no partition metadata file; its empty folder is
    kept. A process may stall right here and lose the lock while others write: so only the files of the listing are
    deleted, and they are put back if the partition has more files since."""
    gone, storage = set(), table.storage
    for partition in plan.partitions:
        entries = listed_if_there(storage, partition)
        if entries and not table.timeline.pending_writes and all(e.name in _PARTITION_FILES for e in entries):
            paths = [join(partition, e.name) for e in entries]
            were = {path: storage.read(path) for path in paths}
            storage.delete_all(paths)
            entries = listed_if_there(storage, partition)
            for path, content in were.items() if entries else ():
                regardless(table).storage.put_if_absent(path, content)
        if not entries:
            gone.add(partition)
    return frozenset(gone)


def _said(done: CleanResult) -> WorkFacts | None:
    if not done.gone and not done.finished:
        return None
    files = done.files + sum(one.files for one in done.finished)
    instant = done.instant or next((one.instant for one in done.finished), None)
    return WorkFacts(instant=instant, why=done.why, bytes_removed=done.bytes, files_before=files, files_after=0)


@unit_of_work("clean", _said)
def clean_table(
    table: Table,
    options: CleanOptions,
    lock: TableLock,
    *,
    only: Collection[GroupKey] | None = None,
    dry_run: bool = False,
) -> CleanResult:
    """Removes the files that `options` allow. `only`: of these file groups; None: of all. `dry_run`: changes nothing,
    and takes no lock. Errors: LockError, ConflictError (a pending clean names files that are in use), StorageError,
    MalformedError, UnsupportedError (the metadata table cannot be kept). Whatever happens, the next run continues."""
    if dry_run:
        seen = table.snapshot(cached=False)
        return would_clean(seen, load_whole(seen), options, only)
    check_keepable(table.snapshot(cached=False), moves_rows=False)
    tidy(table, lock)
    finished = finish_pending(table, lock)
    with exclusive(table, lock, "plan a clean", READ_INSIDE, cached=True) as seen:
        if seen.timeline.pending("clean"):
            raise ConflictError(
                "another process began a clean meanwhile", path=seen.storage.base_path, todo="Run again."
            )
        fresh = replace(seen, storage=without_snapshot(seen.storage))
        known = {pin.path for pin in all_pins(fresh.storage)}
        view = load_whole(seen)
        choice = choice_of(seen, view, options, dry_run=False, only=only)
        if not choice.gone:
            return result_of(None, choice, finished)
        seen = seen.with_timeline(view.timeline)
        plan = _plan(view, choice, options, retained_since(seen))
        clean = Instant(requested_time=seen.next_time(), action="clean", state=State.REQUESTED)
        note_work(instant=clean.requested_time, why=choice.why)
        put_requested(fresh, clean, encode_clean_plan(plan, fresh.storage.base_path))
        if not begin(fresh, clean, plan, known):
            raise ConflictError(
                "a reader pinned the table while a clean was planned",
                path=seen.storage.base_path,
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
        # An earlier cutoff holds, since its files were removed; earlier cleans may be archived first. But no cutoff
        # exceeds a replace commit whose file groups still exist, or a pending write, which may become one: Hudi would
        # archive it.
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


def run_service(table: Table, options: CleanOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    done = clean_table(table, options, lock, dry_run=means.dry_run)
    files, cleans = done.files + sum(one.files for one in done.finished), len(done.finished) + bool(done.gone)
    removed = f"{plural(files, 'file')} {means.did('removed')}, {human_bytes(done.bytes)}"
    what = removed if cleans else f"nothing to clean: {done.why}"
    return ServiceAnswer(what=what, instants=cleans, files=files, bytes=done.bytes)
