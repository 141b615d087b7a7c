"""The keys to erase, and the files that hold them: every base and log file is read, whatever its instant.

    .csv              columns by name: those of the record key; the partition columns too, or none of them
    .parquet          the same
    .json, .jsonl     the same, one object a line
    any other         each line is a record key, as `_hoodie_record_key` shows it; UTF-8, lines end with LF or CR LF

Without partition columns a key is erased in every partition. Other columns are left out. The encoding of keys and
folders is that of the table's writers (`schema/key_encoding`).

A block of a log file counts even where no reader merges it: of a write that was rolled back, say. A block that cannot
be decoded may hold any key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from phantombase.compactor_daemon.undo.savepoint import savepoints
from phantombase.timeline.codec.arrow_schema import arrow_schema, project
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.parquet_read import open_parquet, readable
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import MalformedError, MissingFileError, UnsupportedError, UsageError, reason_of
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.log_block import BlockKind, LogBlock, scan_blocks
from phantombase.timeline.format.log_decode import decode_rows
from phantombase.timeline.format.log_deletes import decode_deletes
from phantombase.timeline.instants.reserved_times import STAGED_DATA
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.records.keys import COLUMN_STATS, OF_ROWS, PARTITION_STATS
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.pins import live_pins
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Entry, Storage, listed_if_there, open_listed
from phantombase.timeline.storage.folders import METADATA_FOLDER, RECORDS, ROWS, TEMPORARY, WRITES, join
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import GroupKey, TableView

from ..files.stored_keys import base_keys
from ..schema.key_encoding import generator_of

_KEY, _PARTITION = "key", "partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList:
    """Distinct record keys, in `rows` (columns `key` and, if they are erased in some partitions only, `partition`)."""

    rows: pa.Table
    _lookups: Mapping[str | None, KeyLookup] = field(repr=False)

    @staticmethod
    def of(keys: pa.Array, partitions: pa.Array | None = None) -> KeyList:
        """UsageError: no keys."""
        columns = {_KEY: keys} if partitions is None else {_KEY: keys, _PARTITION: partitions}
        rows = pa.table(columns).group_by(list(columns)).aggregate([]).combine_chunks()
        if not rows.num_rows:
            raise UsageError("there are no keys to erase", found="an empty list", expected="a key or more")
        if partitions is None:
            return KeyList(rows=rows, _lookups={None: KeyLookup(flat(rows.column(_KEY)))})
        of = rows.column(_PARTITION)
        each = {one: flat(rows.filter(pc.equal(of, one)).column(_KEY)) for one in pc.unique(of).to_pylist()}
        return KeyList(rows=rows, _lookups={one: KeyLookup(keys) for one, keys in each.items()})

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def of_partition(self, partition: str) -> KeyLookup | None:
        return self._lookups.get(partition, self._lookups.get(None))

    def digest(self, salt: str) -> str:
        """SHA-256, in hex digits, of the salt and of the sorted keys, a line each: the partition and a tab, if they are
        erased there only, and the key. Who has the list can compute it; the keys do not follow from it."""
        lines = self.rows.column(_KEY)
        if _PARTITION in self.rows.column_names:
            lines = pc.binary_join_element_wise(self.rows.column(_PARTITION), lines, "\t")
        ended = pc.binary_join_element_wise(flat(lines), "", "\n")
        ordered = ended.take(pc.sort_indices(ended))  # a new array: its bytes begin at 0
        made = hashlib.sha256(salt.encode())
        made.update(memoryview(ordered.buffers()[2])[: pc.sum(pc.binary_length(ordered)).as_py()])
        return made.hexdigest()


def read_keys(path: Path, table: Table) -> KeyList:
    """The keys of a file. UsageError: it cannot be read, or see `keys_of_rows`. UnsupportedError: a keyless table."""
    config, read = table.config, _READERS.get(path.suffix.lower())
    _refuse_keyless(table)
    own = arrow_schema(table.with_timeline(table.load_timeline()).newest_schema().commit_text)
    named = dict.fromkeys(_top(name, own) for name in (*config.record_key_fields, *config.partition_fields))
    try:
        if read is None:
            # A key may have any other character that separates lines in Unicode. Editors put a byte order mark.
            lines = [line.removesuffix("\r") for line in path.read_bytes().decode("utf-8-sig").split("\n")]
            return KeyList.of(pa.array(filter(None, lines), pa.string()))
        return keys_of_rows(read(path, project(own, tuple(named))), table)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise UsageError(
            "the list of keys cannot be read",
            path=str(path),
            found=reason_of(error).partition(". Detail:")[0],
            todo="Check that the file is what its ending says: .csv, .parquet or .json.",
        ) from error
    except UsageError as error:
        raise error.at(str(path)) from error


def keys_of_rows(rows: pa.Table, table: Table) -> KeyList:
    """The keys of rows with the key columns, and the partition columns or none of them. UsageError: a column is
    missing, a row has no key, or there are no rows. UnsupportedError: a keyless table."""
    config = table.config
    _refuse_keyless(table)
    names = frozenset(rows.column_names)
    there = [name for name in config.partition_fields if _top(name, rows.schema) in names]
    if there and len(there) < len(config.partition_fields):
        raise UsageError(
            "the list of keys has only some of the partition columns",
            expected=f"{', '.join(config.partition_fields)}, or none of them",
            found=", ".join(there),
        )
    if not rows.num_rows:
        raise UsageError("there are no keys to erase", found="an empty list", expected="a key or more")
    keys = generator_of(table, {}, moves=not there)
    return KeyList.of(keys.keys(rows), keys.partition_paths(rows) if there else None)


def _refuse_keyless(table: Table) -> None:
    if table.config.is_keyless:
        raise UnsupportedError(
            "erasing needs key columns, which a keyless table does not have",
            path=table.storage.base_path,
            todo="Delete the rows by Hudi's SQL.",
        )


def _top(name: str, schema: pa.Schema) -> str:
    """The column of a field, which may be inside a record."""
    return name if name in schema.names else name.partition(".")[0]


def _csv(path: Path, wanted: pa.Schema) -> pa.Table:
    """Columns that the table does not have are read as text, and left out."""
    options = pa.csv.ConvertOptions(column_types={f.name: f.type for f in wanted}, strings_can_be_null=False)
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    return _only(pa.csv.read_csv(path, parse_options=parse, convert_options=options), wanted)


def _json(path: Path, wanted: pa.Schema) -> pa.Table:
    options = pa.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    found = pa.json.read_json(path, parse_options=options)
    # A column of the schema that no object has is null throughout.
    return found.select([name for name in found.column_names if found.column(name).null_count < found.num_rows])


def _parquet(path: Path, wanted: pa.Schema) -> pa.Table:
    there = frozenset(pq.read_schema(path).names)
    return _only(pq.read_table(path, columns=[name for name in wanted.names if name in there]), wanted)


def _only(found: pa.Table, wanted: pa.Schema) -> pa.Table:
    there = frozenset(found.column_names)
    names = [name for name in wanted.names if name in there]
    return found.select(names).cast(pa.schema([wanted.field(name) for name in names]))


_READERS: Mapping[str, Callable[[Path, pa.Schema], pa.Table]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _json),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A file with keys. `keys`: how many rows or entries have one of them. `why`: why it may hold any, instead."""

    partition: str
    file_id: str
    instant: str
    path: str
    keys: int
    why: str = ""

    @property
    def group(self) -> GroupKey:
        return self.partition, self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """`held`: the files with keys, by path. `free`: all others that were read, and their sizes."""

    held: tuple[HeldFile, ...]
    free: Mapping[str, int]


def search(table: Table, rules: SliceRules, keys: KeyList, known: Mapping[str, int]) -> Searched:
    """Reads the files of each partition in which keys are erased. `known`: files that held none when they had these
    sizes. A file that is removed concurrently counts as gone. One that cannot be read may hold any key: see `why`."""
    held, free = list[HeldFile](), dict[str, int]()
    for size, found in prefetched(_files(table, keys), partial(_searched, table.storage, rules, known)):
        if found.keys or found.why:
            held.append(found)
        elif size is not None:
            free[found.path] = size
    return Searched(held=tuple(sorted(held, key=lambda one: one.path)), free=free)


_Item: TypeAlias = tuple[str, Entry, BaseFileName | LogFileName, KeyLookup]


def _files(table: Table, keys: KeyList) -> Iterator[_Item]:
    for partition in table.partitions():
        if (lookup := keys.of_partition(partition)) is not None:
            yield from ((partition, entry, name, lookup) for entry, name in data_files(table, partition))


def _searched(
    storage: Storage, rules: SliceRules, known: Mapping[str, int], item: _Item
) -> tuple[int | None, HeldFile]:
    """The size of a file, None if it is gone, and how many entries have one of the keys."""
    partition, entry, name, lookup = item
    path, size, count, why = join(partition, entry.name), None, 0, ""
    try:
        if known.get(path) != entry.size:
            with open_listed(storage, path, entry.size) as source:
                count = sum(int((lookup.find(part) >= 0).sum()) for part in _keys(source, name, path, rules))
        size = entry.size
    except MissingFileError:
        pass
    except (MalformedError, UnsupportedError) as error:
        why = str(error)
    return size, HeldFile(
        partition=partition, file_id=name.file_id, instant=name.instant, path=path, keys=count, why=why
    )


def _keys(source: pa.NativeFile, name: BaseFileName | LogFileName, path: str, rules: SliceRules) -> Iterator[pa.Array]:
    if isinstance(name, BaseFileName):
        with readable("base file", path):
            yield from base_keys(source, open_parquet(source), path, rules)
    else:
        yield from _log_keys(source, path, rules)


def _log_keys(source: pa.NativeFile, path: str, rules: SliceRules) -> Iterator[pa.Array]:
    for block in scan_blocks(source, path):
        if block.kind is BlockKind.COMMAND:
            continue
        if block.kind is BlockKind.CORRUPT:
            raise MalformedError("a log block that cannot be read may hold any key", path=path)
        if block.kind is BlockKind.DELETE:
            yield from (part.keys for part in decode_deletes(block, source))
        else:
            yield from _row_keys(block, source, rules)


def _row_keys(block: LogBlock, source: pa.NativeFile, rules: SliceRules) -> Iterator[pa.Array]:
    parts = decode_rows(
        block,
        source,
        project(rules.schema, rules.keys.fields),
        float_as_text=rules.float_text_in_logs,
        part_bytes=rules.part_bytes,
        partial=block.is_partial,
        names=rules.names.at(block.instant),
        defaults=rules.defaults,
    )
    return (rules.keys.keys(rows, block.path) for rows in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Shown):
    """A file that still holds keys: how many entries, and what keeps it."""

    path: str
    keys: int
    why: str


def view_now(table: Table) -> TableView:
    return from_one_snapshot(lambda: table.snapshot(cached=False).load_view())


def left_files(table: Table, held: Collection[HeldFile]) -> tuple[Left, ...]:
    """What keeps each file, as far as the table shows it; and staged files, which no search reads."""
    seen = table.with_timeline(table.load_timeline())
    saved: dict[str, str] = {}
    for kept in savepoints(seen):
        for partition, names in kept.savepoint.files.items():
            saved |= {join(partition, name): f"savepoint {kept.instant} keeps it" for name in names}
    pending = {time: f"{one.action} {time} is pending" for time, one in seen.timeline.pending_writes.items()}
    general = [f"pin {pin.name} holds the state at {pin.holds or 'all times'}" for pin in live_pins(table.storage)]
    general += [why for time, why in sorted(pending.items())]
    usual = "; ".join(general) or "readers of the newest state, or of older ones, still need it"
    slices = [slice_ for group in view_now(table).groups for slice_ in group.slices]
    known = {file.path for slice_ in slices for file in slice_.files}
    for slice_ in slices:  # a slice stays or goes as a whole
        if (kept_by := next((saved[file.path] for file in slice_.files if file.path in saved), None)) is not None:
            saved |= dict.fromkeys((file.path for file in slice_.files), kept_by)

    def why(one: HeldFile) -> str:
        if one.why or one.path in saved or one.instant in pending:
            return one.why or saved.get(one.path) or pending[one.instant]
        return usual if one.path in known else "no record names it: see `compactor-daemon orphans TABLE --remove`"

    found = [Left(path=one.path, keys=one.keys, why=why(one)) for one in held]
    below = (join(RECORDS, path) for path, _ in table.storage.list_below(RECORDS))
    staged = sorted(p for p in below if (p.startswith(_WITH_ROWS) or p.endswith(STAGED_DATA)))
    return (
        *found,
        *(Left(path=path, keys=0, why=_STAGED) for path in staged if not path.startswith(_PROBES)),
        *(Left(path=path, keys=0, why=_DROPPED) for path in _dropped(table)),
    )


def _dropped(table: Table) -> list[str]:
    """The folders of indexes with keys that are not kept any more, or were not removed with the metadata table."""
    kept = {join(METADATA_FOLDER, name) for name in table.config.metadata_partitions}
    entries = listed_if_there(table.storage, METADATA_FOLDER) or ()
    of_keys = {join(METADATA_FOLDER, e.name) for e in entries if e.is_folder and e.name.startswith(OF_KEYS)}
    return sorted(of_keys - kept)


_PROBES = (f"{TEMPORARY}/probe-", f"{TEMPORARY}/clock-")
"""Test files of the storage's promises and clock."""
_WITH_ROWS = tuple(f"{folder}/" for folder in (WRITES, ROWS, TEMPORARY))
_STAGED = "an unfinished write or compaction has staged it, and it was not read"
_DROPPED = (
    "an index that is not kept any more; it was not read. `compactor-daemon compact TABLE --drop-metadata-table` "
    "removes it, and so does Hudi where it builds the index again. Without a metadata table, remove the folder"
)
OF_KEYS = (*OF_ROWS, COLUMN_STATS, PARTITION_STATS, "expr_index_")
"""The partitions of the metadata table with keys, or how their names begin: whole keys, and the least and greatest
values of columns."""
