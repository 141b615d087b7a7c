"""The log file of a `MERGE INTO` that sets some columns.

Hudi's readers cannot read an update of some columns without a row below it. So the slice is looked at: a key that is
alive in it gets an update of the set columns, or is deleted; a row of another key is inserted whole, or left out. What
the look-up has seen still holds when the write completes: no other write of the file group may complete in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import Flags, flat
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.spilled_merge import LogSpill
from phantombase.timeline.read.slice_log import may_delete, read_logs
from phantombase.timeline.view.log_blocks import slice_blocks
from phantombase.timeline.view.view import FileGroup, FileSlice, latest_slice

from ..engine.row_blobs import Piece
from .key_notes import KeyNotes, LogNotes
from .stager import LogPart, StagedFile, Stager
from .stored_keys import slice_keys
from .target_files import folded_parts, log_notes
from .task_context import WriteWork


def merged_log(
    stager: Stager, group: FileGroup, work: WriteWork, pieces: Iterable[Piece], *, in_base: bool
) -> StagedFile | None:
    """A log file on the group's newest slice with what the pieces' rows change; None if that is nothing.

    `in_base`: the keys are known to be in the base file, unless a log deletes them. UnsupportedError: see
    `_refuse_behind_deletes`.
    """
    slice_ = latest_slice(group)
    assert slice_ is not None, "a file group without a slice is no target"
    notes = KeyNotes()
    found = _parts(slice_, work, pieces, log_notes(notes, group, work), in_base=in_base)
    first = next(found, None)
    return stager.log(group.slices[-1], chain([first], found), notes) if first is not None else None


def _parts(
    slice_: FileSlice, work: WriteWork, pieces: Iterable[Piece], notes: LogNotes | None, *, in_base: bool
) -> Iterator[LogPart]:
    """The inserts; then the updates of some columns with the deletes. Parts without an entry are left out."""
    partial = False
    for won in folded_parts(work, pieces):
        alive, updates = _alive(slice_, work, won.keys, in_base=in_base), won.is_update
        gone, new = pa.array(np.flatnonzero(alive & ~updates)), ~alive & updates
        if new.any() and work.inserts:
            _refuse_behind_deletes(slice_, work, won.keys.filter(pa.array(new)), partial=partial)
            rows = won.rows.take(pa.array(won.row[new]))
            if notes is not None:
                notes.rows(won.keys.filter(pa.array(new)))
            yield LogPart(rows=rows, deleted=won.keys.slice(0, 0), ordering=())
        changed = won.rows.take(pa.array(won.row[alive & updates]))
        deleted, ordering = won.keys.take(gone), tuple(values.take(gone) for values in won.ordering)
        if notes is not None:
            notes.deletes(deleted, by_value=bool(ordering))
        if changed.num_rows or len(deleted):
            partial = True
            yield LogPart(rows=changed, deleted=deleted, ordering=ordering, partial=True)


def _alive(slice_: FileSlice, work: WriteWork, keys: pa.Array, *, in_base: bool) -> Flags:
    """Which of the keys a snapshot reader finds in the slice. `in_base`: see `merged_log`."""
    storage = work.table.storage
    if in_base and not may_delete(storage, work.merge.marker, slice_):
        return np.ones(len(keys), np.bool_)
    alive, lookup = np.zeros(len(keys), np.bool_), KeyLookup(keys)
    for held in slice_keys(storage, slice_, work.rules):
        at = lookup.find(flat(held.column(RECORD_KEY)))
        alive[at[at >= 0]] = True
    return alive


def _refuse_behind_deletes(slice_: FileSlice, work: WriteWork, keys: pa.Array, *, partial: bool) -> None:
    """UnsupportedError: by commit time, Hudi 1.2 cannot read a row behind a delete of its key in a log that has updates
    of some columns before it. `partial`: this file will have some before these keys' rows."""
    storage = work.table.storage
    if work.merge.mode is not MergeMode.COMMIT_TIME:
        return
    if not partial and not any(block.is_partial for block in slice_blocks(storage, slice_)):
        return
    behind = pc.is_in(keys, value_set=_deleted(slice_, work))
    if pc.any(behind).as_py():
        raise UnsupportedError(
            "Hudi cannot read rows of deleted keys in a log that has updates of some columns",
            path=f"{slice_.partition}/{slice_.file_id}",
            instant=work.instant,
            expected="keys that the log does not delete",
            found=f"{pc.sum(behind).as_py()} of them, such as {keys.filter(behind)[0].as_py()!r}",
            todo="Nothing of this write is visible. Compact the table, then write again; or leave these rows out.",
        )


def _deleted(slice_: FileSlice, work: WriteWork) -> pa.Array:
    """The keys that the slice's log files delete."""
    with ExitStack() as stack:
        out = project(work.schema.arrow, work.rules.keys.fields)
        found, _ = read_logs(work.table.storage, slice_, work.rules, out, stack)
        parts = [found.winners(n)[0] for n in range(len(found))] if isinstance(found, LogSpill) else [found]
        gone = [won.keys.filter(pa.array(~won.is_update)) for won in parts]
    return pa.concat_arrays([pa.array([], pa.string()), *gone])
