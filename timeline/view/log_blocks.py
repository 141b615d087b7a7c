"""The log blocks of a file slice, and which instants' blocks a reader of a timeline sees."""

from __future__ import annotations

import pyarrow as pa

from ..format.layout import Slicing
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..log.block import LogBlock, scan_blocks
from ..log.visibility import Visibility
from ..storage.contract import Storage, open_listed
from ..storage.local import open_little
from .view import FileSlice, LogFile

_WHOLE_LOG_BYTES = 4 << 20
"""Up to this size one request for a log file takes less time than those for its headers."""


def open_headers(storage: Storage, log: LogFile) -> pa.NativeFile:
    """A log file of which little more than the headers of its blocks will be read."""
    if storage.is_file_system:
        return open_little(storage, log.path)
    return open_listed(storage, log.path, log.size, whole=log.size <= _WHOLE_LOG_BYTES)


def slice_blocks(storage: Storage, slice_: FileSlice) -> list[LogBlock]:
    """The blocks of a slice's log files in log order; reads only headers."""
    blocks: list[LogBlock] = []
    for log in slice_.logs:
        with open_headers(storage, log) as source:
            blocks += scan_blocks(source, log.path)
    return blocks


def visibility_of(timeline: Timeline, *, as_of: str | None = None) -> Visibility:
    """Which instants' log blocks one reader sees."""
    return Visibility(
        latest=as_of or UNKNOWN_COMPLETION,
        completed=frozenset(timeline.completed_writes)
        | frozenset(i.requested_time for i in timeline.archived if i.is_write),
        pending=frozenset(timeline.pending_writes),
        start=timeline.start,
        by_file=timeline.layout.slicing is Slicing.BY_COMPLETION_TIME,
    )
