"""Log files of the record index, made of the keys of a write or clustering.

    task      stage_keys: the keys that one file of a write adds to its file group, or deletes from it, in a file next
              to the staged data file, under a name that readers ignore
    driver    one log file for each file group of the index, staged outside the table lock; named inside the lock

So no key is sent to the driver, and all these files are removed with the write's staging folder. The keys of a
clustering are those of its base files: any process can read them there. The keys are read in portions. In each file
group, a portion becomes an HFile block of the keys with a new location and a block of the deleted keys.
Memory is bounded, whatever the write's size (`LogBounds`):

    a portion and its blocks           bytes of its keys
    keys that are read ahead           number of open files
    log files that are being written   number of open files: on an object store each buffers large parts.
                                       With more file groups the keys are read several times, in passes"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_schema import RECORD_KEY
from ..codec.columns import flat
from ..codec.parquet_read import open_parquet, parquet_batches, readable
from ..errors import UnsupportedError
from ..format.log_encode import delete_block, hfile_block
from ..instants.reserved_times import STAGED_INDEX
from ..prefetch import AHEAD, prefetched
from ..storage.contract import Storage
from ..storage.staged_file import staged_output
from ..table.table import Table, open_metadata_table
from .read import open_slices
from .records.entries import encoder, file_groups_of, location, secondary_record
from .records.hfile import encode_columns
from .records.keys import RECORD_INDEX, RowIndex

_SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("deleted", pa.bool_(), nullable=False)])
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKeys:
    """The keys of one file: its file group, path of the file with the staged keys, or of the base file itself, number
    of keys, bytes of the keys. `written_ms`: the time in their entries; None: that of the instant."""

    partition: str
    file_id: str
    path: str
    count: int
    size: int
    written_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any] | None) -> FileKeys | None:
        """Inverse of `to_json`; None for None."""
        return None if fields is None else FileKeys(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedKeys:
    """The keys of a write or clustering. `memory_limit`: bytes that making log files of them takes approximately.
    `folder`: where these are staged. `replaced`: keys of file groups that the write replaces. For a key in both, the
    entry in `files` counts. `made`: log files that were made of these keys already. `index`: of a secondary index the
    keys are those of its entries."""

    files: tuple[FileKeys, ...]
    memory_limit: int
    folder: str
    replaced: tuple[FileKeys, ...] = ()
    made: IndexLogs | None = None
    index: RowIndex = RowIndex()

    @property
    def ordered(self) -> tuple[FileKeys, ...]:
        """All keys, in an order in which the last entry of a key counts."""
        return tuple(
            one for part in (self.replaced, self.files) for one in sorted(part, key=lambda k: (k.partition, k.file_id))
        )


def stage_keys(
    storage: Storage, group: tuple[str, str], path: str, added: Iterable[pa.Array], deleted: Iterable[pa.Array]
) -> FileKeys:
    """Stages the keys of one file. `group`: partition and file id. StorageError: see `staged_output`."""
    with StagedKeys(storage, path) as file:
        for gone, arrays in ((False, added), (True, deleted)):
            for keys in arrays:
                file.add(keys, gone=gone)
    return file.done(group)


class StagedKeys(ExitStack):
    """A file of staged keys while it is written. StorageError: see `staged_output`."""

    def __init__(self, storage: Storage, path: str) -> None:
        super().__init__()
        self._path, self._count, self._size = path, 0, 0
        output = self.enter_context(staged_output(storage, path))
        self._stream = self.enter_context(pa.ipc.new_stream(output, _SCHEMA))

    def add(self, keys: pa.Array, *, gone: bool = False) -> None:
        """Adds keys; `gone`: that are deleted."""
        table = pa.Table.from_arrays([keys.cast(pa.string()), pa.repeat(pa.scalar(gone), len(keys))], schema=_SCHEMA)
        self._stream.write_table(table, max_chunksize=_BATCH_ROWS)
        self._count, self._size = self._count + len(keys), self._size + keys.nbytes

    def done(self, group: tuple[str, str]) -> FileKeys:
        """The written file, after it was closed."""
        return FileKeys(partition=group[0], file_id=group[1], path=self._path, count=self._count, size=self._size)


_LONGEST_KEY = (1 << 15) - 1
"""The longest key that an HFile can hold, in bytes of UTF-8."""
_BEYOND = r"[\x{10000}-\x{10FFFF}]"
"""Characters that Java and an HFile order differently: Hudi's look-ups use Java's order."""


def cannot_hold(keys: pa.Array) -> str:
    """Why the index cannot hold one of these keys; empty: it can hold all."""
    if pc.any(pc.match_substring_regex(keys, _BEYOND)).as_py():
        return "a key has characters above U+FFFF, which Hudi and HFiles order in different ways"
    if (pc.max(pc.binary_length(keys)).as_py() or 0) > _LONGEST_KEY:
        return f"a key is longer than {_LONGEST_KEY} bytes"
    return ""


def keys_of_base_file(storage: Storage, group: tuple[str, str], path: str) -> FileKeys | str:
    """All keys of a base file, as new ones; text instead: why the index cannot hold one. `group`: partition and file
    id. MalformedError: the file cannot be read."""
    count, size = 0, 0
    for keys, _ in read_keys(opened_keys(storage, path), path):
        if why := cannot_hold(keys):
            return why
        count, size = count + len(keys), size + keys.nbytes
    return FileKeys(partition=group[0], file_id=group[1], path=path, count=count, size=size)


_BASE = ".parquet"


def opened_keys(storage: Storage, path: str) -> pa.NativeFile:
    """A file with staged keys, or a base file."""
    return storage.open_input(path, whole=not path.endswith(_BASE))


def read_keys(source: pa.NativeFile, path: str) -> Iterator[tuple[pa.StringArray, pa.BooleanArray]]:
    """The keys of an opened file, and which of them are deleted, by batches."""
    with source:
        if path.endswith(_BASE):
            with readable("base file", path):
                for batch in parquet_batches(source, open_parquet(source), [RECORD_KEY], _BATCH_ROWS):
                    yield batch.column(0).cast(pa.string()), pa.repeat(pa.scalar(False), batch.num_rows)
        else:
            with pa.ipc.open_stream(source) as stream:
                yield from ((batch.column(0), batch.column(1)) for batch in stream)


_PORTION_ROWS, _PORTION_BYTES = 1 << 19, 256 << 20
_FILES_MAX = 256
_HELD_BYTES = 48 << 20
"""Most bytes that an object store's output file buffers: a part of 16 MiB that fills, and two that are sent."""
_READ_BYTES = 32 << 20
"""Most bytes that an object store fetches when a file is opened."""
_CONTENT_BYTES = 1 << 30
"""Most bytes of a base file, and of the keys of some of them: each is one Arrow array."""
_KEY_BYTES = 24
"""Bytes in memory of a key besides its text."""
_ENTRY_BYTES = 48
"""Bytes of an entry besides key and value: lengths, HBase's fields, checksums, its share of header and trailer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """What memory holds at a time: bytes of a portion's keys, files read ahead, files being written."""

    portion_bytes: int
    ahead: int
    files: int

    @staticmethod
    def of(keys: RecordedKeys, count: int, value_bytes: int, *, is_file_system: bool) -> LogBounds:
        """For an index of `count` file groups and values of this number of bytes (pure).
        A quarter of the limit is for a portion, which has two or three copies, an eighth for reading ahead, and half
        for the files being written. These are about equally large."""
        limit, largest = keys.memory_limit, max((k.size for k in keys.ordered), default=0)
        whole = sum(k.size + k.count * (value_bytes + _ENTRY_BYTES) for k in keys.ordered)
        held = min(_HELD_BYTES, whole // count + 1)
        ahead = min(AHEAD, limit // 8 // (min(largest, _READ_BYTES) + 1))
        files = _FILES_MAX if is_file_system else min(_FILES_MAX, limit // 2 // held)
        return LogBounds(portion_bytes=min(_PORTION_BYTES, limit // 12), ahead=max(1, ahead), files=max(1, files))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLog:
    """A staged log file of one file group: its path, size in bytes, number of entries. `partition`: of the metadata
    table."""

    file_id: str
    path: str
    size: int
    entries: int
    partition: str = RECORD_INDEX


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLogs:
    """The log files of a write. `file_ids`: all file groups that the index had when they were made, in order."""

    file_ids: tuple[str, ...]
    logs: tuple[IndexLog, ...]


def index_file_groups(table: Table, partition: str = RECORD_INDEX) -> tuple[str, ...]:
    """The file ids of an index of a data table, in the order of their numbers. MalformedError: there is none."""
    return tuple(s.file_id for s in open_slices(open_metadata_table(table), partition))


def stage_index_logs(
    table: Table, instant: str, keys: RecordedKeys, schema_text: str, file_ids: tuple[str, ...] | None = None
) -> IndexLogs:
    """Stages the log files; repeatable. `schema_text`: of the metadata table. `file_ids`: of the index; None: those
    that it has. MissingFileError: no such folder."""
    file_ids, storage = file_ids or index_file_groups(table, keys.index.partition), table.storage
    values = _values(table, instant, keys, schema_text)
    bounds = LogBounds.of(keys, len(file_ids), _longest(values), is_file_system=storage.is_file_system)
    logs: list[IndexLog] = []
    for first in range(0, len(file_ids), bounds.files):
        some = range(first, min(first + bounds.files, len(file_ids)))
        with _Files(table, instant, schema_text, keys) as files:
            for portion in _portions(storage, keys, bounds, len(file_ids), some):
                files.add(portion, values)
        logs += files.logs(file_ids)
    return IndexLogs(file_ids=file_ids, logs=tuple(logs))


def _values(table: Table, instant: str, keys: RecordedKeys, schema_text: str) -> pa.BinaryArray:
    """The encoded entry of the keys of each file, in the order of `keys.ordered`."""
    encode, found = encoder(schema_text), list[bytes]()
    for one in keys.ordered:
        if keys.index.column:
            record = secondary_record()
        else:
            moment = table.times.milliseconds(instant) if one.written_ms is None else one.written_ms
            record = location(one.partition, one.file_id, moment)
        found.append(encode(("", record))[1])
    return pa.array(found, pa.binary())


def _longest(values: pa.BinaryArray) -> int:
    return pc.max(pc.binary_length(values)).as_py() or 0


def stage_index_bases(
    table: Table, keys: RecordedKeys, schema_text: str, file_ids: Sequence[str]
) -> Iterator[tuple[IndexLog, bytes]]:
    """The base file of each file group of a new index that has keys: how it is staged, and its content. None of the
    `keys` is deleted or in two files, and each has its time. Memory: a third of the limit for the keys of some file
    groups at a time, which are read again for the next ones, and the content of one base file several times.
    UnsupportedError: a base file would be too large."""
    storage, count, ordered = table.storage, len(file_ids), keys.ordered
    index, values = keys.index, _values(table, "", keys, schema_text)
    longest = _longest(values)
    bounds = LogBounds.of(keys, count, longest, is_file_system=storage.is_file_system)
    held = sum(k.size + _KEY_BYTES * k.count for k in ordered)
    groups = min(count, max(1, count * min(keys.memory_limit // 3, _CONTENT_BYTES) // (held + 1)))
    for first in range(0, count, groups):
        some = range(first, min(first + groups, count))
        portions = list(_portions(storage, keys, bounds, count, some))
        if not portions:
            continue
        rows = pa.concat_tables(portions).select(["group", "key", "file"])
        del portions
        group = np.asarray(rows.column("group"))
        entries, texts = np.bincount(group), np.asarray(pc.binary_length(rows.column("key")))
        sizes = np.bincount(group, texts) + entries * (longest + _ENTRY_BYTES)
        if sizes.max() > _CONTENT_BYTES:  # before `take`, which makes one array
            raise UnsupportedError(
                f"a file group of {index.partition} would be too large",
                path=storage.base_path,
                expected=f"base files of at most {_CONTENT_BYTES} bytes",
                found=f"{int(sizes.max())} bytes, of {entries[sizes.argmax()]} keys",
                todo="Give the new index more of them: --record-index-groups.",
            )
        order = np.argsort(group, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(group[order])) + 1).tolist(), len(order)]
        for start, stop in pairwise(edges):
            own = rows.take(pa.array(order[start:stop]))
            own = own.take(pc.sort_indices(own.column("key")))
            binary = flat(own.column("key")).cast(pa.binary())
            ends = {"minRecordKey": binary[0].as_py(), "maxRecordKey": binary[-1].as_py()}
            info = {"schema": schema_text.encode(), **ends}
            content = encode_columns(binary, values.take(flat(own.column("file"))), info)
            path = f"{keys.folder}/{uuid.uuid4().hex}{STAGED_INDEX}"
            file_id = file_ids[int(group[order[start]])]
            base = IndexLog(partition=index.partition, file_id=file_id, path=path, size=len(content), entries=len(own))
            yield base, content


def _portions(storage: Storage, keys: RecordedKeys, bounds: LogBounds, count: int, some: range) -> Iterator[pa.Table]:
    """Keys of some file groups of the index: group, key, whether it is deleted, number of the file."""
    held: list[pa.Table] = []
    rows, size = 0, 0
    paths = [k.path for k in keys.ordered]
    opened = partial(opened_keys, storage)
    sources = map(opened, paths) if storage.is_file_system else prefetched(paths, opened, bounds.ahead)
    for number, (path, source) in enumerate(zip(paths, sources, strict=True)):
        for batch, deleted in read_keys(source, path):
            group = pa.array(file_groups_of(keys.index, batch, count))
            file = pa.repeat(pa.scalar(number, pa.int64()), len(batch))
            table = pa.table({"group": group, "key": batch, "deleted": deleted, "file": file})
            if len(some) < count:
                table = table.filter((pc.field("group") >= some.start) & (pc.field("group") < some.stop))
            held.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            if rows >= _PORTION_ROWS or size >= bounds.portion_bytes:
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(held)


class _Files(ExitStack):
    """The log files of some file groups while they are written."""

    def __init__(self, table: Table, instant: str, schema_text: str, keys: RecordedKeys) -> None:
        super().__init__()
        self._storage, self._instant, self._schema = table.storage, instant, schema_text
        self._folder, self._partition = keys.folder, keys.index.partition
        self._old = not table.layout.has_completion_times
        self._open: dict[int, tuple[str, IO[bytes]]] = {}
        self._entries: dict[int, int] = {}

    def add(self, portion: pa.Table, values: pa.Array) -> None:
        """Adds the blocks of a portion. Of several entries of one key the last one counts."""
        rows = portion.take(pc.sort_indices(portion, [("group", "ascending"), ("key", "ascending")]))
        rows = rows.combine_chunks()
        group, key = (np.asarray(rows.column("group")), rows.column("key"))
        same = np.asarray(pc.equal(key.slice(1), key.slice(0, len(key) - 1))) & (group[1:] == group[:-1])
        kept = np.append(~same, True)
        rows, group = rows.filter(pa.array(kept)), group[kept]
        edges = np.flatnonzero(np.diff(group)) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(group)], strict=True):
            self._write(int(group[start]), rows.slice(start, stop - start), values)

    def _write(self, group: int, rows: pa.Table, values: pa.Array) -> None:
        there, gone = rows.filter(pc.invert(rows.column("deleted"))), rows.filter(rows.column("deleted"))
        file = self._file(group)
        if there.num_rows:
            keys = flat(there.column("key")).cast(pa.binary())
            content = encode_columns(keys, values.take(flat(there.column("file"))), {"schema": self._schema.encode()})
            file.writelines(hfile_block(content, instant=self._instant, schema_text=self._schema))
        if gone.num_rows:
            paths = pa.repeat(pa.scalar(self._partition), gone.num_rows)
            keys, text = flat(gone.column("key")), self._schema
            file.writelines(delete_block(keys, paths, (), instant=self._instant, schema_text=text, hudi_0x=self._old))
        self._entries[group] = self._entries.get(group, 0) + rows.num_rows

    def _file(self, group: int) -> IO[bytes]:
        if group not in self._open:
            path = f"{self._folder}/{uuid.uuid4().hex}{STAGED_INDEX}"
            self._open[group] = path, self.enter_context(staged_output(self._storage, path))
        return self._open[group][1]

    def logs(self, file_ids: Sequence[str]) -> Iterator[IndexLog]:
        """The written log files, after they were closed."""
        for group, (path, _) in sorted(self._open.items()):
            entry = self._storage.find(path)
            yield IndexLog(
                partition=self._partition,
                file_id=file_ids[group],
                path=path,
                size=entry.size if entry else 0,
                entries=self._entries[group],
            )
