"""What pending cleans would remove, and whether they may. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.instant_files import unreadable_plan
from phantombase.timeline.locks.heartbeat import EXPIRY_S
from phantombase.timeline.read.pins import Pin, all_pins, earliest_to_retain, held_files
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.pending import refuse_pending_restore
from phantombase.timeline.table.table import Table, from_one_snapshot

from .facts import load_whole, savepointed


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A clean that was pending and was finished: `files` that its plan names."""

    instant: str
    files: int


def to_finish(table: Table) -> dict[str, CleanPlan]:
    """The plans of pending cleans that `finish_pending` would finish, by instant. Its errors; nothing is changed."""
    found, timeline = {}, table.load_timeline()
    refuse_pending_restore(table, timeline)
    for instant in timeline.pending("clean"):
        path = table.instant_path(instant.at(State.REQUESTED))
        try:
            plan = decode_clean_plan(table.storage.read(path), path)
        except (MalformedError, MissingFileError) as error:
            may_go(table, instant, error, clock_ms)
            continue
        if instant.state is State.REQUESTED and is_needed(table, plan, all_pins(table.storage)):
            continue
        refuse_needed(table, instant.requested_time, plan)
        found[instant.requested_time] = plan
    if found and table.layout.has_completion_times:
        table.times.check_zone(timeline)
    return found


def may_go(table: Table, clean: Instant, error: MalformedError | MissingFileError, now_ms: Callable[[], int]) -> bool:
    """Whether the plan of a clean, which cannot be read, may be removed; False: the clean has ended meanwhile.

    ConflictError: it may still be written. MalformedError: the clean has begun, so files that it names may be gone.
    """
    path = table.instant_path(clean.at(State.REQUESTED))
    now = table.reload().load_timeline().find(clean.requested_time, "clean")
    if now is None or now.completed:
        return False
    if now.state > State.REQUESTED:
        raise unreadable_plan(path, now, error) from error
    entry = table.storage.find(path)
    if entry is not None and now_ms() - entry.modified_ms < EXPIRY_S * 1000:
        raise ConflictError(
            "a process may still be writing the plan of a clean, which cannot be read",
            path=path,
            instant=clean.requested_time,
            expected=f"a file that has not changed for {EXPIRY_S:g} s",
            todo="Wait, then run again.",
        ) from error
    return entry is not None


def is_needed(table: Table, plan: CleanPlan, pins: Sequence[Pin]) -> bool:
    """Whether the newest state, a savepoint, or one of the pins needs a file of the plan."""
    view = load_whole(table.reload())
    needed = held_files(view, earliest_to_retain(view.timeline, [pin.holds for pin in pins]))
    needed |= frozenset(savepointed(table, view))
    return any(join(partition, name) in needed for partition, names in plan.files.items() for name in names)


def refuse_needed(table: Table, instant: str, plan: CleanPlan) -> None:
    """ConflictError: the plan names files of the newest state, as after a restore to an older one."""
    view = from_one_snapshot(lambda: table.reload().load_view())
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
