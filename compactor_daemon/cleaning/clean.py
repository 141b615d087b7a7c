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

import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import structlog

from phantombase.timeline.cleaning.choice import Choice, Gone, choose
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.errors import ConflictError, MissingFileError, TableChangedError
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_metadata, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import Change, apply_update, check_keepable, prepare
from phantombase.timeline.pins.pin import all_pins, forget_expired, live_pins
from phantombase.timeline.pins.retain import earliest_to_retain, held_files
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.half_upgraded import refuse_half_upgraded
from phantombase.timeline.table.pending_restores import refuse_pending_restore
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.view.view import TableView

from ..attempt.unfinished import tidy
from .facts import gather_facts, load_whole

_log = structlog.get_logger()

_PARTITION_FILES = (".hoodie_partition_metadata", "..hoodie_partition_metadata.crc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A clean that was pending and was finished: `files` that its plan names."""

    instant: str
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """`instant`: of the clean; None: nothing was to be removed, or a dry run. `files`, `bytes`: removed, or would be.

    `left`: files that the bounds left to the next clean. `retained`, `why`, `kept`: see `Choice`.
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
    if dry_run:
        _, choice = _choice(table.reload(), options, dry_run=True)
        return _result(None, choice, ())
    check_keepable(table.reload(), moves_rows=False)
    tidy(table, lock)
    finished = _finish_pending(table, lock)
    with lock.hold("plan a clean") as section:
        seen = table.still()
        if seen.load_timeline().pending("clean"):
            raise ConflictError(
                "another process began a clean meanwhile", path=seen.storage.base_path, todo="Run again."
            )
        known = {pin.path for pin in all_pins(table.storage)}
        view, choice = _choice(seen, options, dry_run=False)
        if not choice.gone:
            return _result(None, choice, finished)
        plan = _plan(view, choice, options)
        clean = Instant(requested_time=seen.next_time(view.timeline), action="clean", state=State.REQUESTED)
        _put(table, clean, encode_clean_plan(plan, table.storage.base_path), section)
        if not _begin(table, clean, plan, section, known):
            raise ConflictError(
                "a reader pinned the table while a clean was planned",
                path=table.storage.base_path,
                instant=clean.requested_time,
                todo="Nothing was removed. Run again.",
            )
    _execute(table, clean.requested_time, plan, lock)
    forget_expired(table.storage)
    return _result(clean.requested_time, choice, finished)


def _choice(table: Table, options: CleanOptions, *, dry_run: bool) -> tuple[TableView, Choice]:
    refuse_half_upgraded(table)
    view = load_whole(table)
    refuse_pending_restore(table, view.timeline)
    return view, choose(view, gather_facts(table, view, options, dry_run=dry_run), options)


def _plan(view: TableView, choice: Choice, options: CleanOptions) -> CleanPlan:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for one in choice.gone:
        files[one.partition] += one.files
    writes = view.timeline.completed_writes
    found = writes.get(choice.retained or "")
    return CleanPlan(
        policy=options.policy.hudi_name,
        files={partition: tuple(names) for partition, names in sorted(files.items())},
        retained=(choice.retained, "deltacommit" if found is None else found.family) if choice.retained else None,
        last_completed=max(writes, default=""),
    )


# --- execution -------------------------------------------------------------------------------------------------------


def _finish_pending(table: Table, lock: TableLock) -> tuple[Finished, ...]:
    found, timeline = [], table.load_timeline()
    refuse_pending_restore(table, timeline)
    for instant in timeline.pending("clean"):
        path = table.instant_path(instant.at(State.REQUESTED))
        plan = decode_clean_plan(table.storage.read(path), path)
        with lock.hold("go on with a clean") as section:
            now = table.reload().load_timeline().find(instant.requested_time, "clean")
            if now is None or not (now.state > State.REQUESTED or _begin(table, now, plan, section)):
                continue
        _execute(table, instant.requested_time, plan, lock)
        found.append(Finished(instant=instant.requested_time, files=plan.count))
        _log.info("clean_finished", table=table.storage.base_path, instant=instant.requested_time, files=plan.count)
    return tuple(found)


def _begin(table: Table, clean: Instant, plan: CleanPlan, section: Section, known: Collection[str] = ()) -> bool:
    """Makes a visible plan inflight: from here on its files may be gone. Called under the table lock.

    False: a pin holds some of them, and the plan was taken back. The pin was put before the plan was visible: its
    reader was not refused. `known`: paths of pins that the plan was made with.
    """
    if _held(table, plan, known):
        section.check()
        table.storage.delete(table.instant_path(clean))
        _log.warning("clean_taken_back", table=table.storage.base_path, instant=clean.requested_time, why="a pin")
        return False
    content = b"" if table.layout.has_completion_times else encode_clean_plan(plan, table.storage.base_path)
    section.check()
    table.storage.put_if_absent(table.instant_path(clean.at(State.INFLIGHT)), content)
    return True


def _held(table: Table, plan: CleanPlan, known: Collection[str]) -> bool:
    """Whether a live pin, besides those that are known, holds a file of the plan."""
    pins = [pin for pin in live_pins(table.storage) if pin.path not in known]
    if not pins:
        return False
    view = load_whole(table)
    held = held_files(view, earliest_to_retain(view.timeline, [pin.holds for pin in pins]))
    return any(join(partition, name) in held for partition, names in plan.files.items() for name in names)


def _execute(table: Table, instant: str, plan: CleanPlan, lock: TableLock) -> None:
    """Removes the files of an inflight plan and completes it; every step may have been done before."""
    started, storage = time.monotonic(), table.storage
    _refuse_needed(table, instant, plan)
    for partition, names in plan.files.items():
        storage.delete_all([join(partition, name) for name in names])
    gone = frozenset(p for p in plan.partitions if _remove_partition(table, p))
    took_ms = int((time.monotonic() - started) * 1000)
    _complete(table, instant, plan, encode_clean_metadata(plan, instant, took_ms, gone), gone, lock)


def _refuse_needed(table: Table, instant: str, plan: CleanPlan) -> None:
    """ConflictError: the plan names files of the newest state, as after a restore to an older one."""
    view = consistent(lambda: table.reload().load_view())
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


def _remove_partition(table: Table, partition: str) -> bool:
    """Removes the folder of a partition in which nothing is left; whether it is gone."""
    entries = listed_if_there(table.storage, partition)
    if entries is not None and all(e.name in _PARTITION_FILES for e in entries):
        table.storage.delete_folder(partition)
        return True
    return entries is None


def _complete(
    table: Table, instant: str, plan: CleanPlan, content: bytes, gone: frozenset[str], lock: TableLock
) -> None:
    change = Change(
        instant=instant, files={}, moves_rows=False, schema_text=None, removed=plan.files, removed_partitions=gone
    )
    update = prepare(table, change)
    with lock.hold("complete a clean") as section:
        table = _unchanged(table)
        timeline = table.load_timeline()
        found = timeline.find(instant, "clean")
        if found is None:
            raise MissingFileError("a pending clean is gone", path=table.storage.base_path, instant=instant)
        if found.completed:
            return
        section.check()
        apply_update(table, change, update)
        done = replace(found.at(State.COMPLETED), completion_time=table.completion_time(timeline))
        section.check()
        table.storage.put_if_absent(table.instant_path(done), content)
    _log.info("cleaned", table=table.storage.base_path, instant=instant, files=plan.count)


def _unchanged(table: Table) -> Table:
    now = table.reload()
    if now.config.version != table.config.version:
        raise TableChangedError(
            "the table was upgraded during a clean", path=table.storage.base_path, todo="Run again."
        )
    return now


def _put(table: Table, instant: Instant, content: bytes, section: Section) -> None:
    path = table.instant_path(instant)
    section.check()
    if not table.storage.put_if_absent(path, content):
        raise ConflictError(
            "another process began an action at the same instant",
            path=path,
            instant=instant.requested_time,
            todo="All processes that clean a table must share one lock. Run again.",
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
