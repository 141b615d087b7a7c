"""Which files of a table hold some keys: every base and log file, whatever its instant, is read.

A block of a log file counts even where no reader merges it: of a write that was rolled back, say. A block that cannot
be decoded may hold any key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.parquet_read import open_parquet
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import MalformedError, MissingFileError, UnsupportedError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.log_block import BlockKind, LogBlock, scan_blocks
from phantombase.timeline.format.log_decode import decode_rows
from phantombase.timeline.format.log_deletes import decode_deletes
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Entry, Storage, open_listed
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import GroupKey

from ..files.stored_keys import base_keys
from .key_list import KeyList


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
        return base_keys(source, open_parquet(source), path, rules)
    return _log_keys(source, path, rules)


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
