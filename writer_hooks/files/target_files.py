"""The files made of a target's rows: a log file, a new base file, or a rewritten small base file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from phantombase.timeline.arrow.columns import flat
from phantombase.timeline.arrow.spill_file import spill_folder
from phantombase.timeline.avro.schema import RECORD_KEY
from phantombase.timeline.merge.gaps import Lacking
from phantombase.timeline.merge.log_fold import Winners
from phantombase.timeline.merge.slice_merge import SliceMerge
from phantombase.timeline.merge.spill import LogSpill
from phantombase.timeline.read.slice_stream import base_tables
from phantombase.timeline.view.view import FileSlice, GroupKey

from ..engine.row_blobs import Piece
from .stager import Counts, LogPart, StagedFile, Stager
from .task_context import WriteWork

_SPILL_PARTITIONS = 32
"""Each partition is folded by itself, in a quarter of the limit: this is enough for eight times the limit."""


def log_of(stager: Stager, slice_: FileSlice, work: WriteWork, pieces: Iterable[Piece]) -> StagedFile | None:
    """A log file on a slice with the pieces' rows; None if they have no entries.

    It has one row per key even if duplicates are allowed: readers would merge them by the same rule.
    """
    # A delete by key, and any delete in a table without ordering, wins over all entries before it.
    typed = bool(work.merge.ordering_types) and not work.deletes
    leaving: list[pa.Array] = []

    def rows() -> Iterator[Piece]:
        for piece in pieces:
            table = piece.table()
            if work.are_leaving(table):
                leaving.append(flat(table.column(RECORD_KEY)))
            else:
                yield piece

    def parts() -> Iterator[LogPart]:
        for won in folded_parts(work, rows()):
            gone = pa.array(np.flatnonzero(~won.is_update))
            ordering = tuple(values.take(gone) for values in won.ordering) if typed else ()
            if len(won.keys):
                yield LogPart(rows=won.rows, deleted=won.keys.take(gone), ordering=ordering)
        if leaving:  # no row of the write has them here
            yield LogPart(rows=work.row_schema.empty_table(), deleted=pa.concat_arrays(leaving), ordering=())

    found = parts()
    first = next(found, None)
    return stager.log(slice_, chain([first], found)) if first is not None else None


def new_base(stager: Stager, key: GroupKey, work: WriteWork, pieces: Iterable[Piece]) -> StagedFile | None:
    """The first base file of a file group; None if all rows are deleted."""
    return next(new_bases(stager, key[0], lambda: key[1], math.inf, work, pieces), None)


def new_bases(
    stager: Stager, partition: str, file_id: Callable[[], str], size: float, work: WriteWork, pieces: Iterable[Piece]
) -> Iterator[StagedFile]:
    """Base files of new file groups of about `size` bytes each, until no row is left."""
    tables = (rows for rows in living_rows(work, pieces) if rows.num_rows)
    for first in tables:
        with_meta = (stager.with_meta_columns(rows, partition, "") for rows in chain([first], tables))
        yield stager.base((partition, file_id()), with_meta, _all_new, until=size)


def _all_new(rows: int) -> Counts:
    return Counts(writes=rows, inserts=rows)


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


def written_anew(stager: Stager, work: WriteWork, slice_: FileSlice, pieces: Iterator[Piece]) -> StagedFile:
    """Rewrites a base file without logs, merged with rows of existing and new keys; one row per key, as in Hudi."""
    base = _base_rows(work, slice_)
    won = folded(work, pieces)
    won = replace(won, rows=stager.with_meta_columns(won.rows, slice_.partition, ""))
    if work.into is not None:  # a new key's row is whole; an update lacks what it does not set
        lacks = np.ones(won.rows.num_rows, np.bool_)
        columns = dict.fromkeys(work.into.lacking(won.rows.schema), lacks)
        won = replace(won, lacking=Lacking(columns=columns, schema=won.rows.schema))
    elif won.lacking is not None:
        won = replace(won, lacking=replace(won.lacking, schema=won.rows.schema))
    merge = SliceMerge(work.merge, won)

    def merged() -> Iterator[pa.Table]:
        for table in base:
            yield merge.changes(work.keyed(table)).apply(table)
        yield merge.inserts()[1]

    def counts(rows: int) -> Counts:
        ledger = merge.ledger(rows)
        ledger.check_itself(f"{slice_.partition}/{slice_.file_id}")
        return Counts(writes=rows, inserts=ledger.inserts, updates=ledger.replaced, deletes=ledger.deleted)

    return stager.base(slice_.key, merged(), counts, slice_)


def with_rows_behind(stager: Stager, work: WriteWork, slice_: FileSlice, pieces: Iterator[Piece]) -> StagedFile:
    """Rewrites a base file without logs, with more rows at the end, without looking at their keys (`insert`)."""
    added = 0

    def rows() -> Iterator[pa.Table]:
        nonlocal added
        yield from _base_rows(work, slice_)
        for part in living_rows(work, pieces):
            added += part.num_rows
            yield stager.with_meta_columns(part, slice_.partition, "")

    return stager.base(slice_.key, rows(), lambda count: Counts(writes=count, inserts=added), slice_)


def _base_rows(work: WriteWork, slice_: FileSlice) -> Iterator[pa.Table]:
    assert slice_.base is not None
    path, schema = slice_.base.path, work.schema.arrow
    return (rows for rows, _ in base_tables(work.table.storage, path, schema, work.output.batch_rows))
