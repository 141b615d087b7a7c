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
file: then two base files hold the key, and it is deleted in the first. A row in both would be doubled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.row_hash import row_hashes
from phantombase.timeline.errors import ConflictError, UnsupportedError, UsageError, in_table
from phantombase.timeline.format.record_key import looks_like_bucket, plain_file_id
from phantombase.timeline.merge.gaps import filled
from phantombase.timeline.merge.log_fold import EntryKind, entries_of_rows, settle
from phantombase.timeline.merge.slice_log import may_delete
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.view.view import FileGroup, GroupKey, has_new_keys_in_logs, latest_slice

from ..engine.engine import Pieces, RowCounts
from ..engine.row_blobs import Piece, by_target, piece_of, split
from ..files.stager import StagedFile, Stager, WriteWork
from ..files.stored_keys import living_in
from ..files.target_files import (
    base_with_rows_after,
    done_piece,
    log_of,
    merged_log,
    new_base,
    new_bases,
    rewritten_base,
    with_keys_twice,
)
from ..options import WriteOptions
from .bucket_step import living_elsewhere, recent_commits, refuse_two_of_one_bucket
from .lookup_step import FILE_ID, HITS, KeysToBins, LookupStep, bins_of, keys_twice, looked_into
from .prepare_step import ToSlot


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
        # Not the bits that chose the slot, so that the rows of one slot are spread like all rows.
        fraction = (row_hashes([keys], len(keys)) >> np.uint64(11)) / float(1 << 53)
        found = np.searchsorted(np.asarray(self.until), fraction, side="right")
        return np.minimum(found, len(self.file_ids) - 1).astype(np.int64)


def plan_inserts(
    new_rows: Mapping[str, int],
    groups: Mapping[str, Iterable[FileGroup]],
    busy: frozenset[GroupKey],
    *,
    small_file_bytes: int,
    file_bytes: int,
    row_bytes: float,
) -> tuple[Mapping[str, Spread], frozenset[GroupKey]]:
    """A spread for each partition, and the existing files among their targets. `new_rows`: rows of new keys by
    partition. `busy`: file groups in pending table services."""
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
    return spreads, frozenset(rewritten)


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
            hits, parts, leaving = list[pa.Table](), list[pa.Table](), list[pa.Table]()
            for piece in group:
                table = piece.table()
                if piece.source == HITS:
                    hits.append(table)
                else:
                    (leaving if self.work.are_leaving(table) else parts).append(table)
            hits = [living(self.work, partition, pa.concat_tables(hits))] if hits else []
            yield from chain.from_iterable(keys_twice(table, partition, slot) for table in hits)
            for number, rows in enumerate([combined(self.work, parts), *leaving]):
                for target, part in _by_file(rows, hits):
                    part = part if target != NEW else self._living(partition, part)
                    if part.num_rows:
                        yield piece_of(part, partition=partition, target=target, source=slot, number=number)

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
                yield replace(piece, target=spread.file_ids[code], rows=part.num_rows, payload=part)


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
        twice, pieces = with_keys_twice(pieces)
        uncombined = replace(self.work, combine=False)  # these rows are combined already, if they must be
        if group is None:
            return new_base(stager, key, uncombined, pieces)
        self.work.refuse_unchangeable(group)
        if key in self.rewritten:
            if self.appends:
                return base_with_rows_after(stager, uncombined, group.slices[-1], pieces)
            return rewritten_base(stager, self.work, group.slices[-1], pieces)
        made = log_of if self.work.into is None else merged_log
        return made(stager, group, self.work, pieces, twice)


_TELLING_BYTES = 4 << 20


@dataclass(frozen=True)
class KeyIndex:
    """Updates and deletes go to the file that holds their key, inserts to small or new base files."""

    work: WriteWork
    options: WriteOptions
    slots: int

    def upsert(self, rows: Pieces, counts: RowCounts) -> list[bytes]:
        """Stages an upsert or a delete. `rows`: grouped by slots of `ToSlot(slots)`; `counts`: their summary."""
        groups = self.groups(counts)
        hits = self._lookup(rows, groups)
        with (rows.union(hits) if hits is not None else rows).regroup(JoinStep(self.work)).kept() as found:
            return self._write(found, groups, found.row_counts())

    def insert(self, rows: Pieces, counts: RowCounts) -> list[bytes]:
        """Stages rows without looking up their keys. `rows`: as for `upsert`, if the write combines."""
        if not self.work.combine:
            return self._append(rows, counts)
        with rows.regroup(JoinStep(self.work)).kept() as combined:
            return self._append(combined, combined.row_counts())

    def _append(self, rows: Pieces, counts: RowCounts) -> list[bytes]:
        new: defaultdict[tuple[str, str], int] = defaultdict(int)
        for (partition, _), count in counts.items():
            new[partition, NEW] += count
        return self._write(rows, self.groups(new), new, appends=True)

    def groups(self, rows: Iterable[tuple[str, str]]) -> dict[str, list[FileGroup]]:
        """File groups of the partitions that have rows, without replaced ones; only those partitions are listed.
        UsageError: they are those of a bucket index."""
        partitions = sorted({partition for partition, _ in rows})
        found = dict(zip(partitions, prefetched(partitions, self.work.groups), strict=True))
        for partition, groups in found.items():
            _refuse_buckets(partition, groups)
        if found and not any(found.values()):
            elsewhere = living_elsewhere(self.work, partitions[0])
            _refuse_buckets(elsewhere[0].partition if elsewhere else "", elsewhere)
        return {p: [g for g in groups if g.key not in self.work.replaced] for p, groups in found.items()}

    def check(self, counts: RowCounts, *, looks_up: bool) -> None:
        """Raises what `upsert`, which looks up keys, or `insert` would raise for the file groups that are there."""
        for groups in self.groups(counts).values():
            if looks_up:
                new_keys_in_logs(self.work, groups)

    def _lookup(self, rows: Pieces, groups: Mapping[str, list[FileGroup]]) -> Pieces | None:
        """The hits: which file holds which key. None if there is no file to read."""
        merged = frozenset().union(*(new_keys_in_logs(self.work, of) for of in groups.values()))
        found = {p: [s for g in of if (s := looked_into(g, merged=g.key in merged))] for p, of in groups.items()}
        bins = {p: bins_of(of, self.slots) for p, of in found.items() if of}
        if not bins:
            return None
        step = LookupStep(self.work.table.storage, bins, ToSlot(self.slots), self.work.rules, merged)
        return rows.map(KeysToBins({p: len(of) for p, of in bins.items()})).regroup(step)

    def _write(
        self, rows: Pieces, groups: Mapping[str, list[FileGroup]], counts: RowCounts, *, appends: bool = False
    ) -> list[bytes]:
        """Writes rows to their files. `appends`: the plan places all rows, and they change no existing row."""
        spreads, rewritten = plan_inserts(
            {partition: count for (partition, target), count in counts.items() if target == NEW and count},
            groups,
            self.work.clustering,
            small_file_bytes=0 if self.work.table.config.captures_changes else self.options.small_file_bytes,
            file_bytes=self.options.file_bytes,
            row_bytes=row_bytes(self.work),
        )
        assigned = rows.map(AssignStep(spreads, appends))
        return assigned.regroup(KeyStep(self.work, rewritten, appends)).collect()


def row_bytes(work: WriteWork) -> float:
    """The size of a row in a base file, from the newest commits that wrote base files, as Hudi estimates it. Small
    files are left out: most of a file of few rows is its key filter, of 430 kB."""
    for _, metadata in recent_commits(work.table.with_timeline(work.timeline)):
        stats = [s for of in metadata.partition_to_write_stats.values() for s in of]
        full = (s for s in stats if s.num_writes > 0 and s.file_size_in_bytes >= _TELLING_BYTES)
        bases = [s for s in full if (s.path or "").endswith(".parquet")]
        if bases:
            return max(1.0, sum(s.file_size_in_bytes for s in bases) / sum(s.num_writes for s in bases))
    return ROW_BYTES


def new_keys_in_logs(work: WriteWork, groups: Iterable[FileGroup]) -> frozenset[GroupKey]:
    """The groups whose logs must be looked into, too: of a delete, or since it is not known what is new in them.
    UnsupportedError: rows are written, and the index of the table, which puts new keys into logs, is another engine's,
    which would double them with its next rows. MissingFileError, MalformedError: a base file is lost or damaged, so
    the index is unknown."""
    found, refused = set[GroupKey](), set[GroupKey]()
    for group in groups:
        for flaw in group.flaws:
            if flaw.is_base:
                raise flaw.error()
        if (has := has_new_keys_in_logs(group, work.facts)) is not False:
            found.add(group.key)
        if has and not work.deletes:
            refused.add(group.key)
    if refused:
        raise UnsupportedError(
            "this table is written with an index that puts new keys into log files",
            path="/".join(min(refused)),
            expected="new keys in base files only, as with Hudi's SIMPLE and BLOOM index",
            found="log files with inserts",
            todo="Write it only with its own writers (for example Flink with a state index), or write to a copy.",
        )
    return frozenset(found)


def _refuse_buckets(partition: str, groups: list[FileGroup]) -> None:
    """UsageError: the file ids are those of a bucket index, which other files would break."""
    if groups and all(looks_like_bucket(g.file_id) for g in groups):
        refuse_two_of_one_bucket(groups)
        raise UsageError(
            "this table has a bucket index",
            path=in_table(f"{partition}/{groups[0].file_id}"),
            todo="Give the number of buckets with which it was written.",
        )
