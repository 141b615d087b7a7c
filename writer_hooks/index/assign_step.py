"""The key index, second half: rows are joined with their hits, new keys get a file, and files are written.

join     per slot: one row per key, with the file that holds the key, or none
assign   rows of new keys go to small base files first, then to new ones. The rule is Hudi's: a base file takes inserts
         while it is below the small file limit, has no logs, and is in no pending table service. A hash of the key
         gives a row its file, in proportion to the capacity of each file
write    rows of existing keys become a log file, rows of new keys a base file; both together rewrite a small base file.
         A bulk insert without index writes rows in input order to new base files of about the target size

If several base files of a partition hold a key, its rows go to those where the key is alive (`living`).

A log may delete a key that its base file still has. Hudi's SIMPLE and BLOOM indexes write the key's next row on top of
that delete, and so does this one. Under Hudi's record index a deleted key is a new one, and its next row goes to any
file: then two base files hold the key, and it is deleted in the first. A row in both would be doubled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.row_hash import row_hashes
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.record_key import plain_file_id
from phantombase.timeline.merge.gaps import filled
from phantombase.timeline.merge.log_fold import entries_of_rows, settle
from phantombase.timeline.merge.slice_log import may_delete
from phantombase.timeline.merge.winner import EntryKind
from phantombase.timeline.view.view import FileGroup, GroupKey, latest_slice

from ..engine.row_blobs import Piece, by_target, pack, packed, split
from ..files.stager import StagedFile, Stager
from ..files.stored_keys import living_in
from ..files.target_files import (
    base_with_rows_after,
    done_piece,
    log_of,
    merged_log,
    new_base,
    new_bases,
    rewritten_base,
)
from ..files.task_context import WriteWork
from .lookup_step import FILE_ID, HITS


@dataclass(frozen=True)
class NewFilesStep:
    """Each target's rows become base files of new file groups."""

    work: WriteWork

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        stager = Stager(self.work, slot)
        for (partition, _), group in by_target(pieces):
            for done in new_bases(stager, partition, plain_file_id, self.work.file_bytes, self.work, group):
                yield done_piece(done)


ROW_BYTES = 1024
"""Hudi's estimate of a row's size in a file (`hoodie.copyonwrite.record.size.estimate`)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Files of one partition; each takes rows up to a fraction of all hashes (`until`: ascending, the last is 1)."""

    file_ids: tuple[str, ...]
    until: tuple[float, ...]

    def pick(self, keys: pa.StringArray) -> npt.NDArray[np.int64]:
        """The number of each key's file."""
        # Not the bits that chose the slot, so that the rows of one slot are spread like all rows.
        fraction = (row_hashes([keys], len(keys)) >> np.uint64(11)) / float(1 << 53)
        found = np.searchsorted(np.asarray(self.until), fraction, side="right")
        return np.minimum(found, len(self.file_ids) - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """A spread for each partition with new rows, and the existing files among their targets."""

    spreads: Mapping[str, Spread]
    rewritten: frozenset[GroupKey]


def plan_inserts(
    new_rows: Mapping[str, int],
    groups: Mapping[str, Iterable[FileGroup]],
    busy: frozenset[GroupKey],
    *,
    small_file_bytes: int,
    file_bytes: int,
    row_bytes: float,
) -> InsertPlan:
    """Plans the inserts. `new_rows`: rows of new keys by partition. `busy`: file groups in pending table services."""
    spreads: dict[str, Spread] = {}
    rewritten: set[GroupKey] = set()
    per_file = max(1, int(file_bytes / row_bytes))
    for partition, rows in new_rows.items():
        shares: list[tuple[str, int]] = []
        left = rows
        for group in groups.get(partition, ()):
            capacity = _capacity(group, busy, small_file_bytes, file_bytes, row_bytes)
            if capacity and left:
                shares.append((group.file_id, min(capacity, left)))
                rewritten.add(group.key)
                left -= min(capacity, left)
        files = -(-left // per_file)
        shares += [(plain_file_id(), left // files) for _ in range(files)]
        ends = np.cumsum([share for _, share in shares], dtype=np.float64)
        spreads[partition] = Spread(tuple(i for i, _ in shares), tuple((ends / ends[-1]).tolist()))
    return InsertPlan(spreads, frozenset(rewritten))


def _capacity(
    group: FileGroup, busy: frozenset[GroupKey], small_file_bytes: int, file_bytes: int, row_bytes: float
) -> int:
    """How many more rows a file group's base file may take."""
    last = group.slices[-1]
    if group.flaws or group.pending_compaction is not None or group.key in busy or last.base is None or last.logs:
        return 0
    return int((file_bytes - last.base.size) / row_bytes) if last.base.size < small_file_bytes else 0


def living(work: WriteWork, partition: str, hits: pa.Table) -> pa.Table:
    """The hits without files whose logs delete the key, if another holds it too. Deleted in all, the first stays."""
    counts = hits.group_by(RECORD_KEY).aggregate([(FILE_ID, "count")])
    twice = counts.filter(pc.field(f"{FILE_ID}_count") > 1).column(RECORD_KEY)
    if not len(twice):
        return hits
    several = pc.is_in(hits.column(RECORD_KEY), value_set=flat(twice))
    doubled = hits.filter(several).sort_by([(RECORD_KEY, "ascending"), (FILE_ID, "ascending")])
    keys, files = flat(doubled.column(RECORD_KEY)), flat(doubled.column(FILE_ID))
    alive, groups = np.zeros(len(keys), np.bool_), {g.file_id: g for g in work.groups(partition)}
    for file_id in pc.unique(files).to_pylist():
        here = np.flatnonzero(np.asarray(pc.equal(files, file_id)))
        alive[here[_alive(work, groups.get(file_id), keys.take(pa.array(here)))]] = True
    first = np.append(True, np.asarray(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))))
    group = np.cumsum(first) - 1
    none = np.bincount(group, weights=alive)[group] == 0
    return pa.concat_tables([hits.filter(pc.invert(several)), doubled.filter(pa.array(alive | (first & none)))])


def _alive(work: WriteWork, group: FileGroup | None, keys: pa.Array) -> np.ndarray:
    """Which of the keys, all of them in the base file, a reader finds in the file group."""
    slice_ = None if group is None else latest_slice(group)
    if slice_ is None or not may_delete(work.table.storage, work.merge.marker, slice_):
        return np.ones(len(keys), np.bool_)
    return living_in(work.table.storage, slice_, work.rules, keys)


NEW = ""
"""The target of rows whose key is in no base file."""


@dataclass(frozen=True)
class JoinStep:
    """Makes rows by file id from the hits and rows of a slot; rows of new keys get the target `NEW`."""

    work: WriteWork

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`. Pieces that are hits come first."""
        for (partition, _), group in by_target(pieces):
            hits: list[pa.Table] = []
            parts: list[pa.Table] = []
            leaving: list[pa.Table] = []
            for piece in group:
                table = piece.table()
                if piece.source == HITS:
                    hits.append(table)
                else:
                    (leaving if self.work.are_leaving(table) else parts).append(table)
            hits = [living(self.work, partition, pa.concat_tables(hits))] if hits else []
            for number, rows in enumerate([combined(self.work, parts), *leaving]):
                for target, part in _by_file(rows, hits):
                    part = part if target != NEW else self._living(partition, part)
                    if part.num_rows:
                        yield packed(part, partition=partition, target=target, source=slot, number=number)

    def _living(self, partition: str, rows: pa.Table) -> pa.Table:
        """The rows of new keys without deletes, since there is nothing to delete; none if nothing is inserted. With
        `combine`, a row marked deleted may first have won against another row of the batch. ConflictError: it is a key
        that leaves the partition, and would be in two."""
        if self.work.are_leaving(rows):
            if rows.num_rows:
                raise ConflictError(
                    "a key that leaves its partition is in no base file there",
                    path=partition,
                    instant=self.work.instant,
                    found=repr(rows.column(RECORD_KEY)[0].as_py()),
                    todo="Nothing of this write is visible. Write again (retries=); if that fails alike, compact the "
                    "table.",
                )
            return rows
        if self.work.deletes or not self.work.inserts:
            return rows.slice(0, 0)
        if not self.work.combine:
            return rows
        deleted = self.work.keyed(rows).deleted
        return rows if deleted is None else rows.filter(pa.array(~deleted))


def combined(work: WriteWork, parts: Sequence[pa.Table]) -> pa.Table:
    """One row per key by the table's merge rule, including rows marked deleted; all rows if the write keeps all."""
    rows = pa.concat_tables(parts or [work.row_schema.empty_table()])
    if not work.combine:
        return rows
    if work.deletes:
        return pa.table({RECORD_KEY: rows.column(RECORD_KEY).unique()})
    unset = work.merge.gaps
    settled = settle(work.merge, [entries_of_rows(work.merge, work.keyed(rows))], unset)
    if unset is None or settled.trace is None:
        return rows.take(pa.array(settled.best))
    live = np.asarray(settled.kinds == EntryKind.ROW)
    numbers, wanted = np.arange(rows.num_rows), np.flatnonzero(live)
    merged, _ = filled(unset, rows.schema, rows, numbers, settled.trace, settled.best, wanted)
    both = pa.concat_tables([merged.cast(rows.schema), rows.take(pa.array(settled.best[~live]))])
    return both.take(pa.array(np.argsort(np.append(wanted, np.flatnonzero(~live)))))


def _by_file(rows: pa.Table, hits: Sequence[pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """Rows by the id of the file that holds their key, `NEW` for none; a row whose key is in two files goes to both."""
    if not any(h.num_rows for h in hits):
        yield NEW, rows
        return
    known = pa.concat_tables(hits)
    keys = pa.table({RECORD_KEY: rows.column(RECORD_KEY), "row": np.arange(rows.num_rows)})
    found = keys.join(known, RECORD_KEY, join_type="inner").sort_by("row")
    files = pc.dictionary_encode(flat(found.column(FILE_ID)))
    for code, part in split(rows.take(found.column("row")), np.asarray(files.indices).astype(np.int64)):
        yield files.dictionary[code].as_py(), part
    new = np.ones(rows.num_rows, np.bool_)
    new[np.asarray(found.column("row"))] = False
    yield NEW, rows.filter(pa.array(new))


@dataclass(frozen=True)
class AssignStep:
    """Gives rows of new keys, or `every` row, to the files of their partition's spread; other pieces are unchanged."""

    spreads: Mapping[str, Spread]
    every: bool

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.target != NEW and not self.every:
                yield piece
                continue
            rows, spread = piece.table(), self.spreads[piece.partition]
            for code, part in split(rows, spread.pick(flat(rows.column(RECORD_KEY)))):
                yield replace(piece, target=spread.file_ids[code], rows=part.num_rows, payload=pack(part))


@dataclass(frozen=True)
class KeyStep:
    """Makes staged files by file id. `rewritten`: small files that take new keys. `appends`: without look-up."""

    work: WriteWork
    rewritten: frozenset[GroupKey]
    appends: bool

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        stager = Stager(self.work, slot)
        partition, groups = None, dict[str, FileGroup]()
        for (path, file_id), group in by_target(pieces):
            if path != partition:
                partition, groups = path, {g.file_id: g for g in self.work.groups(path)}
            done = self._file(stager, (path, file_id), groups.get(file_id), group)
            if done is not None:
                yield done_piece(done)

    def _file(
        self, stager: Stager, key: GroupKey, group: FileGroup | None, pieces: Iterator[Piece]
    ) -> StagedFile | None:
        uncombined = replace(self.work, combine=False)  # these rows are combined already, if they must be
        if group is None:
            return new_base(stager, key, uncombined, pieces)
        self.work.refuse_unchangeable(group)
        if key in self.rewritten:
            if self.appends:
                return base_with_rows_after(stager, uncombined, group.slices[-1], pieces)
            return rewritten_base(stager, self.work, group.slices[-1], pieces)
        if self.work.into is not None:
            return merged_log(stager, group, self.work, pieces, in_base=True)
        return log_of(stager, group, self.work, pieces)
