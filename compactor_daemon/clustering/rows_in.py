"""The rows that go into a clustered file: read from its inputs, counted and hashed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.row_hash import hash_keys
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.merge.identity import identity_columns, identity_sum
from phantombase.timeline.merge.ledger import Identity, Ledger
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.slice_stream import base_tables
from phantombase.timeline.storage.contract import Storage, open_listed
from phantombase.timeline.view.view import FileSlice

_AHEAD = 4


class RowsIn:
    """The rows of the inputs, in their order. Files of few rows are put together: each call then does more.

    Memory: what is read, and 8 bytes for each row.
    """

    def __init__(self, storage: Storage, rules: SliceRules, inputs: tuple[FileSlice, ...]) -> None:
        self._storage, self._rules, self.inputs = storage, rules, inputs
        self._rows = self._hash = 0
        self._keys: list[npt.NDArray[np.uint64]] = []
        self.footer_rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, once; they are counted and hashed on the way."""
        held: list[pa.Table] = []
        count = 0
        for path, source in self.opened():
            footer_rows = 0
            read = base_tables(
                self._storage,
                path,
                self._rules.schema,
                self._rules.batch_rows,
                open_source=partial(_same, source),
                defaults=self._rules.defaults,
            )
            for table, footer_rows in read:  # noqa: B007, the last one counts
                held.append(table)
                count += table.num_rows
                if count >= self._rules.batch_rows:
                    yield from self._counted(held)
                    held, count = [], 0
            self.footer_rows += footer_rows
        if held:
            yield from self._counted(held)

    def opened(self) -> Iterator[tuple[str, pa.NativeFile]]:
        """The files; of an object store, whose answers take long, a few are fetched ahead."""
        files = [one.base for one in self.inputs if one.base is not None]
        ahead = 1 if self._storage.is_file_system else _AHEAD
        sources = prefetched(files, lambda file: open_listed(self._storage, file.path, file.size), ahead)
        return zip((file.path for file in files), sources, strict=True)

    def _counted(self, tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        rows = pa.concat_tables(tables).combine_chunks()
        self._add(rows)
        yield from rows.to_batches(max_chunksize=self._rules.batch_rows)

    def _add(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        self._hash = (self._hash + identity_sum([rows])) % (1 << 64)
        if RECORD_KEY in rows.schema.names:
            self._keys += [hash_keys(chunk, 0) for chunk in rows.column(RECORD_KEY).chunks]

    def repeated_keys(self) -> int:
        """How many rows have the key of an earlier one; by a hash of 64 bits, and 0 without meta columns."""
        hashes = np.sort(np.concatenate(self._keys)) if self._keys else np.empty(0, np.uint64)
        return int(np.count_nonzero(hashes[1:] == hashes[:-1]))

    def keys_of(self, path: str, source: pa.NativeFile) -> Iterator[pa.Table]:
        """The columns that identify the rows of an open input, which stays open; they are counted and hashed.

        MalformedError: it has fewer rows than its footer says, or more.
        """
        schema = project(self._rules.schema, identity_columns(self._rules.schema))
        before = self._rows
        footer_rows = 0
        read = base_tables(self._storage, path, schema, self._rules.batch_rows, open_source=lambda: nullcontext(source))
        for table, footer_rows in read:  # noqa: B007, the last one counts
            self._add(table)
            yield table
        if self._rows - before != footer_rows:
            raise MalformedError(
                "a Parquet file has other rows than its footer says",
                path=path,
                expected=f"{footer_rows} rows",
                found=f"{self._rows - before} rows",
            )
        self.footer_rows += footer_rows

    def ledger(self, rows_out: int, hash_out: int) -> Ledger:
        """After `batches`, or `keys_of` each input: all rows are untouched."""
        counts = dict.fromkeys((f.name for f in fields(Ledger) if f.name != "identity"), 0)
        counts |= {"base_rows": self._rows, "untouched": self._rows, "rows_out": rows_out}
        identity = Identity(base=self._hash, removed=0, added=0, out=hash_out)
        return Ledger(**counts, identity=identity)


def _same(source: pa.NativeFile) -> pa.NativeFile:
    return source
