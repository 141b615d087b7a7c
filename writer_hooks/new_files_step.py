"""The last step of a bulk insert without index: rows as they come, into new base files of about the target size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from writer_hooks.bucket import plain_file_id
from writer_hooks.pieces import Piece, by_target
from writer_hooks.staging import Stager
from writer_hooks.target_files import done_piece, new_bases
from writer_hooks.work import WriteWork


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
