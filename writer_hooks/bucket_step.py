"""The last step of a write with the bucket index: each bucket's rows become a log file, or its first base file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from timeline.errors import UsageError
from timeline.view import FileGroup
from writer_hooks.bucket import bucket_file_id, bucket_of_file_id
from writer_hooks.pieces import Piece, by_target
from writer_hooks.staging import StagedFile, Stager
from writer_hooks.target_files import done_piece, log_of, new_base
from writer_hooks.work import WriteWork


@dataclass(frozen=True)
class BucketStep:
    """Takes pieces whose target is a bucket number; gives pieces whose payload is a staged file's record."""

    work: WriteWork
    buckets: int

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        stager = Stager(self.work, slot)
        partition, groups = None, dict[int, FileGroup]()
        for (path, target), group in by_target(pieces):
            if path != partition:
                partition, groups = path, self._groups(path)
            done = self._bucket(stager, path, int(target), groups.get(int(target)), group)
            if done is not None:
                yield done_piece(done)

    def _groups(self, partition: str) -> dict[int, FileGroup]:
        """The partition's file groups by bucket."""
        found: dict[int, FileGroup] = {}
        for group in self.work.groups(partition):
            bucket = bucket_of_file_id(group.file_id)
            if bucket is None or bucket >= self.buckets or bucket in found:
                raise UsageError(
                    "not a table with this bucket index",
                    path=f"{partition}/{group.file_id}",
                    expected=f"file ids that begin with 8 digits below {self.buckets}, one a bucket",
                    found=group.file_id,
                    todo="Give the number of buckets the table was written with, or none for a key index.",
                )
            found[bucket] = group
        return found

    def _bucket(
        self, stager: Stager, partition: str, bucket: int, group: FileGroup | None, pieces: Iterator[Piece]
    ) -> StagedFile | None:
        work = self.work
        if group is not None:
            work.refuse_clustered(group)
            return log_of(stager, group.slices[-1], work, pieces)
        file_id = bucket_file_id(work.instant, partition, bucket)
        return new_base(stager, (partition, file_id), work, pieces)
