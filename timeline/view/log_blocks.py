"""The log blocks of a file slice, and which instants' blocks a reader of a timeline sees."""

from __future__ import annotations

from ..format.layout import Slicing
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..log.block import LogBlock, scan_blocks
from ..log.visibility import Visibility
from ..storage.contract import Storage
from .view import FileSlice


def slice_blocks(storage: Storage, slice_: FileSlice) -> list[LogBlock]:
    """The blocks of a slice's log files in log order; reads only headers."""
    blocks: list[LogBlock] = []
    for log in slice_.logs:
        with storage.open_input(log.path) as source:
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
