"""Compacts one file slice: read, merge, stage the base file, check the books, leave an `.ok`.

Runs in a Spark task or in-process. It gives nothing a final name and returns only counts.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor_daemon.options import Bloom, Codec, OutputOptions
from compactor_daemon.records import OK, SliceDone, attempt_folder
from timeline.avro_schema import FILE_NAME
from timeline.bloom import ALWAYS_TRUE, BloomBuilder
from timeline.errors import AttemptDeadError
from timeline.file_name import BaseFileName
from timeline.local_storage import close_output
from timeline.log_scan import Skipped
from timeline.slice_stream import SliceRules, SliceStream
from timeline.storage import Storage
from timeline.view import FileSlice

_LEVELS = {Codec.GZIP: 6}
"""zlib's own default, as Hudi uses it; pyarrow's is 9, four times the time for 0.6 % of size."""

_TOKEN_STAGE = 990_000_000
"""Third part of our write tokens. Spark's are task attempt numbers, which stay far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """Everything needed to compact one slice, picklable. `schema_text`: Avro schema of the file written."""

    instant: str
    attempt: int
    position: int
    slice: FileSlice
    rules: SliceRules
    schema_text: str
    output: OutputOptions

    @property
    def final_name(self) -> BaseFileName:
        """The base file's name once published; unique to the attempt."""
        token = f"{self.position}-{self.attempt}-{_TOKEN_STAGE}"
        return BaseFileName(file_id=self.slice.file_id, token=token, instant=self.instant)

    @property
    def fingerprint(self) -> str:
        """Digest of what the result depends on: inputs with sizes, schema, merge rules."""
        slice_, rules = self.slice, self.rules
        sizes = [(f.path, f.size) for f in ([slice_.base] if slice_.base else [])] + [
            (f.path, f.size) for f in slice_.logs
        ]
        parts = {
            "inputs": sizes,
            "schema": self.schema_text,
            "merge": [
                rules.merge.mode.value,
                [str(t) for t in rules.merge.ordering_types],
                rules.merge.every_duplicate,
            ],
            "keys": [*rules.keys.fields, *rules.ordering_fields],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def compact_slice(storage: Storage, task: SliceTask) -> SliceDone:
    """Stages the slice's new base file and records it; safe to run twice (retries, speculation).

    LedgerError: the books do not balance, and there is no `.ok`. Other errors of the tree: unreadable inputs.
    """
    started = time.monotonic()
    stream = SliceStream(storage, task.slice, task.rules)
    folder = attempt_folder(task.instant, task.attempt)
    staged = f"{folder}/{task.position}-{uuid.uuid4().hex}.parquet"
    rows = _write(storage, staged, stream, task)
    inputs = task.slice
    if inputs.base is None and stream.log_counts.entries == 0:
        storage.delete(staged)  # no base and no log entry: Hudi writes nothing either
        staged_path, final, size, rows_read_back = None, None, 0, 0
    else:
        entry = storage.find(staged)
        staged_path, size = staged, entry.size if entry else 0
        final = f"{inputs.partition}/{task.final_name}" if inputs.partition else str(task.final_name)
        with storage.open_input(staged) as source:
            rows_read_back = pq.read_metadata(source).num_rows
    ledger = stream.ledger(rows)
    where = f"{inputs.partition}/{inputs.file_id}"
    ledger.check(
        footer_rows_in=stream.base_rows,
        header_entries=stream.log_counts.entries,
        footer_rows_out=rows_read_back,
        where=where,
    )
    counts = stream.log_counts
    done = SliceDone(
        position=task.position,
        partition=inputs.partition,
        file_id=inputs.file_id,
        base_instant=inputs.base.name.instant if inputs.base else None,
        base_file=str(inputs.base.name) if inputs.base else None,
        inputs=input_names(inputs),
        fingerprint=task.fingerprint,
        staged=staged_path,
        final=final,
        size=size,
        ledger=ledger,
        log_bytes=inputs.log_bytes,
        log_files=len(inputs.logs),
        log_blocks=counts.blocks,
        corrupt_blocks=counts.skipped_blocks(Skipped.CORRUPT),
        rolled_back_blocks=counts.skipped_blocks(Skipped.ROLLED_BACK),
        skipped={cause.value: number for cause, number in counts.skipped},
        seconds=round(time.monotonic() - started, 3),
    )
    return _record(storage, f"{folder}/{task.position}{OK}", done)


def input_names(slice_: FileSlice) -> tuple[str, ...]:
    """Names of the files a compaction of the slice merges: base first, then logs in order."""
    base = (str(slice_.base.name),) if slice_.base else ()
    return base + tuple(str(log.name) for log in slice_.logs)


def _record(storage: Storage, path: str, done: SliceDone) -> SliceDone:
    """Leaves the `.ok`; when another run of this task was first, its result counts and ours is removed."""
    if storage.find(path.rpartition("/")[0]) is None:
        raise AttemptDeadError("the attempt's folder is gone: it was retired by somebody else", path=path)
    if storage.put_if_absent(path, done.to_json()):
        return done
    winner = SliceDone.from_json(storage.read(path), path)
    if winner.staged != done.staged and done.staged is not None:
        storage.delete(done.staged)
    return winner


def _write(storage: Storage, path: str, stream: SliceStream, task: SliceTask) -> int:
    """Writes the merged rows with Hudi's footer; returns their number."""
    schema, output = task.rules.schema, task.output
    key_column = task.rules.keys.fields[0] if FILE_NAME in schema.names else None
    name = pa.array([str(task.final_name)])
    footer = _Footer(task.schema_text, task.output.bloom)
    file = storage.open_output(path)
    rows = 0
    try:
        writer = pq.ParquetWriter(
            file,
            _written_schema(schema),
            compression=output.codec.value.upper(),
            compression_level=_LEVELS.get(output.codec),
            # True would embed a second copy of all key/values, the bloom filter among them.
            store_schema=False,
        )
        for batch in _in_row_groups(stream.batches(), output.row_group_rows):
            rows += batch.num_rows
            if key_column is not None:
                footer.add(batch.column(key_column))
                names = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows), name)
                batch = batch.set_column(schema.get_field_index(FILE_NAME), FILE_NAME, names)
            writer.write(batch, row_group_size=output.row_group_rows)
        writer.add_key_value_metadata(footer.key_values(has_keys=key_column is not None))
        writer.close()
        close_output(file)
    except BaseException:
        file.close()
        storage.delete(path)
        raise
    return rows


def _written_schema(schema: pa.Schema) -> pa.Schema:
    """The file name column repeats one value: as a dictionary it costs nothing, and Parquet stores plain text."""
    index = schema.get_field_index(FILE_NAME)
    if index < 0:
        return schema
    return schema.set(index, pa.field(FILE_NAME, pa.dictionary(pa.int32(), pa.string())))


class _Footer:
    """The key/values Hudi writes into a base file's footer."""

    def __init__(self, schema_text: str, bloom: Bloom) -> None:
        self._schema_text = schema_text
        self._builder = BloomBuilder() if bloom is Bloom.ON else None
        self._least: str | None = None
        self._greatest: str | None = None

    def add(self, keys: pa.ChunkedArray) -> None:
        if self._builder is not None:
            self._builder.add(keys)
        ends = pc.min_max(keys).as_py()
        if ends["min"] is not None:
            self._least = ends["min"] if self._least is None else min(self._least, ends["min"], key=str.encode)
            self._greatest = ends["max"] if self._greatest is None else max(self._greatest, ends["max"], key=str.encode)

    def key_values(self, has_keys: bool) -> dict[str, str]:
        pairs = {"parquet.avro.schema": self._schema_text, "writer.model.name": "avro"}
        if not has_keys:
            return pairs  # virtual keys: Hudi writes neither filter nor key range
        filter_ = self._builder.finish() if self._builder is not None else ALWAYS_TRUE
        pairs["org.apache.hudi.bloomfilter"] = filter_.text
        pairs["hoodie_bloom_filter_type_code"] = filter_.type_code
        if self._least is not None and self._greatest is not None:
            pairs["hoodie_min_record_key"] = self._least
            pairs["hoodie_max_record_key"] = self._greatest
        return pairs


def _in_row_groups(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Small batches gathered into tables of one row group each; memory: one row group."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= rows:
            head = batch.slice(0, rows - count)
            yield pa.Table.from_batches([*held, head])
            batch, held, count = batch.slice(head.num_rows), [], 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)
