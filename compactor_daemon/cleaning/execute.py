"""Executes a clean whose plan is visible, one of this process or of a dead one, of phantombase or Hudi.

begin and complete are lock sections; between them any process may remove the files, and a file that is gone counts as
removed.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_metadata, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import EXPIRY_S
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import Change, apply_update, prepare
from phantombase.timeline.pins.pin import live_pins
from phantombase.timeline.pins.retain import earliest_to_retain, held_files
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.half_upgraded import reload_same_version
from phantombase.timeline.table.pending_restores import refuse_pending_restore
from phantombase.timeline.table.table import Table, consistent

from .facts import load_whole, savepointed

_log = get_logger()

_PARTITION_FILES = (".hoodie_partition_metadata", "..hoodie_partition_metadata.crc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A clean that was pending and was finished: `files` that its plan names."""

    instant: str
    files: int


def to_finish(table: Table) -> tuple[Finished, ...]:
    """The pending cleans that a run would finish, by their plans. MalformedError: one cannot be read."""
    found = []
    for instant in table.load_timeline().pending("clean"):
        path = table.instant_path(instant.at(State.REQUESTED))
        plan = decode_clean_plan(table.storage.read(path), path)
        found.append(Finished(instant=instant.requested_time, files=plan.count))
    return tuple(found)


def finish_pending(table: Table, lock: TableLock) -> tuple[Finished, ...]:
    """Finishes the pending cleans, except those whose plan is taken back, see `begin`, or was never whole."""
    found, timeline = [], table.load_timeline()
    refuse_pending_restore(table, timeline)
    for instant in timeline.pending("clean"):
        plan = _plan(table, instant, lock)
        if plan is None:
            continue
        with lock.hold("go on with a clean") as section:
            now = table.reload().load_timeline().find(instant.requested_time, "clean")
            if now is None or not (now.state > State.REQUESTED or begin(table, now, plan, section)):
                continue
        execute(table, instant.requested_time, plan, lock)
        found.append(Finished(instant=instant.requested_time, files=plan.count))
        _log.info("clean_finished", table=table.storage.base_path, instant=instant.requested_time, files=plan.count)
    return tuple(found)


def _plan(table: Table, clean: Instant, lock: TableLock) -> CleanPlan | None:
    """The plan of a pending clean. None: it could not be read, no process began on it, and it was removed.

    Hudi writes a plan in place on local disks: killed there, it leaves an empty or torn file. ConflictError: it may
    still be written. MalformedError: it cannot be read, and files that it names may be gone.
    """
    path = table.instant_path(clean.at(State.REQUESTED))
    try:
        return decode_clean_plan(table.storage.read(path), path)
    except MalformedError as error:
        with lock.hold("remove an unreadable plan of a clean") as section:
            now = table.reload().load_timeline().find(clean.requested_time, "clean")
            entry = table.storage.find(path)
            if now is None or now.completed or entry is None:
                return None
            if now.state > State.REQUESTED:
                raise MalformedError(
                    "the plan of a clean that has begun cannot be read",
                    path=path,
                    instant=clean.requested_time,
                    found=error.found or error.what,
                    todo="Restore the file from a copy. Without one, remove both files of this clean from the "
                    "timeline: the newest state is whole, older ones may not be and must not be read any more.",
                ) from error
            if storage_ms(table.storage) - entry.modified_ms < EXPIRY_S * 1000:
                raise ConflictError(
                    "a process may still be writing the plan of a clean, which cannot be read",
                    path=path,
                    instant=clean.requested_time,
                    expected=f"a file that has not changed for {EXPIRY_S:g} s",
                    todo="Wait, then run again.",
                ) from error
            section.check()
            table.storage.delete(path)
    _log.warning("unreadable_clean_removed", table=table.storage.base_path, instant=clean.requested_time)
    return None


def begin(
    table: Table, clean: Instant, plan: CleanPlan, section: Section, known: Collection[str] | None = None
) -> bool:
    """Makes a visible plan inflight: from here on its files may be gone. Called under the table lock.

    False: some of them are needed, and the plan was taken back. By a pin that was put before the plan was visible, so
    its reader was not refused; where the plan is older than this section, also by a savepoint or the newest state: its
    process may have slept before it put the plan. `known`: paths of pins with which the plan was made in this section.
    """
    if _is_needed(table, plan, known):
        section.check()
        table.storage.delete(table.instant_path(clean))
        _log.warning("clean_taken_back", table=table.storage.base_path, instant=clean.requested_time)
        return False
    content = b"" if table.layout.has_completion_times else encode_clean_plan(plan, table.storage.base_path)
    section.check()
    table.storage.put_if_absent(table.instant_path(clean.at(State.INFLIGHT)), content)
    return True


def _is_needed(table: Table, plan: CleanPlan, known: Collection[str] | None) -> bool:
    pins = [pin for pin in live_pins(table.storage) if pin.path not in (known or ())]
    if known is not None and not pins:
        return False
    view = load_whole(table.reload())
    needed = held_files(view, earliest_to_retain(view.timeline, [pin.holds for pin in pins]))
    needed |= frozenset(savepointed(table, view))
    return any(join(partition, name) in needed for partition, names in plan.files.items() for name in names)


def execute(table: Table, instant: str, plan: CleanPlan, lock: TableLock) -> None:
    """Removes the files of an inflight plan and completes it; every step may have been done before."""
    started, storage = time.monotonic(), table.storage
    _refuse_needed(table, instant, plan)
    for partition, names in plan.files.items():
        storage.delete_all([join(partition, name) for name in names])
    _complete(table, instant, plan, int((time.monotonic() - started) * 1000), lock)


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


def _complete(table: Table, instant: str, plan: CleanPlan, took_ms: int, lock: TableLock) -> None:
    change = Change(instant=instant, files={}, moves_rows=False, schema_text=None, removed=plan.files)
    update = prepare(table, change)
    with lock.hold("complete a clean") as section:
        table = reload_same_version(table, "a clean")
        timeline = table.load_timeline()
        found = timeline.find(instant, "clean")
        if found is None:
            raise MissingFileError("a pending clean is gone", path=table.storage.base_path, instant=instant)
        if found.completed:
            return
        if gone := _remove_partitions(table, timeline, plan, section):
            change, update = replace(change, removed_partitions=gone), None
        section.check()
        apply_update(table, change, update, section)
        done = replace(found.at(State.COMPLETED), completion_time=table.completion_time(timeline))
        section.check()
        table.storage.put_if_absent(table.instant_path(done), encode_clean_metadata(plan, instant, took_ms, gone))
    _log.info("cleaned", table=table.storage.base_path, instant=instant, files=plan.count)


def _remove_partitions(table: Table, timeline: Timeline, plan: CleanPlan, section: Section) -> frozenset[str]:
    """Removes the folders of partitions in which nothing is left; which of those are gone. Called under the lock.

    While a write is pending they stay: it may be about to place its files there.
    """
    gone = set()
    for partition in plan.partitions:
        entries = listed_if_there(table.storage, partition)
        if entries and not timeline.pending_writes and all(e.name in _PARTITION_FILES for e in entries):
            section.check()
            table.storage.delete_folder(partition)
            entries = None
        if not entries:
            gone.add(partition)
    return frozenset(gone)
