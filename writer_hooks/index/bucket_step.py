"""The last step of a write with the bucket index: each bucket's rows become a log file, or its first base file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, groupby, islice
from operator import itemgetter

import numpy as np
import pyarrow as pa

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.parquet_read import open_parquet, readable
from phantombase.timeline.errors import MalformedError, MissingFileError, UnsupportedError, UsageError, in_table
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.record_key import (
    bucket_file_id,
    bucket_of_file_id,
    is_nonblocking_bucket,
    looks_like_bucket,
)
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.table.table import Snapshot
from phantombase.timeline.view.view import FileGroup, latest_base, latest_slice

from ..engine.engine import RowCounts
from ..engine.row_blobs import Piece, by_target
from ..files.stager import StagedFile, Stager, WriteWork
from ..files.stored_keys import base_keys, slice_keys
from ..files.target_files import done_piece, log_of, merged_log, new_base
from ..options import WriteOptions
from .prepare_step import ToBucket

_RECORDED = "phantombase.buckets"
"""In the metadata of a commit: the number of buckets, and the fields that are hashed."""
_FILES_ASKED = 3
_KEYS_ASKED = 1000
_COMMITS_ASKED = 10


@dataclass(frozen=True)
class BucketStep:
    """Makes staged files of pieces whose target is a bucket; returns their records. `route`: see `PrepareRows`."""

    work: WriteWork
    route: ToBucket

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        stager, partition, groups = Stager(self.work, slot), None, dict[int, FileGroup]()
        for (path, target), group in by_target(pieces):
            if path != partition:
                partition, groups = path, self._groups(path)
            self._refuse_nonblocking(path, int(target), groups)
            done = self._bucket(stager, path, int(target), groups.get(int(target)), group)
            if done is not None:
                yield done_piece(done)

    def check_once(self, counts: RowCounts) -> None:
        """Raises what `__call__` would raise for rows of these partitions and buckets; once a process, as `_held`."""
        if held := _held(self.work.table.storage.location, "", self.route):
            return
        for path, targets in groupby(sorted(counts), itemgetter(0)):
            groups = self._groups(path)
            for _, target in targets:
                self._refuse_nonblocking(path, int(target), groups)
        held.append(len(counts))

    def _groups(self, partition: str) -> dict[int, FileGroup]:
        there = [group for group in self.work.groups(partition) if group.key not in self.work.replaced]
        refuse_two_of_one_bucket(there)
        self._check_keys(there or living_elsewhere(self.work, partition))
        return {bucket: group for group in there if (bucket := bucket_of_file_id(group.file_id)) is not None}

    def _refuse_numbers(self, groups: Iterable[FileGroup]) -> None:
        """UsageError: a file group is none of these buckets."""
        for group in groups:
            bucket = bucket_of_file_id(group.file_id)
            if bucket is None or bucket >= self.route.targets:
                raise UsageError(
                    "not a table with this bucket index",
                    path=in_table(f"{group.partition}/{group.file_id}"),
                    expected=f"file ids that begin with 8 digits below {self.route.targets}, one per bucket",
                    found=group.file_id,
                    todo="Give the number of buckets with which the table was written, or none for a key index.",
                )

    def _refuse_nonblocking(self, partition: str, bucket: int, there: Mapping[int, FileGroup]) -> None:
        """UnsupportedError: Hudi's writers without conflict checks may open this bucket too."""
        if bucket in there or not self.work.inserts:
            return
        if other := nonblocking_bucket(there.values(), self._newest):
            raise UnsupportedError(
                "opening a bucket beside Hudi's writers with NON_BLOCKING_CONCURRENCY_CONTROL is not supported: "
                "they check no conflicts, so both may open it, and rows would be doubled",
                path=f"{self.work.table.storage.base_path}/{partition}",
                expected=f"a file group of bucket {bucket}",
                found=f"none; other buckets of the table are of such writers: {other}",
                todo="Let Hudi write the first rows of each bucket and partition; upserts of these are accepted.",
            )

    @cached_property
    def _newest(self) -> frozenset[str]:
        return newest_file_ids(self.work.table.with_timeline(self.work.timeline))

    def _check_keys(self, groups: Collection[FileGroup]) -> None:
        """UsageError: existing keys are not in the bucket that `route` gives them. Each file is read once."""
        self._refuse_numbers(groups)
        whole = (group for group in groups if not group.flaws)  # a lost file is no reason to refuse other buckets
        asked = sorted(whole, key=lambda group: (latest_base(group) is None, group.key))
        for group in asked[:_FILES_ASKED]:
            bucket, first = bucket_of_file_id(group.file_id), group.slices[-1]
            path = (latest_base(group) or first.logs[0]).path if latest_base(group) or first.logs else ""
            held = _held(self.work.table.storage.location, path, self.route)
            if held or not path:
                continue
            keys = self._some_keys(group)
            wrong = np.flatnonzero(self.route(keys, 0) != bucket)
            if len(wrong):
                raise UsageError(
                    "this is not the table's bucket index: rows would be doubled",
                    path=in_table(path),
                    expected=f"keys of bucket {bucket} of {self.route.targets}",
                    found=repr(keys[int(wrong[0])].as_py()),
                    todo="Give the number of buckets and the fields with which the table was written.",
                )
            held.append(len(keys))

    def _some_keys(self, group: FileGroup) -> pa.StringArray:
        """Keys of a group's base file, or of its logs: Hudi's bucket writers make groups of logs only."""
        storage, rules, base = self.work.table.storage, self.work.rules, latest_base(group)
        found: list[pa.StringArray] = []
        if base is not None:
            with storage.open_input(base.path, whole=False) as source, readable("base file", base.path):
                found += islice(base_keys(source, open_parquet(source), base.path, rules, _KEYS_ASKED), 1)
        elif (slice_ := latest_slice(group)) is not None:
            found += (flat(held.column(RECORD_KEY)) for held in islice(slice_keys(storage, slice_, rules), 1))
        return found[0] if found else pa.array([], pa.string())

    def _bucket(
        self, stager: Stager, partition: str, bucket: int, group: FileGroup | None, pieces: Iterator[Piece]
    ) -> StagedFile | None:
        work = self.work
        if group is not None:
            work.refuse_unchangeable(group)
            if work.into is not None:
                return merged_log(stager, group, work, pieces)
            return log_of(stager, group, work, pieces)
        if not work.inserts:
            return None
        file_id = bucket_file_id(work.instant, partition, bucket)
        return new_base(stager, (partition, file_id), work, pieces)


@lru_cache(maxsize=4096)
def _held(place: str, path: str, route: ToBucket) -> list[int]:
    """Non-empty if the keys of a file were found in their bucket. It is kept in a cache, since files do not change."""
    return []


def recorded_buckets(config: TableConfig, options: WriteOptions) -> dict[str, str]:
    """What a commit records of its write's bucket index; empty: none. The table itself does not record it."""
    if options.buckets is None:
        return {}
    return {_RECORDED: f"{options.buckets} by {','.join(options.bucket_fields or config.record_key_fields)}"}


def shows_other_index(table: Snapshot, options: WriteOptions) -> bool:
    """Whether the newest write of rows made other file groups than this one would, or hashed keys unknown here."""
    count = options.buckets
    for _, metadata in recent_commits(table):
        ids, stats = list(_file_ids(metadata)), chain.from_iterable(metadata.partition_to_write_stats.values())
        if ids and count is None:  # under a key index no log has inserts
            return all(map(looks_like_bucket, ids)) or any(s.num_inserts and ".log." in (s.path or "") for s in stats)
        if ids and count is not None:
            known = _RECORDED in metadata.extra_metadata
            return not known or any(bucket_of_file_id(one) not in range(count) for one in ids)
    return False


def check_recorded_buckets(table: Snapshot, options: WriteOptions) -> None:
    """UsageError: the newest write that records its buckets had others. A few keys may have the same bucket in both."""
    mine = recorded_buckets(table.config, options).get(_RECORDED)
    if mine is None:
        return
    for requested, metadata in recent_commits(table):
        recorded = metadata.extra_metadata.get(_RECORDED)
        if recorded is not None and recorded != mine:
            raise UsageError(
                "this is not the table's bucket index: rows would be doubled",
                path=table.storage.base_path,
                expected=f"{recorded}, as write {requested} had it",
                found=mine,
                todo="Give the number of buckets and the fields with which the table was written; "
                "insert_overwrite_table may have others.",
            )
        if recorded is not None:
            return


def refuse_two_of_one_bucket(groups: Iterable[FileGroup]) -> None:
    """UsageError: a bucket has two file groups, as after two writers without a common lock. Hudi refuses it too."""
    seen: dict[int | None, FileGroup] = {}
    for group in groups:
        bucket = bucket_of_file_id(group.file_id)
        other = seen.setdefault(bucket, group)
        if other is not group and looks_like_bucket(group.file_id):
            raise UsageError(
                "two file groups of one bucket: a key may be in both",
                path=in_table(f"{group.partition}/{group.file_id}"),
                expected=f"one file group for bucket {bucket}",
                found=f"{other.file_id} and {group.file_id}",
                todo="Read the partition, keep one row for each key, and give these to insert_overwrite with the "
                "table's number of buckets; or delete_partition, then write them.",
            )


def living_elsewhere(work: WriteWork, partition: str) -> list[FileGroup]:
    """File groups of another partition, which the newest write names: a new one does not show the table's index."""
    for _, metadata in recent_commits(work.table.with_timeline(work.timeline)):
        for other in metadata.partition_to_write_stats:
            if other != partition:
                found = [group for group in work.groups(other) if group.key not in work.replaced]
                if found:
                    return found
    return []


def nonblocking_bucket(there: Iterable[FileGroup], newest: Iterable[str]) -> str | None:
    """A bucket that a writer of Hudi with NON_BLOCKING_CONCURRENCY_CONTROL opened: of these, or of `newest_file_ids`,
    as such writers also write into the buckets that others opened."""
    return min(filter(is_nonblocking_bucket, chain((group.file_id for group in there), newest)), default=None)


def newest_file_ids(table: Snapshot) -> frozenset[str]:
    """Those that the newest writes name, in all partitions."""
    return frozenset(chain.from_iterable(_file_ids(metadata) for _, metadata in recent_commits(table)))


def _file_ids(metadata: CommitMetadata) -> Iterator[str]:
    return (stat.file_id for of in metadata.partition_to_write_stats.values() for stat in of)


def recent_commits(table: Snapshot) -> Iterator[tuple[str, CommitMetadata]]:
    """The newest writes, each with its requested time, newest first. A commit that a killed Hudi left incomplete, or
    that was archived since then, is left out."""
    for requested in sorted(table.timeline.completed_writes, reverse=True)[:_COMMITS_ASKED]:
        try:
            metadata = table.commit_metadata(table.timeline.completed_writes[requested])
        except (MalformedError, MissingFileError):
            continue
        yield requested, metadata
