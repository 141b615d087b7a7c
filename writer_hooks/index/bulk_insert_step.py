"""The last step of a bulk insert without index: rows go, in input order, to new base files of about the target size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phantombase.timeline.format.record_key import plain_file_id

from ..engine.row_blobs import Piece, by_target
from ..files.stager import Stager
from ..files.target_files import done_piece, new_bases
from ..files.task_context import WriteWork


@dataclass(frozen=True)
class NewFilesStep:
    """Each target's rows become base files of new file groups."""

    work: WriteWork

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`."""
        stager = Stager(self.work, slot)
        for (partition, _), group in by_target(pieces):
            for done in new_bases(stager, partition, plain_file_id, self.work.file_bytes, self.work, group):
                yield done_piece(done)
