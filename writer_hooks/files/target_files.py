"""The files made of a target's rows: a log file, a new base file, or a rewritten small base file.

`merged_log` is the log file of a `MERGE INTO` that sets some columns. Hudi's readers cannot read an update of some
columns without a row below it. So the slice is read: a key that is alive in it gets an update of the set columns, or is
deleted; the complete row of another key is inserted, or left out. The result of that look-up is still valid when the
write completes: no other write of the file group may complete since then.

A base file may have a key twice, as after a bulk insert. Hudi's SIMPLE and BLOOM indexes write an entry for each row of
a key, and the log block names the rows by their numbers (versions 8 and 9). A block without numbers changes the first
row of each key only, and so do all others of its slice then. So a log file here names rows where the blocks below do,
and where it is the first one and has such a key (`naming_rows`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import Flags, flat
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.log_block import LogBlock
from phantombase.timeline.format.log_encode import BaseRows
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.gaps import Lacking
from phantombase.timeline.merge.log_fold import Winners
from phantombase.timeline.merge.slice_log import block_may_delete, may_delete, read_logs
from phantombase.timeline.merge.slice_merge import SliceMerge
from phantombase.timeline.merge.slice_stream import base_tables
from phantombase.timeline.merge.spilled_merge import LogSpill, spill_folder
from phantombase.timeline.view.log_blocks import slice_blocks
from phantombase.timeline.view.view import BaseFile, FileGroup, FileSlice, GroupKey, latest_slice

from ..engine.row_blobs import Piece
from .stager import Counts, LogPart, StagedFile, Stager, WriteWork
from .stored_keys import KeyNotes, LogNotes, living_in, rows_of_keys

_SPILL_PARTITIONS = 32
"""Each partition is folded separately, in a quarter of the limit: 32 are enough for eight times the limit."""


def with_keys_twice(pieces: Iterator[Piece]) -> tuple[pa.Array, Iterator[Piece]]:
    """The keys of a target that its base file has in several rows, which come first, and the pieces with its rows."""
    keys = [pa.array([], pa.string())]
    for piece in pieces:
        if piece.source >= 0:
            return pa.concat_arrays(keys), chain([piece], pieces)
        keys.append(flat(piece.table().column(RECORD_KEY)))
    return pa.concat_arrays(keys), iter(())


def naming_rows(
    group: FileGroup, work: WriteWork, parts: Iterator[LogPart], twice: pa.Array, blocks: Sequence[LogBlock]
) -> Iterator[LogPart]:
    """The parts of a log file, with the rows of the base file that they change, where they must name them. `twice`: see
    `with_keys_twice`; `blocks`: of the slice's logs. UnsupportedError: a key of several rows is deleted, and blocks
    below do not name rows."""
    slice_ = group.slices[-1]
    base = slice_.base
    if base is None or not work.table.layout.has_completion_times or not (slice_.logs or len(twice)):
        return parts
    if all(block.names_rows_of(base.name.instant) for block in blocks):
        return (_naming(part, base, work) for part in parts)
    return map(partial(_refuse_half_deletes, slice_, work, twice), parts) if len(twice) else parts


def _naming(part: LogPart, base: BaseFile, work: WriteWork) -> LogPart:
    """The part with an entry for each row; as it is, if a key is in no row."""
    storage, instant = work.table.storage, base.name.instant
    keys = flat(part.rows.column(RECORD_KEY))
    at, rows = rows_of_keys(storage, base, work.rules, pa.concat_arrays([keys, part.deleted]))
    if len(np.unique(at)) < len(keys) + len(part.deleted):
        return part
    dies = at >= len(keys)
    lives, gone = at[~dies], pa.array(at[dies] - len(keys))
    return replace(
        part,
        entries=pa.array(lives) if len(keys) else None,
        deleted=part.deleted.take(gone),
        ordering=tuple(values.take(gone) for values in part.ordering),
        changed=BaseRows(base=instant, numbers=rows[~dies]),
        gone=BaseRows(base=instant, numbers=rows[dies]),
    )


def _refuse_half_deletes(slice_: FileSlice, work: WriteWork, twice: pa.Array, part: LogPart) -> LogPart:
    _refuse_keys(
        part.deleted.filter(pc.is_in(part.deleted, value_set=twice)),
        slice_,
        work,
        what="a base file has several rows of a key, and a delete in this log file would take only the first",
        expected="keys that the base file has once, or log blocks that name its rows",
        todo="Compact the table, then write again.",
    )
    return part


def _refuse_keys(keys: pa.Array, slice_: FileSlice, work: WriteWork, *, what: str, expected: str, todo: str) -> None:
    """UnsupportedError, if there is a key that the log file of a slice cannot have."""
    if len(keys):
        raise UnsupportedError(
            what,
            path=f"{slice_.partition}/{slice_.file_id}",
            instant=work.instant,
            expected=expected,
            found=f"{len(keys)} others, such as {keys[0].as_py()!r}",
            todo=f"Nothing of this write is visible. {todo}",
        )


def log_of(
    stager: Stager, group: FileGroup, work: WriteWork, pieces: Iterable[Piece], twice: pa.Array | None = None
) -> StagedFile | None:
    """A log file on a group's newest slice with the pieces' rows; None if they have no entries. It has one row per key
    even if duplicates are allowed: readers would merge them by the same rule. `twice`: see `naming_rows`; None: the
    index looks no row up."""
    # A delete by key, and any delete in a table without ordering, wins over all entries before it.
    typed = bool(work.merge.ordering_types) and not work.deletes
    leaving: list[pa.Array] = []
    notes = KeyNotes()
    noted = log_notes(notes, group, work)

    def parts() -> Iterator[LogPart]:
        for won in folded_parts(work, _leaving_noted(work, pieces, leaving, drop=True)):
            gone = pa.array(np.flatnonzero(~won.is_update))
            ordering = tuple(values.take(gone) for values in won.ordering) if typed else ()
            if noted is not None:
                noted.rows(won.keys.filter(pa.array(won.is_update)))
                noted.deletes(won.keys.take(gone), by_value=typed)
            if len(won.keys):
                yield LogPart(rows=won.rows, deleted=won.keys.take(gone), ordering=ordering)
        if leaving:  # the write has no row of these keys for this partition
            yield LogPart(rows=work.row_schema.empty_table(), deleted=pa.concat_arrays(leaving), ordering=())

    return _logged(stager, group, work.appended(group), work, parts(), twice, notes)


def _logged(
    stager: Stager,
    group: FileGroup,
    slice_: FileSlice,
    work: WriteWork,
    found: Iterator[LogPart],
    twice: pa.Array | None,
    notes: KeyNotes,
) -> StagedFile | None:
    """A log file on a slice with these parts. Which of its keys are new is known if they were looked for, and no log
    has deleted some of them since."""
    blocks = [] if twice is None else slice_blocks(work.table.storage, group.slices[-1])
    found = found if twice is None else naming_rows(group, work, found, twice, blocks)
    first = next(found, None)
    if first is None:
        return None
    counted = twice is not None and not any(block_may_delete(block, work.merge.marker) for block in blocks)
    return stager.log(slice_, chain([first], found), notes, counted=counted)


def log_notes(notes: KeyNotes, group: FileGroup, work: WriteWork) -> LogNotes | None:
    """Collects the notes of a log file on a group; None if the table needs none."""
    if not work.notes_keys:
        return None
    slice_, storage = latest_slice(group), work.table.storage
    return LogNotes(notes, storage, work.merge, slice_, every=work.notes_updates)


def new_base(stager: Stager, key: GroupKey, work: WriteWork, pieces: Iterable[Piece]) -> StagedFile | None:
    """The first base file of a file group; None if all rows are deleted."""
    return next(new_bases(stager, key[0], lambda: key[1], math.inf, work, pieces), None)


def new_bases(
    stager: Stager, partition: str, file_id: Callable[[], str], size: float, work: WriteWork, pieces: Iterable[Piece]
) -> Iterator[StagedFile]:
    """Base files of new file groups of about `size` bytes each, until no row is left."""
    tables = (rows for rows in living_rows(work, pieces) if rows.num_rows)
    for first in tables:
        notes = KeyNotes()
        with_meta = (stager.with_meta_columns(rows, partition, "") for rows in chain([first], tables))
        rows = _noted(work, with_meta, notes)
        yield stager.base((partition, file_id()), rows, lambda n: Counts(writes=n, inserts=n), notes, until=size)


def _noted(work: WriteWork, tables: Iterable[pa.Table], notes: KeyNotes) -> Iterator[pa.Table]:
    """The same rows, all of whose keys are new in their file."""
    for rows in tables:
        if work.notes_keys:
            # A copy: the column may be a view of a buffer with all columns, which would be kept in memory.
            notes.added.append(pa.concat_arrays([flat(rows.column(RECORD_KEY))]))
        yield rows


def living_rows(work: WriteWork, pieces: Iterable[Piece]) -> Iterator[pa.Table]:
    """The pieces' rows without those marked deleted; one row per key if the write combines."""
    if work.deletes:
        return
    if work.combine:
        yield from (won.rows for won in folded_parts(work, pieces))
        return
    for piece in pieces:
        rows = piece.table()
        deleted = work.keyed(rows).deleted
        yield rows if deleted is None else rows.filter(pa.array(~deleted))


def folded(work: WriteWork, pieces: Iterable[Piece]) -> Winners:
    """One entry per key, by the table's merge rule, in order of the keys' first appearance. In memory."""
    fold = work.fold()
    for piece in pieces:
        work.add(fold, piece.table())
    return fold.finish()


def folded_parts(work: WriteWork, pieces: Iterable[Piece]) -> Iterator[Winners]:
    """The same in parts with different keys: one part, or more if it would exceed the memory limit."""
    with ExitStack() as stack:
        fold, spill = work.fold(), None
        for piece in pieces:
            work.add(fold, piece.table())
            if fold.nbytes > work.rules.fold_bytes:
                folder = stack.enter_context(spill_folder(work.rules.spill_folder)) if spill is None else ""
                spill = spill or LogSpill(folder, work.merge, work.row_schema, _SPILL_PARTITIONS)
                spill.add(fold.drain())
        if spill is None:
            yield fold.finish()
            return
        spill.add(fold.drain())
        for number in range(len(spill)):
            yield spill.winners(number)[0]


def done_piece(done: StagedFile) -> Piece:
    """A staged file's record, as it is sent to the driver."""
    return Piece(
        partition=done.partition, target=done.file_id, source=0, number=0, rows=done.writes, payload=done.to_json()
    )


def rewritten_base(stager: Stager, work: WriteWork, slice_: FileSlice, pieces: Iterator[Piece]) -> StagedFile:
    """Rewrites a base file without logs, merged with rows of existing and new keys; one row per key, as in Hudi."""
    base, leaving = _base_rows(work, slice_), list[pa.Array]()
    won = folded(work, _leaving_noted(work, pieces, leaving))
    won = replace(won, rows=stager.with_meta_columns(won.rows, slice_.partition, ""))
    if work.into is not None:  # a new key's row is complete; an update lacks unset columns
        lacks = np.ones(won.rows.num_rows, np.bool_)
        columns = dict.fromkeys(work.into.lacking(won.rows.schema), lacks)
        won = replace(won, lacking=Lacking(columns=columns, schema=won.rows.schema))
    elif won.lacking is not None:
        won = replace(won, lacking=replace(won.lacking, schema=won.rows.schema))
    merge, notes = SliceMerge(replace(work.merge, every_duplicate=not work.table.config.merges_as_1x), won), KeyNotes()
    moved = pa.concat_arrays([pa.array([], pa.string()), *leaving])
    if work.notes_keys and work.notes_updates:
        notes.added.append(won.keys.filter(pa.array(won.is_update)))

    def merged() -> Iterator[pa.Table]:
        for table in base:
            keyed = work.keyed(table, slice_.file_id)
            changes = merge.changes(keyed)
            if work.notes_keys and len(changes.deleted):
                gone = keyed.keys.take(pa.array(changes.deleted))
                # A key that moves is recorded for its new file group: a later record here would remove it.
                notes.deleted.append(gone.filter(pc.invert(pc.is_in(gone, value_set=moved))))
            yield from changes.pieces(table)
        yield from _noted(work, [merge.inserts()[1]], notes)

    def counts(rows: int) -> Counts:
        ledger = merge.ledger(rows)
        ledger.check_itself(f"{slice_.partition}/{slice_.file_id}")
        return Counts(writes=rows, inserts=ledger.inserts, updates=ledger.replaced, deletes=ledger.deleted)

    return stager.base(slice_.key, merged(), counts, notes, slice_)


def _leaving_noted(
    work: WriteWork, pieces: Iterable[Piece], leaving: list[pa.Array], *, drop: bool = False
) -> Iterator[Piece]:
    """The same pieces. Those of their keys that leave the partition are added to `leaving`; `drop`: only there."""
    for piece in pieces:
        table = piece.table()
        if gone := work.are_leaving(table):
            leaving.append(flat(table.column(RECORD_KEY)))
        if not (gone and drop):
            yield piece


def base_with_rows_after(stager: Stager, work: WriteWork, slice_: FileSlice, pieces: Iterator[Piece]) -> StagedFile:
    """Rewrites a base file without logs, with more rows at the end, without looking up their keys (`insert`)."""
    added, notes = 0, KeyNotes()

    def rows() -> Iterator[pa.Table]:
        nonlocal added
        yield from _base_rows(work, slice_)
        for part in living_rows(work, pieces):
            added += part.num_rows
            yield from _noted(work, [stager.with_meta_columns(part, slice_.partition, "")], notes)

    return stager.base(slice_.key, rows(), lambda count: Counts(writes=count, inserts=added), notes, slice_)


def _base_rows(work: WriteWork, slice_: FileSlice) -> Iterator[pa.Table]:
    assert slice_.base is not None
    path, schema, names = slice_.base.path, work.schema.arrow, work.schema.names.at(slice_.base.name.instant)
    read = base_tables(
        work.table.storage, path, schema, work.output.batch_rows, names=names, defaults=work.rules.defaults
    )
    return (rows for rows, _ in read)


def merged_log(
    stager: Stager, group: FileGroup, work: WriteWork, pieces: Iterable[Piece], twice: pa.Array | None = None
) -> StagedFile | None:
    """A log file on the group's newest slice with what the pieces' rows change; None if that is nothing. `twice`: see
    `log_of`; if given, the keys are known to be in the base file, unless a log deletes them. UnsupportedError: see
    `_refuse_after_deletes`."""
    slice_ = latest_slice(group)
    assert slice_ is not None, "a file group without a slice is no target"
    notes = KeyNotes()
    found = _parts(slice_, work, pieces, log_notes(notes, group, work), in_base=twice is not None)
    return _logged(stager, group, group.slices[-1], work, found, twice, notes)


def _parts(
    slice_: FileSlice, work: WriteWork, pieces: Iterable[Piece], notes: LogNotes | None, *, in_base: bool
) -> Iterator[LogPart]:
    """The inserts; then the updates of some columns with the deletes. Parts without an entry are left out."""
    partial = False
    for won in folded_parts(work, pieces):
        alive, updates = _alive(slice_, work, won.keys, in_base=in_base), won.is_update
        gone, new = pa.array(np.flatnonzero(alive & ~updates)), ~alive & updates
        if new.any() and work.inserts:
            _refuse_after_deletes(slice_, work, won.keys.filter(pa.array(new)), partial=partial)
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
    return living_in(storage, slice_, work.rules, keys)


def _refuse_after_deletes(slice_: FileSlice, work: WriteWork, keys: pa.Array, *, partial: bool) -> None:
    """UnsupportedError: with merges by commit time, Hudi 1.2 cannot read a row after a delete of its key, in a log that
    has updates of some columns before it. `partial`: this file has such updates before these keys' rows."""
    storage = work.table.storage
    if work.merge.mode is not MergeMode.COMMIT_TIME:
        return
    if not partial and not any(block.is_partial for block in slice_blocks(storage, slice_)):
        return
    _refuse_keys(
        keys.filter(pc.is_in(keys, value_set=_deleted(slice_, work))),
        slice_,
        work,
        what="Hudi cannot read rows of deleted keys in a log that has updates of some columns",
        expected="keys that the log does not delete",
        todo="Compact the table, then write again; or leave these rows out.",
    )


def _deleted(slice_: FileSlice, work: WriteWork) -> pa.Array:
    with ExitStack() as stack:
        out = project(work.schema.arrow, work.rules.keys.fields)
        found, _ = read_logs(work.table.storage, slice_, work.rules, out, stack)
        parts = [found.winners(n)[0] for n in range(len(found))] if isinstance(found, LogSpill) else [found]
        gone = [won.keys.filter(pa.array(~won.is_update)) for won in parts]
    return pa.concat_arrays([pa.array([], pa.string()), *gone])
