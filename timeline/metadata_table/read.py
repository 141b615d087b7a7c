"""Reads the metadata table as Hudi's readers with `hoodie.metadata.enable=true` see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from ..errors import UsageError
from ..log.visibility import Visibility, select_blocks
from ..storage.contract import Storage, open_listed
from ..table.table import Table
from ..view.log_blocks import slice_blocks, visibility_of
from ..view.view import FileSlice, is_replaced, latest_slice
from .location import METADATA_FOLDER, open_metadata_table
from .metadata_view import Completeness, load_metadata_view
from .records.combine import fold, merge, present_files
from .records.decode import Keys, MetadataEntry, base_entries, block_entries
from .records.keys import ALL_PARTITIONS, MetadataRecord, partition_path
from .records.partitions import FILES, PARTITION_STATS
from .valid_instants import refuse_uncompleted, valid_instants


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFiles:
    """The files that the metadata table names: for every partition that it names, file names and sizes in bytes.

    `unnamed`: files of partitions that it does not name; a reader that knows such a partition sees them.
    """

    partitions: Mapping[str, Mapping[str, int]]
    unnamed: Mapping[str, Mapping[str, int]]


def read_files(table: Table, folder: str = "") -> ListedFiles:
    """The `files` partition of a data table's metadata table; errors as in `read_entries`.

    A file that is marked deleted but was never added is left out, as in Hudi by default. `folder`: only partitions at
    or under it.
    """
    keys: Keys = None
    if folder:
        every = (present_files(record) for _, record in read_entries(table, FILES, [ALL_PARTITIONS]))
        named = {partition_path(name) for names in every for name in names}
        below = [p for p in named if p == folder or p.startswith(f"{folder}/")]
        keys = [ALL_PARTITIONS, *sorted({folder, *below})]
    names: Mapping[str, int] = {}
    files: dict[str, dict[str, int]] = {}
    for key, record in read_entries(table, FILES, keys):
        present = present_files(record)
        if key == ALL_PARTITIONS:
            names = {partition_path(name): size for name, size in present.items()}
        else:
            files[partition_path(key)] = present
    if folder:
        names = {name: size for name, size in names.items() if name in below}
    return ListedFiles(
        partitions={name: files.get(name, {}) for name in sorted(names)},
        unnamed={name: files[name] for name in sorted(files.keys() - names)},
    )


def read_entries(table: Table, partition: str, keys: Keys = None) -> Iterator[tuple[str, MetadataRecord]]:
    """The merged entries of one partition of a data table's metadata table, file group by file group.

    Memory holds the log entries of one file group and one block of its base file. Index entries that are marked deleted
    are included: a reader of that index must skip them. `keys`: only these are needed.
    UsageError: the metadata table, or this partition of it, is off or still being built. MalformedError,
    UnsupportedError: its files cannot be read. MissingFileError: a file was removed meanwhile, see
    `consistent`, or see `refuse_uncompleted`.
    """
    built = table.config.built_metadata_partitions
    if partition not in built:
        raise UsageError(
            "the metadata table does not have this partition",
            path=f"{table.storage.base_path}/{METADATA_FOLDER}/{partition}",
            expected=", ".join(built) or "none: it is off",
            todo="Let Hudi build it, or list the storage.",
        )
    # The data table's timeline first: entries of an instant that completes later may be included, but none is missed.
    data = table.load_timeline()
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, {partition})
    if partition in _NEVER_LESS:
        refuse_uncompleted(table, data, metadata, view.timeline)
    valid = valid_instants(table, data, view.timeline)
    visibility = visibility_of(view.timeline)
    complete = Completeness(metadata, view.timeline) if partition in _NEVER_LESS else None
    for group in view.groups:
        slice_ = latest_slice(group)
        if slice_ is not None and not is_replaced(group, view.facts):
            yield from slice_entries(metadata.storage, slice_, visibility, valid, keys, complete)


_NEVER_LESS = (FILES, PARTITION_STATS)
"""Without an entry a reader would leave rows out; of another index it does without."""


def slice_entries(
    storage: Storage,
    slice_: FileSlice,
    visibility: Visibility,
    valid: frozenset[str],
    keys: Keys = None,
    complete: Completeness | None = None,
) -> Iterator[tuple[str, MetadataRecord]]:
    """The merged entries of one file slice. `valid`: see `valid_instants`. `complete`: asked before the first entry.

    Errors as in `read_entries`.
    """
    logs = fold(_log_entries(storage, slice_, visibility, valid, keys, complete))
    if slice_.base is None:
        yield from merge((), logs)
        return
    with open_listed(storage, slice_.base.path, slice_.base.size) as source:
        yield from merge(base_entries(source.read_buffer(), slice_.base.path, keys), logs)


def _log_entries(
    storage: Storage,
    slice_: FileSlice,
    visibility: Visibility,
    valid: frozenset[str],
    keys: Keys,
    complete: Completeness | None,
) -> Iterator[MetadataEntry]:
    with ExitStack() as stack:
        sources = {log.path: stack.enter_context(open_listed(storage, log.path, log.size)) for log in slice_.logs}
        blocks = slice_blocks(storage, slice_)
        if complete is not None:
            complete.check(slice_, blocks)
        for block in select_blocks(blocks, visibility).blocks:
            if block.instant in valid:
                yield from block_entries(block, sources[block.path], keys)
