"""Times that nobody may use again though no timeline file shows them.

    .hoodie/.phantombase/<C>                        a recorded instant: in use, or a tombstone
    .hoodie/.phantombase/<C>/reserved-<e>-<time>    put before attempt e decides `go`: the completion time it decides

The name says it all, and nothing is read. Of a compaction that is completed, or archived, the timeline shows the time.
A `go` of an earlier release has no such object: it is read while its compaction is neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compactor_daemon.records import fate_path, instant_folder, read_fate, recorded_instants
from timeline.active import Timeline
from timeline.errors import MalformedError, MissingFileError
from timeline.storage import Storage
from timeline.table import Table

_NAME = re.compile(r"reserved-(\d+)-(\d+)")


def reserve(storage: Storage, instant: str, attempt: int, time: str) -> None:
    """Makes a completion time taken, before it is decided; doing it again changes nothing."""
    storage.put_if_absent(f"{instant_folder(instant)}/reserved-{attempt}-{time}", b"")


def reserved_times(table: Table, timeline: Timeline) -> Iterator[str]:
    """Recorded instants, and completion times decided but perhaps not visible. `timeline`: loaded under the lock."""
    pending = {i.requested_time for i in timeline.pending_merges}
    active = {i.requested_time for i in timeline.instants}
    for instant in recorded_instants(table.storage):
        yield instant
        is_archived = instant not in active and instant < timeline.start
        is_shown = instant in timeline.completed_writes and instant not in pending
        if table.layout.has_completion_times and not is_archived and not is_shown:
            try:
                yield from tuple(_decided(table, instant))
            except MissingFileError:
                if table.storage.find(instant_folder(instant)) is not None:
                    raise
                # Forgotten this moment: it was archived, and is older than all that is active.


def _decided(table: Table, instant: str) -> Iterator[str]:
    entries = table.storage.list(instant_folder(instant))
    reserved = [(int(m[1]), m[2]) for e in entries if (m := _NAME.fullmatch(e.name)) is not None]
    yield from (time for _, time in reserved)
    known = {attempt for attempt, _ in reserved}
    for entry in entries:
        if entry.is_folder and entry.name.isdigit() and int(entry.name) not in known:
            yield from _by_fate(table, instant, int(entry.name))


def _by_fate(table: Table, instant: str, attempt: int) -> Iterator[str]:
    """The completion time an attempt decided, if any, by its fate; of one that cannot be read a time not before it.

    That is when the storage took the record in: a completion time is chosen by the clock, above all times in use.
    """
    try:
        fate = read_fate(table.storage, instant, attempt)
    except MalformedError:
        entry = table.storage.find(fate_path(instant, attempt))
        if entry is not None:
            yield table.moment(entry.modified_ms)
    else:
        if fate is not None and fate.go is not None and fate.go.completion_time is not None:
            yield fate.go.completion_time
