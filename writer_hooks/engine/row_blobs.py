"""Rows in a Spark shuffle as a few large blobs, and the files that hold the blobs between stages.

Spark moves rows one by one, and converts each to Arrow and back at every Python step. A *piece* is an Arrow table of
rows that all have one target, as one binary value: the shuffle copies bytes, and Python uses them without conversion.

A `Spool` keeps large pieces in files on the table's storage, which executors reach anyway; the shuffle moves only
references. Spark would copy a piece from Python to the JVM, into a cache, through the shuffle, and back; a file is
written once and mapped by its reader."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantombase.compactor_daemon.cleaning.orphan_choice import ROWS_S
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import StorageError
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE, RECORDS, ROWS

PIECE = pa.schema(
    [
        ("partition", pa.string()),
        ("target", pa.string()),
        ("source", pa.int64()),
        ("number", pa.int64()),
        ("rows", pa.int64()),
        ("payload", pa.binary()),
    ]
)
"""The schema of pieces as an Arrow table."""
SPARK_PIECE = "partition string, target string, source long, number long, rows long, payload binary"
"""The same schema for Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of one partition path for one target. The next step gives the target its meaning. `source` and `number`
    are the place of the rows in the input: sorted by them, pieces have the input's order. `payload`: a table is packed
    only where the piece leaves its process."""

    partition: str
    target: str
    source: int
    number: int
    rows: int
    payload: bytes | pa.Buffer | pa.Table

    @property
    def order(self) -> tuple[str, str, int, int]:
        """The sort key: it keeps the pieces of one target together, in the input's order."""
        return self.partition, self.target, self.source, self.number

    def table(self) -> pa.Table:
        return self.payload if isinstance(self.payload, pa.Table) else pa.ipc.open_stream(self.payload).read_all()

    @property
    def data(self) -> bytes | pa.Buffer:
        """The payload outside of its process."""
        return pack(self.payload) if isinstance(self.payload, pa.Table) else self.payload


def pack(rows: pa.Table) -> pa.Buffer:
    counted = pa.MockOutputStream()  # a buffer that grows would be copied several times
    _write_stream(counted, rows)
    buffer = pa.allocate_buffer(counted.size())
    _write_stream(pa.FixedSizeBufferWriter(buffer), rows)
    return buffer


def _write_stream(sink: pa.NativeFile, rows: pa.Table) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)


def piece_of(rows: pa.Table, *, partition: str = "", target: str, source: int, number: int) -> Piece:
    return Piece(partition=partition, target=target, source=source, number=number, rows=rows.num_rows, payload=rows)


def fact(payload: bytes, *, partition: str = "", target: str = "") -> Piece:
    """A piece without rows: a result of a step."""
    return Piece(partition=partition, target=target, source=0, number=0, rows=0, payload=payload)


def split(rows: pa.Table, codes: npt.NDArray[np.int64]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each code, in their order. `codes`: one per row."""
    if not len(codes):
        return
    few = int(codes.max()) <= np.iinfo(np.int16).max  # numpy sorts 16 bits by their digits
    order = np.argsort(codes.astype(np.int16) if few else codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(starts[1:], len(codes))
    table = rows if len(starts) == 1 else rows.take(pa.array(order)).combine_chunks()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield int(ordered[start]), table.slice(start, end - start)


def by_target(pieces: Iterable[Piece]) -> Iterator[tuple[tuple[str, str], Iterator[Piece]]]:
    return groupby(pieces, key=lambda piece: (piece.partition, piece.target))


_NAMES = [f.name for f in fields(Piece)]


def to_batch(pieces: Sequence[Piece]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([_plain(p, name) for p in pieces], PIECE.field(name).type) for name in _NAMES], schema=PIECE
    )


def _plain(piece: Piece, name: str) -> Any:
    value = piece.data if name == "payload" else getattr(piece, name)
    return value.to_pybytes() if isinstance(value, pa.Buffer) else value


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in batches:
        columns = [batch.column(name) for name in _NAMES]
        for row in range(batch.num_rows):
            yield Piece(**{name: column[row].as_py() for name, column in zip(_NAMES, columns, strict=True)})


_REFERENCE = b"#piece "


@contextmanager
def _keeping(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError("the rows of a write could not be kept", path=path, found=str(error)) from error


@dataclass(frozen=True, slots=True)
class Spool:
    """The files of one write's pieces. `small_bytes`: smaller payloads are sent unchanged. Picklable."""

    storage: Storage
    folder: str
    small_bytes: int = 16 << 10

    @staticmethod
    def new(storage: Storage) -> Spool:
        """A spool with a folder of its own, which is made with the first piece."""
        return Spool(storage, f"{ROWS}/{clock_ms()}-{uuid.uuid4().hex}")

    def put(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces with references as payloads. When the iterator is exhausted, all payloads are written."""
        path, file, end = f"{self.folder}/{uuid.uuid4().hex}", None, 0
        try:
            for piece in pieces:
                data = piece.data
                size = len(memoryview(data))
                if size < self.small_bytes:
                    yield replace(piece, payload=data)
                    continue
                with _keeping(path):
                    file = file or self.storage.open_output(path)
                    file.write(data)
                yield replace(piece, payload=_REFERENCE + json.dumps([path, end, size]).encode())
                end += size
            if file is not None:
                with _keeping(path):
                    file.close()
        finally:
            if file is not None:
                with suppress(OSError, StorageError):  # the first error counts
                    file.close()

    def get(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Inverse of `put`: payloads are mapped, not read."""
        files: dict[str, pa.NativeFile] = {}
        for piece in pieces:
            data = piece.payload
            if isinstance(data, pa.Table) or bytes(memoryview(data)[: len(_REFERENCE)]) != _REFERENCE:
                yield piece
                continue
            path, start, size = json.loads(bytes(data)[len(_REFERENCE) :])
            if path not in files:
                files[path] = self.storage.open_input(path)
            files[path].seek(start)
            yield replace(piece, payload=files[path].read_buffer(size))

    def bytes_of(self, piece: Piece) -> int:
        """The size of the rows of a piece that `put` gave."""
        payload = bytes(memoryview(piece.data))
        return int(json.loads(payload[len(_REFERENCE) :])[2]) if payload.startswith(_REFERENCE) else len(payload)

    def remove(self) -> None:
        self.storage.delete_folder(self.folder)
        remove_unused(self.storage)


def remove_unused(storage: Storage) -> None:
    """Removes the folders around rows where no table was made: with them the path would look like a table."""
    if storage.is_file_system and storage.find(PROPERTIES) is None:
        all(storage.delete_empty_folder(folder) for folder in (ROWS, RECORDS, HOODIE))


def remove_old(storage: Storage, now_ms: int) -> None:
    """Deletes the folders that killed writes have left."""
    if storage.find(ROWS) is None:
        return
    for entry in storage.list(ROWS):
        since = entry.name.partition("-")[0]
        if since.isdigit() and now_ms - int(since) > ROWS_S * 1000:
            storage.delete_folder(f"{ROWS}/{entry.name}")
