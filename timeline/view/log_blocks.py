"""The log blocks of a file slice, and which instants' blocks a reader of a timeline sees."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..errors import MalformedError
from ..format.layout import Slicing
from ..format.log_block import BlockKind, HeaderKey, LogBlock, Selection, Visibility, scan_blocks
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..storage.contract import Storage, open_listed
from ..storage.folders import join
from ..storage.local import open_little
from .view import FileSlice, LogFile
from .witness import Flaw, uncompleted

_WHOLE_LOG_BYTES = 4 << 20
"""Up to this size one request for a log file takes less time than requests for its headers."""


def open_headers(storage: Storage, log: LogFile) -> pa.NativeFile:
    """A log file, opened to read little more than the headers of its blocks."""
    if storage.is_file_system:
        source = open_little(storage, log.path)
        if source.size() < log.size:
            source.close()
            return open_listed(storage, log.path, log.size)  # raises the error
        return source
    return open_listed(storage, log.path, log.size, whole=log.size <= _WHOLE_LOG_BYTES)


def slice_blocks(storage: Storage, slice_: FileSlice) -> list[LogBlock]:
    """The blocks of a slice's log files in log order; reads only headers. Errors as `blocks_of`, `check_whole`."""
    slice_.check_whole()
    blocks: list[LogBlock] = []
    for log in slice_.logs:
        with open_headers(storage, log) as source:
            blocks += blocks_of(log, source)
    return blocks


def blocks_of(log: LogFile, source: pa.NativeFile) -> list[LogBlock]:
    """The blocks of one log file; blocks of writes that do not name the file are marked. MalformedError: see
    `scan_blocks`; also if the blocks of a completed write that names the file are damaged. Torn blocks of a dead writer
    are in other files, or before or after these blocks."""
    marks = log.marks
    if marks is None:
        return list(scan_blocks(source, log.path))
    try:
        blocks = list(scan_blocks(source, log.path))
    except MalformedError as error:
        if marks.is_stray:
            return [LogBlock(path=log.path, offset=0, kind=BlockKind.CORRUPT)]
        if not marks.writes:
            raise
        raise _damaged(log, marks.writes[-1].instant, f"{error.what}: {error.found}") from error
    for block in blocks:
        if block.headers.get(HeaderKey.INSTANT_TIME) in marks.uncompleted:
            raise uncompleted(log.path, block.instant, log.size, marks.uncompleted).error()
    for write in marks.writes:
        mine = [b for b in blocks if write.offset <= b.offset < (write.size or source.size())]
        torn = next((b for b in mine if b.kind is BlockKind.CORRUPT), None)
        if torn is not None:
            raise _damaged(log, write.instant, f"a corrupt block at byte {torn.offset}")
        if all(b.headers.get(HeaderKey.INSTANT_TIME) != write.instant for b in mine):
            raise _damaged(log, write.instant, "no block of this instant")
    named, known = {w.instant for w in marks.writes}, marks.known
    times = ((b, b.headers.get(HeaderKey.INSTANT_TIME)) for b in blocks)
    return [replace(b, is_named=False) if time in known and time not in named else b for b, time in times]


def check_base(slice_: FileSlice, selection: Selection) -> None:
    """Versions 8 and 9: MissingFileError if a block that counts has positions in a later base file than the slice has.
    That base file existed when the block was written, and only a later base file replaces it. If its own write is
    archived, and the commit of the log file does not name it, only the block shows this on the active timeline."""
    opened = {log.name.instant for log in slice_.logs} if slice_.base is None else ()
    for block in selection.blocks:
        instant = block.headers.get(HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS)
        if instant and (instant > slice_.base_instant or slice_.base_instant in opened):
            path = join(slice_.partition, f"{slice_.file_id}_*_{instant}.parquet")
            raise Flaw(path=path, instant=instant, expected=0, found=None, is_base=True).error()


def _damaged(log: LogFile, instant: str, found: str) -> MalformedError:
    return MalformedError(
        "a log file of a completed write is damaged",
        path=log.path,
        instant=instant,
        expected=f"complete blocks of this instant in {log.size} bytes",
        found=found,
        todo="Restore the file from a copy, or restore the table to an instant before that one: `compactor-daemon "
        "restore TABLE --to INSTANT`. Other file groups are served, compacted and written as before.",
    )


def visibility_of(timeline: Timeline, *, as_of: str | None = None) -> Visibility:
    return Visibility(
        latest=as_of or UNKNOWN_COMPLETION,
        completed=frozenset(timeline.completed_writes)
        | frozenset(i.requested_time for i in timeline.archived if i.is_write),
        pending=frozenset(timeline.pending_writes),
        start=timeline.start,
        by_file=timeline.layout.slicing is Slicing.BY_COMPLETION_TIME,
    )
