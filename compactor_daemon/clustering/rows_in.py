"""The rows of one group of a clustering: its slices, merged one by one as a compaction does, and their ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import Hashes
from phantombase.timeline.codec.parquet_read import fetched_at_once
from phantombase.timeline.codec.row_hash import hash_keys
from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.format.ledger import COUNTS, MASK, Identity, Ledger, total
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_merge import identity_columns, identity_sum
from phantombase.timeline.merge.slice_stream import SliceStream, base_tables
from phantombase.timeline.merge.spilled_merge import spill_folder, spilling
from phantombase.timeline.metadata_table.index_logs import cannot_hold
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage, open_listed
from phantombase.timeline.view.view import FileSlice

from ..attempt.slice_task import merged_columns

_AHEAD = 4
_KEY_FILES = 64


class KeyTally:
    """Counts rows with the key of an earlier row, by a hash of 64 bits. Memory: `limit` bytes, and a part of the hashes
    on disk; without a limit, all hashes."""

    def __init__(self, stack: ExitStack, limit: int | None, folder: str | None) -> None:
        self._stack, self._limit, self._folder = stack, limit, folder
        self._held: list[Hashes] = []
        self._bytes = 0
        self._files: list[Path] = []

    def add(self, hashes: Hashes) -> None:
        """The keys of the next rows."""
        self._held.append(hashes)
        self._bytes += hashes.nbytes
        if self._limit is not None and self._bytes > self._limit:
            self._spill()

    def repeated(self) -> int:
        """The number of rows, after the last one. StorageError: a file on disk cannot be read."""
        if not self._files:
            return _repeated(self._held)
        self._spill()
        with spilling(str(self._files[0].parent)):
            return sum(_repeated([np.fromfile(file, np.uint64)]) for file in self._files)

    def _spill(self) -> None:
        if not self._files:
            folder = Path(self._stack.enter_context(spill_folder(self._folder)))
            self._files = [folder / str(number) for number in range(_KEY_FILES)]
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *self._held]))
        width = np.uint64((1 << 64) // _KEY_FILES)
        ends = np.searchsorted(hashes, [np.uint64(number) * width for number in range(_KEY_FILES)])
        for path, begin, end in zip(self._files, ends, [*ends[1:], len(hashes)], strict=True):
            with spilling(str(path)), path.open("ab") as file:
                file.write(hashes[begin:end].tobytes())
        self._held, self._bytes = [], 0


def _repeated(parts: list[Hashes]) -> int:
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))


@dataclass(frozen=True, slots=True)
class _Held:
    """Batches of rows in order. `unhashed`: those of them whose hashes are not in a ledger."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    unhashed: list[pa.RecordBatch] = field(default_factory=list)


class RowsIn:
    """The merged rows of the inputs, in order, in large batches. Memory: what merging holds, and `KeyTally`."""

    def __init__(
        self, storage: Storage, rules: SliceRules, inputs: tuple[FileSlice, ...], keys: KeyTally, *, indexed: bool
    ) -> None:
        """`indexed`: the table has a record index, which must be able to hold the keys."""
        self._storage, self._rules, self.inputs, self._indexed = storage, rules, inputs, indexed
        self._ledgers: list[Ledger] = []
        self._base_hash = 0
        self._keys = keys
        self.base_rows = self.log_entries = 0
        """By the footers of base files, and the headers of log blocks."""
        self._merged: set[str] = set()
        self._uncommitted: set[str] = set()
        self._skipped = Counter[str]()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, once; they are counted and hashed on the way. A slice with log files is merged as a compaction
        merges it."""
        held, count = _Held(), 0
        columns, unhashed = merged_columns(self._rules), replace(self._rules, identity=False)
        for slice_, opened in self._opened():
            # The rows of base files alone are hashed here: many files at a time.
            is_merged = bool(slice_.logs) or not self._rules.identity
            rules = self._rules if is_merged else unhashed
            stream = SliceStream(self._storage, slice_, rules, columns, opened=opened)
            for batch in stream.batches():
                if 2 * batch.num_rows >= rules.batch_rows:  # combining large ones would only take memory
                    yield from self._collected(held)
                    yield from self._collected(_Held([batch], [] if is_merged else [batch]))
                    held, count = _Held(), 0
                    continue
                held.rows.append(batch)
                if not is_merged:
                    held.unhashed.append(batch)
                count += batch.num_rows
                if count >= rules.batch_rows:
                    yield from self._collected(held)
                    held, count = _Held(), 0
            self._count(stream)
        yield from self._collected(held)

    def _opened(self) -> Iterator[tuple[FileSlice, Callable[[], pa.NativeFile] | None]]:
        """The inputs. On an object store some base files are prefetched, because of its latency."""
        if self._storage.is_file_system:
            yield from ((one, None) for one in self.inputs)
            return
        columns = len(self._rules.schema.names)

        def fetched(one: FileSlice) -> pa.NativeFile | None:
            base = one.base
            is_small = base is not None and fetched_at_once(base.size, columns, columns)
            return open_listed(self._storage, base.path, base.size) if base is not None and is_small else None

        for one, source in zip(self.inputs, prefetched(self.inputs, fetched, _AHEAD), strict=True):
            yield one, None if source is None else partial(_same, source)

    def _collected(self, held: _Held) -> Iterator[pa.RecordBatch]:
        if not held.rows:
            return
        if held.unhashed:  # as they were read: what combines them is behind the hashes
            self._base_hash += identity_sum([pa.Table.from_batches(held.unhashed)])
        rows = pa.Table.from_batches(held.rows).combine_chunks()
        self._add_keys(rows)
        yield from rows.to_batches(max_chunksize=self._rules.batch_rows)

    def _count(self, stream: SliceStream) -> None:
        counts, ledger = stream.log_counts, stream.ledger(0, 0)
        if ledger.identity is None and self._rules.identity:
            ledger = replace(ledger, identity=Identity(base=0, removed=0, added=0, out=0))
        self._ledgers.append(ledger)
        self.base_rows += stream.base_rows
        self.log_entries += counts.entries
        self._merged.update(counts.merged)
        self._uncommitted.update(counts.uncommitted)
        self._skipped.update({cause.value: number for cause, number in counts.skipped})

    def _add_keys(self, rows: pa.Table) -> None:
        if RECORD_KEY in rows.schema.names:
            for chunk in rows.column(RECORD_KEY).chunks:
                self._keys.add(hash_keys(chunk, 0))
                if self._indexed and (why := cannot_hold(chunk)):
                    raise UnsupportedError(
                        "rows cannot be clustered whose keys the record index cannot hold",
                        path=f"{self.inputs[0].partition}/{self.inputs[0].file_id}",
                        found=why,
                        todo="Let Hudi cluster the table, or drop the index with Hudi.",
                    )

    def logs_read(self) -> LogsRead:
        """What the log files of the inputs contained."""
        return LogsRead(
            merged=tuple(sorted(self._merged)),
            uncommitted=tuple(sorted(self._uncommitted)),
            skipped=dict(self._skipped),
        )

    def opened_bases(self) -> Iterator[tuple[str, pa.NativeFile]]:
        """The open base files of inputs without log files."""
        for one in self.inputs:
            assert one.base is not None, "only base files are copied"
            yield one.base.path, open_listed(self._storage, one.base.path, one.base.size)

    def keys_of(self, path: str, source: pa.NativeFile) -> Iterator[pa.Table]:
        """The identifying columns of an open input, counted and hashed. MalformedError: not the footer's number."""
        schema = project(self._rules.schema, identity_columns(self._rules.schema))
        rows = hash_ = footer_rows = 0
        read = base_tables(self._storage, path, schema, self._rules.batch_rows, open_source=lambda: nullcontext(source))
        for table, footer_rows in read:  # noqa: B007, the last one counts
            rows += table.num_rows
            hash_ += identity_sum([table])
            self._add_keys(table)
            yield table
        if rows != footer_rows:
            raise MalformedError(
                "a Parquet file has other rows than its footer says",
                path=path,
                expected=f"{footer_rows} rows",
                found=f"{rows} rows",
            )
        counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        identity = Identity(base=hash_ & MASK, removed=0, added=0, out=0)
        self._ledgers.append(Ledger(**counts | {"base_rows": rows, "untouched": rows}, identity=identity))
        self.base_rows += footer_rows

    def ledger(self, rows_out: int, hash_out: int) -> Ledger:
        """The sum over the inputs, after `batches`, or after `keys_of` each of them."""
        found = total(self._ledgers)
        identity = found.identity
        if identity is not None:
            identity = replace(identity, base=(identity.base + self._base_hash) & MASK, out=hash_out)
        return replace(found, rows_out=rows_out, identity=identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsRead:
    """The log files of some slices. `merged`: instants of the merged log blocks; `uncommitted`: of blocks whose write
    had not completed; `skipped`: blocks left out, by cause."""

    merged: tuple[str, ...] = ()
    uncommitted: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


def _same(source: pa.NativeFile) -> pa.NativeFile:
    return source
