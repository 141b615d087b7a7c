"""For the record index: the keys that the file groups hold which a write replaces, staged by tasks.

These are the keys that a snapshot reader finds there. A key that logs delete may be alive in another file group by now,
which the index names. Where a delete and a row are compared by ordering values, a compaction may show a key that no
reader sees yet; then the keys are not known.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.metadata_table.index_logs import FileKeys, stage_keys
from phantombase.timeline.read.slice_log import may_delete_by_value
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.view.view import FileSlice, latest_slice

from ..engine.engine import Pieces
from ..engine.row_blobs import Piece, by_target
from ..files.key_notes import cannot_hold, compares
from ..files.stored_keys import slice_keys
from ..files.task_context import WriteWork
from .lookup_step import Slices, bins_of


def replaced_keys(
    rows: Pieces, work: WriteWork, slots: int, replacing: Mapping[str, Sequence[str]]
) -> tuple[FileKeys, ...] | str:
    """The staged keys of replaced file groups; text instead: why they are not known. `replacing`: by partition."""
    slices = [
        slice_
        for partition, file_ids in ((partition, frozenset(ids)) for partition, ids in replacing.items() if ids)
        for group in work.groups(partition)
        if group.file_id in file_ids and (slice_ := latest_slice(group)) is not None
    ]
    bins = bins_of(((slice_,) for slice_ in slices), slots)
    found = rows.map(_ABin(len(bins))).regroup(ReplacedKeysStep(work, bins)).collect() if bins else []
    answers = [json.loads(data) for data in found]
    unknown = next((answer for answer in answers if isinstance(answer, str)), None)
    if unknown is None and len(answers) != sum(map(len, replacing.values())):
        unknown = "the keys of replaced file groups are not known"  # no task for an input without parts
    return unknown or tuple(FileKeys(**answer) for answer in answers)


@dataclass(frozen=True)
class _ABin:
    """Makes a piece without rows for each bin, whatever there is."""

    bins: int

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`."""
        for number in range(self.bins) if slot == 0 else ():
            yield Piece(partition="", target=str(number), source=0, number=0, rows=0, payload=b"")


@dataclass(frozen=True)
class ReplacedKeysStep:
    """Makes a piece for each slice of a bin, in JSON: its `FileKeys`, or why they are not known."""

    work: WriteWork
    bins: Sequence[Sequence[Slices]]

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`."""
        for (_, target), _ in by_target(pieces):
            for slices in self.bins[int(target)]:
                for slice_ in slices:
                    payload = json.dumps(self._staged(slice_)).encode()
                    yield Piece(partition="", target=target, source=0, number=0, rows=0, payload=payload)

    def _staged(self, slice_: FileSlice) -> object:
        work, storage, refused = self.work, self.work.table.storage, list[str]()
        if compares(work.merge) and may_delete_by_value(storage, work.merge.marker, slice_):
            return "rows of replaced file groups are merged by their ordering values with deletes"

        def keys() -> Iterator[pa.Array]:
            for batch in slice_keys(storage, slice_, work.rules):
                held = flat(batch.column(RECORD_KEY))
                if why := cannot_hold(held):
                    refused.append(why)
                yield held

        path = f"{staged_folder(work.instant)}/{uuid.uuid4().hex}.keys"
        staged = stage_keys(storage, (slice_.partition, slice_.file_id), path, (), keys())
        return refused[0] if refused else staged.to_json()
