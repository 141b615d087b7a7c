"""Records of phantombase for an instant: attempts and their outcomes, reserved times, tombstones.

    .hoodie/.phantombase/<C>                        a recorded instant: its time is in use
    .hoodie/.phantombase/<C>/<e>/outcome            how attempt e ended: dead, cancelled or commit
    .hoodie/.phantombase/<C>/reserved-<e>-<time>    put before attempt e decides `commit`: the completion time of that
                                                    `commit`
    .hoodie/.phantombase/<T>/reserved-0-<T>         a tombstone without attempts: the plan of a clustering was cancelled

These times are in use although no timeline file shows them. The name of the object contains the time, so the object is
not read. Once a compaction is completed or archived, the timeline shows its time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ..errors import MalformedError, MissingFileError
from ..record_fields import Fields
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import AFTER_INSTANTS, RECORDS
from .timeline import Timeline

OUTCOME = "outcome"
DEAD, CANCELLED, COMMITTED = "dead", "cancelled", "commit"
STAGED_INDEX = ".index"
STAGED_DATA = (".parquet", ".log", STAGED_INDEX)
"""Suffixes of the names of staged files."""


def instant_folder(instant: str) -> str:
    """Folder of the records of all attempts at an instant."""
    return f"{RECORDS}/{instant}"


def attempt_folder(instant: str, attempt: int) -> str:
    """Folder of the records and staged files of one attempt."""
    return f"{instant_folder(instant)}/{attempt}"


def outcome_path(instant: str, attempt: int) -> str:
    return f"{attempt_folder(instant, attempt)}/{OUTCOME}"


def attempts(storage: Storage, instant: str) -> tuple[int, ...]:
    """Numbers of all attempts at an instant, ascending."""
    entries = listed_if_there(storage, instant_folder(instant))
    return tuple(sorted(int(e.name) for e in entries or () if e.is_folder and e.name.isdigit()))


def staged_files(storage: Storage, instant: str, endings: tuple[str, ...]) -> list[str]:
    """Files that attempts at an instant have staged, by the suffix of their names."""
    folders = [attempt_folder(instant, number) for number in attempts(storage, instant)]
    return [f"{f}/{e.name}" for f in folders for e in storage.list(f) if e.name.endswith(endings)]


def record_names(storage: Storage) -> tuple[str, ...]:
    """The recorded instants, and the pauses (`locks.pause`), by one listing: all names that begin with a digit."""
    if storage.is_file_system:
        return tuple(e.name for e in listed_if_there(storage, RECORDS) or () if e.name[:1].isdigit())
    return tuple(sorted({path.partition("/")[0] for path, _ in storage.list_below(RECORDS, AFTER_INSTANTS)}))


def recorded_instants(storage: Storage, names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Instants that have records, unscheduled ones (tombstones) included. `names`: see above, if they are known."""
    return tuple(name for name in (record_names(storage) if names is None else names) if name.isdigit())


_NAME = re.compile(r"reserved-(\d+)-(\d+)")


def reserved_path(instant: str, attempt: int, time: str) -> str:
    """The object that reserves a completion time."""
    return f"{instant_folder(instant)}/reserved-{attempt}-{time}"


def reserve(storage: Storage, instant: str, attempt: int, time: str) -> None:
    """Reserves a completion time before it is decided; idempotent."""
    storage.put_if_absent(reserved_path(instant, attempt, time), b"")


def put_tombstone(storage: Storage, instant: str) -> None:
    """Keeps the time of an instant in use whose timeline files are about to be removed; idempotent."""
    reserve(storage, instant, 0, instant)


def remove_tombstone(storage: Storage, instant: str) -> None:
    """Removes the tombstone of `put_tombstone`, where all files of the instant still exist."""
    storage.delete(reserved_path(instant, 0, instant))


def has_tombstone(storage: Storage, instant: str) -> bool:
    """Whether the instant has a tombstone: its files are removed, or their removal is in progress."""
    return storage.find(reserved_path(instant, 0, instant)) is not None


def reserved_times(
    storage: Storage, timeline: Timeline, instants: Iterable[str], moment: Callable[[int], str]
) -> Iterator[str]:
    """Recorded instants, and completion times that were decided but may not be visible yet. `timeline`: loaded under
    the lock. `instants`: recorded ones. `moment`: an instant time of ms since the epoch."""
    pending = {i.requested_time for i in timeline.pending_merges}
    active = {i.requested_time for i in timeline.instants}
    for instant in instants:
        yield instant
        is_archived = instant not in active and instant < timeline.start
        is_shown = instant in timeline.completed_writes and instant not in pending
        if timeline.layout.has_completion_times and not is_archived and not is_shown:
            try:
                yield from tuple(_decided(storage, instant, moment))
            except MissingFileError:
                if storage.find(instant_folder(instant)) is not None:
                    raise
                # Removed since the listing: the instant was archived, and is older than all active instants.


def _decided(storage: Storage, instant: str, moment: Callable[[int], str]) -> Iterator[str]:
    entries = storage.list(instant_folder(instant))
    reserved = [(int(m[1]), m[2]) for e in entries if (m := _NAME.fullmatch(e.name)) is not None]
    yield from (time for _, time in reserved)
    known = {attempt for attempt, _ in reserved}
    for entry in entries:
        if entry.is_folder and entry.name.isdigit() and int(entry.name) not in known:
            yield from _by_outcome(storage, outcome_path(instant, int(entry.name)), moment)


def _by_outcome(storage: Storage, path: str, moment: Callable[[int], str]) -> Iterator[str]:
    """The completion time that an attempt decided, if any, by its outcome; an upper bound if that is unreadable. That
    is the time at which the storage received the record: the completion time was chosen before."""
    entry = storage.find(path)
    if entry is None:
        return
    try:
        time = _completion_time(storage.read(path), path)
    except MalformedError:
        time = moment(entry.modified_ms)
    if time is not None:
        yield time


def _completion_time(record: bytes, path: str) -> str | None:
    fields = Fields.parse(record, path, "unreadable outcome of an attempt")
    kind = fields.text("outcome")
    if kind not in (DEAD, CANCELLED, COMMITTED):
        raise fields.malformed(f"outcome: {DEAD}, {CANCELLED} or {COMMITTED}", repr(kind))
    return fields.text_or_none("completion_time") if kind == COMMITTED else None
