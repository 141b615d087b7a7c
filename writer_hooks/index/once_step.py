"""Refuses a batch with several rows of one key, where it is not said which of them counts: before the write begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.errors import UsageError

from ..engine.engine import Pieces
from ..engine.row_blobs import Piece, by_target, pack


def check_once(rows: Pieces) -> None:
    """UsageError: the batch has a key twice in one partition. `rows`: all of one key come to one target."""
    found = sorted(json.loads(data) for data in rows.map(_keys).regroup(_repeated).collect())
    if found:
        _, key, partition = found[0]
        raise UsageError(
            "several rows of the source match one row of the table",
            expected="one row for each key",
            found=f"{sum(count for count, _, _ in found)} keys with more, such as {key!r} in partition {partition!r}",
            todo="Nothing was written. Choose one row for each key first.",
        )


def _keys(slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The keys of the rows."""
    for piece in pieces:
        yield replace(piece, payload=pack(piece.table().select([RECORD_KEY])))


def _repeated(slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """For each target with repeated keys: their number, one of them, its partition."""
    for (partition, target), group in by_target(pieces):
        keys = pa.chunked_array([c for p in group for c in p.table().column(RECORD_KEY).chunks], pa.string())
        counted = keys.value_counts()
        more = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        if len(more):
            payload = json.dumps([len(more), more[0].as_py(), partition]).encode()
            yield Piece(partition=partition, target=target, source=0, number=0, rows=0, payload=payload)
