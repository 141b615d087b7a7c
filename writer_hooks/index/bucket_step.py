"""The last step of a write with the bucket index: each bucket's rows become a log file, or its first base file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.bucket import bucket_file_id, bucket_of_file_id
from phantombase.timeline.parquet.read import open_parquet, readable
from phantombase.timeline.view.view import FileGroup, latest_base

from ..engine.row_blobs import Piece, by_target
from ..files.merged_log import merged_log
from ..files.stager import StagedFile, Stager
from ..files.stored_keys import base_keys
from ..files.target_files import done_piece, log_of, new_base
from ..files.task_context import WriteWork
from .prepare_step import ToBucket

_FILES_ASKED = 3
_KEYS_ASKED = 1000


@dataclass(frozen=True)
class BucketStep:
    """Makes staged files from pieces whose target is a bucket number; returns pieces with the files' records.

    `route`: the rule that gave rows their targets.
    """

    work: WriteWork
    route: ToBucket

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        stager = Stager(self.work, slot)
        partition, groups, asked = None, dict[int, FileGroup](), False
        for (path, target), group in by_target(pieces):
            if path != partition:
                partition, groups, asked = path, self._groups(path), False
            there = groups.get(int(target))
            if there is not None and there.key in self.work.replaced:
                there = None
            if there is None and not asked:
                self._check_keys(groups)
                asked = True
            done = self._bucket(stager, path, int(target), there, group)
            if done is not None:
                yield done_piece(done)

    def _groups(self, partition: str) -> dict[int, FileGroup]:
        """The partition's file groups by bucket."""
        found: dict[int, FileGroup] = {}
        for group in self.work.groups(partition):
            bucket = bucket_of_file_id(group.file_id)
            if bucket is None or bucket >= self.route.targets or bucket in found:
                raise UsageError(
                    "not a table with this bucket index",
                    path=f"{partition}/{group.file_id}",
                    expected=f"file ids that begin with 8 digits below {self.route.targets}, one per bucket",
                    found=group.file_id,
                    todo="Give the number of buckets with which the table was written, or none for a key index.",
                )
            found[bucket] = group
        return found

    def _check_keys(self, groups: Mapping[int, FileGroup]) -> None:
        """UsageError: existing keys are not in the bucket that `route` gives them. Called before a bucket is opened."""
        bases = ((bucket, base) for bucket, group in groups.items() if (base := latest_base(group)) is not None)
        for bucket, base in islice(bases, _FILES_ASKED):
            with self.work.table.storage.open_input(base.path, whole=False) as source, readable("base file", base.path):
                asked = base_keys(source, open_parquet(source), base.path, self.work.rules, _KEYS_ASKED)
                for keys in islice(asked, 1):
                    wrong = np.flatnonzero(self.route(keys, 0) != bucket)
                    if len(wrong):
                        raise UsageError(
                            "this is not the table's bucket index: rows would be doubled",
                            path=base.path,
                            expected=f"keys of bucket {bucket} of {self.route.targets}",
                            found=repr(keys[int(wrong[0])].as_py()),
                            todo="Give the number of buckets and the fields with which the table was written.",
                        )

    def _bucket(
        self, stager: Stager, partition: str, bucket: int, group: FileGroup | None, pieces: Iterator[Piece]
    ) -> StagedFile | None:
        work = self.work
        if group is not None:
            work.refuse_unchangeable(group)
            if work.into is not None:
                return merged_log(stager, group, work, pieces, in_base=False)
            return log_of(stager, group, work, pieces)
        if not work.inserts:
            return None
        file_id = bucket_file_id(work.instant, partition, bucket)
        return new_base(stager, (partition, file_id), work, pieces)
