"""Leaves out file slices without rows that a read's filter matches, by record keys, partition paths and buckets.

By the rules of Hudi's key generators, a filter implies record keys, and a partition path implies values:

    key fields with given values   -> the record keys that a matching row may have
    partition path                 -> the values of the partition fields in its rows

Only fields of texts and integers count, in tables of the generators that use values unchanged: their text is the same
in all writers. All other fields are unknown.

A bucket index restricts the file groups that can hold given record keys. The table does not record whether it has a
bucket index, nor the number of buckets, so a sample of the keys in base files is hashed. With N buckets, hash - bucket
is a multiple of N for each key, so N divides their greatest common divisor; and N is above every bucket number. A file
group is kept if any such N assigns one of the wanted keys to it. If the table has another index, the divisor is 1 for a
sample of this size, and every file group is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, islice, product
from math import gcd
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_schema import PARTITION_PATH, RECORD_KEY
from ..codec.columns import flat
from ..codec.parquet_read import open_parquet, readable
from ..errors import MalformedError, UnsupportedError, UsageError
from ..filter.possible import UNKNOWN, Bounds, BoundsOf, bound, comparable, group_bounds, may_match
from ..filter.tree import And, Filter, columns_of, only_values, parse_filter
from ..format.record_key import KeySplit, bucket_of_file_id, key_hashes, labelled_keys, looks_like_bucket, value_text
from ..format.table_config import TableConfig
from ..merge.rule import SliceRules, Where
from ..merge.slice_stream import SliceStream, base_tables
from ..metadata_table.record_index import keys_are_global
from ..prefetch import at_once
from ..storage.contract import Storage
from ..table.table import Table
from ..view.view import FileSlice

_PLAIN_GENERATORS = frozenset({"SIMPLE", "COMPLEX", "NON_PARTITION", "TIMESTAMP", "CUSTOM", None})
_KEYS_MAX = 10_000
_SLASHED_DATES = "hoodie.datasource.write.slash.separated.date.partitioning"
_NO_VALUE = frozenset({"__HIVE_DEFAULT_PARTITION__", "default"})
"""Folders of rows without a value."""


def wanted_keys(node: Filter, config: TableConfig, schema: pa.Schema) -> tuple[str, ...] | None:
    """The record keys that a row must have to match, None if the bound filter implies none."""
    if config.populate_meta_fields and (given := only_values(node, RECORD_KEY)) is not None:
        return tuple(sorted(value.as_py() for value in given))
    fields = config.record_key_fields
    if config.key_generator not in _PLAIN_GENERATORS or not fields:
        return None
    texts: list[list[str]] = []
    count, there = 1, frozenset(schema.names)
    for field in fields:
        kind = schema.field(field).type if field in there else pa.null()
        values = only_values(node, field) if pa.types.is_string(kind) or pa.types.is_integer(kind) else None
        if values is None:
            return None
        texts.append(sorted(str(value.as_py()) for value in values))
        count *= len(values)
    return tuple(_keys(fields, texts)) if count <= _KEYS_MAX else None


def _keys(fields: tuple[str, ...], texts: list[list[str]]) -> Iterator[str]:
    """The record keys; for a single field in both forms, since a client that makes the keys itself may store either."""
    for values in product(*texts):
        if len(fields) == 1:
            yield values[0]
        yield ",".join(f"{field}:{value or '__empty__'}" for field, value in zip(fields, values, strict=True))


def partition_bounds(path: str, config: TableConfig, schema: pa.Schema) -> BoundsOf:
    """The bounds of the columns in the rows of a partition, from the names of its folders.
    If a name contradicts the settings of the folders (`p=north` without hive style, `%2F` without URL encoding), the
    bounds hold for both readings. Rows may still have other values: see `prune`."""
    values = {
        name: [pa.scalar(v, schema.field(name).type).as_py() for v in of] for name, of in _values(path, config, schema)
    }

    def bounds(column: str) -> Bounds:
        found = values.get(column)
        return UNKNOWN if not found else Bounds(low=min(found), high=max(found), nulls=False)

    return bounds


def _values(path: str, config: TableConfig, schema: pa.Schema) -> Iterator[tuple[str, list[str] | list[int]]]:
    """The values that each column may have. Columns with unknown values are left out."""
    if config.populate_meta_fields and not config.url_encode:
        yield PARTITION_PATH, [path]
    fields, folders = config.partition_fields, path.split("/")
    if not _is_named_by_values(config) or len(fields) != len(folders):
        return
    there = frozenset(schema.names)
    for field, folder in zip(fields, folders, strict=True):
        texts = sorted(_texts(field, folder, config))
        if not texts or not _NO_VALUE.isdisjoint(texts) or field not in there:
            continue
        kind = schema.field(field).type
        if pa.types.is_string(kind):
            yield field, texts
        elif pa.types.is_integer(kind):
            numbers = [int(text) for text in texts if text.removeprefix("-").isdecimal() and str(int(text)) == text]
            if numbers:
                yield field, numbers


def _texts(field: str, folder: str, config: TableConfig) -> set[str]:
    """The values that a folder may have; none: unknown."""
    name, has_name, value = folder.partition("=")
    named = bool(has_name) and name == field
    forms = {value} if named else set[str]()
    if not config.hive_style:
        forms.add(folder)
    plain = {unquote(form) for form in forms}
    return plain if config.url_encode else forms | plain


def _is_named_by_values(config: TableConfig) -> bool:
    """Whether the folders of partitions are the values of the partition fields."""
    typed = config.properties.get("hoodie.table.partition.fields", "").split(",")
    return (
        config.key_generator in _PLAIN_GENERATORS - {"TIMESTAMP"}
        and config.properties.get(_SLASHED_DATES, "false").lower() == "false"
        and all(field.strip().partition(":")[2].upper() in ("", "SIMPLE") for field in typed)
        and (config.key_generator != "CUSTOM" or all(":" in field for field in typed))
    )


_SAMPLE_FILES, _SAMPLE_KEYS_MAX = 3, 1024
_SAMPLE_KEYS_MIN = 64
"""Fewer keys could have a common divisor by chance; this number has 2, the most likely, once in 2**64."""


def bucket_slices(
    storage: Storage, slices: Sequence[FileSlice], keys: Sequence[str], config: TableConfig
) -> tuple[FileSlice, ...]:
    """The slices that can hold one of these keys. Reads some keys of a few base files of each partition."""
    # With several key fields, only some may be hashed, and keys that share a value of the others would hide this.
    if not config.populate_meta_fields or not keys or len(config.record_key_fields) != 1:
        return tuple(slices)
    label = f"{config.record_key_fields[0]}:"
    given = frozenset(keys)
    bare = [key for key in keys if not (key.startswith(label) and key.removeprefix(label) in given)]
    both, plain = _hashes(keys, config), _hashes(bare, config)
    kept: list[FileSlice] = []
    for _, group in groupby(slices, key=lambda s: s.partition):
        partition = list(group)
        if len(partition) == 1:  # a sample would cost more
            kept += partition
            continue
        step, labelled = _common_divisor(storage, partition, config, label)
        hashes = both if labelled else plain
        least = max((bucket_of_file_id(s.file_id) or 0 for s in partition), default=0) + 1
        kept += [s for s in partition if step < least or _can_hold(s, hashes, step, least)]
    return tuple(kept)


def _can_hold(slice_: FileSlice, hashes: Sequence[int], step: int, least: int) -> bool:
    """Whether some number of buckets, a divisor of `step` of at least `least`, assigns a key to the slice's bucket."""
    bucket = bucket_of_file_id(slice_.file_id) or 0
    return any(gcd(abs(found - bucket), step) >= least for found in hashes)


def _hashes(keys: Sequence[str], config: TableConfig) -> list[int]:
    """The hash of each key by both rules: a table may have been upgraded."""
    texts = pa.array(keys, pa.string())
    both = [key_hashes(texts, config.record_key_fields, split) for split in KeySplit]
    return sorted({int(one) for hashes in both for one in hashes})


def _common_divisor(storage: Storage, slices: Sequence[FileSlice], config: TableConfig, label: str) -> tuple[int, bool]:
    """The greatest common divisor of hash - bucket over a sample; 1 if the files are not those of a bucket index.
    Second value: whether keys of the sample have the `label`, the name of the key field."""
    buckets = [bucket_of_file_id(s.file_id) for s in slices]
    if not all(looks_like_bucket(s.file_id) for s in slices) or len(set(buckets)) != len(buckets):
        return 1, True
    found, count, labelled = 0, 0, False
    for bucket, keys in islice(_sampled(storage, slices), _SAMPLE_FILES):
        hashes = key_hashes(keys, config.record_key_fields, KeySplit.of(config.layout)).astype(np.int64)
        found = gcd(found, int(np.gcd.reduce(np.abs(hashes - bucket), initial=0)))
        count += len(keys)
        labelled = labelled or bool(pc.any(pc.starts_with(keys, label)).as_py())
    return (found if count >= _SAMPLE_KEYS_MIN and found else 1), labelled


def _sampled(storage: Storage, slices: Sequence[FileSlice]) -> Iterator[tuple[int, pa.Array]]:
    schema = pa.schema([pa.field(RECORD_KEY, pa.string())])
    for slice_ in slices:
        if slice_.base is None:
            continue
        for table, _ in islice(base_tables(storage, slice_.base.path, schema, _SAMPLE_KEYS_MAX), 1):
            keys = flat(table.column(RECORD_KEY))
            yield bucket_of_file_id(slice_.file_id) or 0, keys.drop_null()


_SAMPLE_ROWS = 1024
_SAMPLE_LOG_BYTES = 4 << 20
_SLICES_TRIED = 3


def outside_of(text: str, config: TableConfig, schema: pa.Schema) -> Callable[[str], bool]:
    """Whether the rows of a partition, by its path, are certainly none that a predicate over partition columns means.
    A folder that does not show a value is never outside. UsageError: see `parse_filter` and `bound`; other columns, or
    such whose values folders do not show."""
    node, fields = parse_filter(text), config.partition_fields
    if others := sorted(columns_of(node) - set(fields)):
        raise UsageError(
            "a predicate over other columns than those of partitions",
            expected=", ".join(fields) or "a table with partitions",
            found=", ".join(others),
        )
    there = frozenset(schema.names)
    kinds = {name: schema.field(name).type for name in columns_of(node) & there}
    hidden = [name for name, kind in kinds.items() if not (pa.types.is_string(kind) or pa.types.is_integer(kind))]
    if hidden or not _is_named_by_values(config):
        raise UsageError(
            "the folders of partitions do not show the values of these columns",
            expected="texts or integers, written by a key generator that uses them unchanged",
            found=", ".join(f"{name}: {kinds[name]}" for name in hidden) or str(config.key_generator),
            todo="Leave partitions out by --exclude-partition PATTERN.",
        )
    wanted = bound(node, schema)
    return cache(lambda path: not may_match(wanted, partition_bounds(path, config, schema)))


def where_of(wanted: Sequence[Filter | str], config: TableConfig, schema: pa.Schema) -> Where | None:
    """A read's filters, all of which must be true, bound to the schema. UsageError: see `parse_filter` and `bound`."""
    nodes = [bound(parse_filter(one) if isinstance(one, str) else one, schema) for one in wanted]
    if not nodes:
        return None
    node = nodes[0] if len(nodes) == 1 else And(tuple(nodes))
    return Where(filter=node, schema=schema, keys=wanted_keys(node, config, schema))


def prune(
    table: Table, slices: Sequence[FileSlice], where: Where | None, rules: SliceRules
) -> tuple[tuple[FileSlice, ...], Where | None]:
    """The slices whose partition may have a matching row, and whose bucket may hold the keys that a row must have.
    Folder names and key forms are derived from the table's settings, and a client may have ignored these. So some rows
    are checked first. If they contradict the folder names, no partition is left out; if they contradict the key forms,
    the filter's keys are not used. Under a record index over all partitions no partition is left out either: by Hudi's
    defaults a row stays in the folder that has its key, whatever its new partition value is."""
    if where is None:
        return tuple(slices), None
    storage, config = table.storage, table.config
    bounds = {p: partition_bounds(p, config, where.schema) for p in {s.partition for s in slices}}
    out = {partition for partition, of in bounds.items() if not may_match(where.filter, of)}
    samples = _some_of_each_shape(slices, out)
    if out and (keys_are_global(table) or not all(_agrees(storage, some, bounds, where, rules) for some in samples)):
        out = set()
    left = tuple(s for s in slices if s.partition not in out)
    if where.keys is not None and (len(left) > 1 or any(s.logs for s in left)):
        # With a base file, if possible: its rows cost least.
        first = next((s for s in left if s.base is not None and not s.flaws), left[0])
        if not _has_keys_of_fields(storage, first, config, rules):
            where = replace(where, keys=None)
    return (left if where.keys is None else bucket_slices(storage, left, where.keys, config)), where


def _some_of_each_shape(slices: Sequence[FileSlice], partitions: Collection[str]) -> Iterator[list[FileSlice]]:
    """A few slices for each naming scheme of these partitions' folders, first slices of these partitions.
    Slices with lost or damaged files are left out, since they are no reason to refuse a read of other partitions."""
    found: dict[tuple[tuple[bool, bool], ...], list[FileSlice]] = {}
    for slice_ in sorted(slices, key=lambda s: (s.partition not in partitions, s.base is None, s.partition)):
        shape = tuple(("=" in folder, "%" in folder) for folder in slice_.partition.split("/"))
        if slice_.partition in partitions:
            found.setdefault(shape, [])
        if shape in found and not slice_.flaws and len(found[shape]) < _SLICES_TRIED:
            found[shape].append(slice_)
    yield from found.values()


def _agrees(
    storage: Storage, some: Sequence[FileSlice], bounds: Mapping[str, BoundsOf], where: Where, rules: SliceRules
) -> bool:
    """Whether some rows of readable slices are within the bounds of the filter's columns by their folders: the first
    ones of base files, and those of small log files, where rows of an index over all partitions stay."""

    def agrees(slice_: FileSlice) -> bool:
        of = bounds[slice_.partition]
        known = [name for name in sorted(where.columns) if of(name) is not UNKNOWN]
        try:
            rows = some_rows(storage, slice_, rules, known)
            if not all(_is_within(rows.column(name), of(name)) for name in known):
                return False
            if known and slice_.base is not None and 0 < slice_.log_bytes <= _SAMPLE_LOG_BYTES:
                rows = some_rows(storage, replace(slice_, base=None), rules, known)
                # Rows of partial updates may lack the columns.
                if not all(_is_within(rows.column(name).drop_null(), of(name)) for name in known):
                    return False
        except (MalformedError, UnsupportedError):
            pass  # a read of this slice raises the error
        return True

    return all(map(agrees, some) if storage.is_file_system else at_once(some, agrees))


def _is_within(column: pa.ChunkedArray, bounds: Bounds) -> bool:
    if not len(column):
        return True
    ends = pc.min_max(column)
    return not (column.null_count or comparable(ends["min"]) < bounds.low or comparable(ends["max"]) > bounds.high)


def _has_keys_of_fields(storage: Storage, slice_: FileSlice, config: TableConfig, rules: SliceRules) -> bool:
    """Whether some rows of a slice have the keys that `wanted_keys` derives from their key fields."""
    fields = config.record_key_fields
    if not config.populate_meta_fields or not fields or _footer_has_keys_of_field(storage, slice_, fields, rules):
        return True
    rows = some_rows(storage, slice_, rules, [RECORD_KEY, *fields])
    keys, parts = flat(rows.column(RECORD_KEY)), [value_text(flat(rows.column(name)), name) for name in fields]
    same = pc.equal(keys, labelled_keys(fields, parts))
    if len(fields) == 1:
        same = pc.or_(same, pc.equal(keys, parts[0]))
    return bool(pc.all(pc.fill_null(same, False)).as_py())


def _footer_has_keys_of_field(storage: Storage, slice_: FileSlice, fields: tuple[str, ...], rules: SliceRules) -> bool:
    """Whether the footer of a base file shows this without reading rows: keys and field have the same bounds."""
    if slice_.base is None or len(fields) > 1 or not pa.types.is_string(rules.schema.field(fields[0]).type):
        return False
    path = slice_.base.path
    with storage.open_input(path, whole=False) as source, readable("base file", path):
        file = open_parquet(source)
        if not file.metadata.num_row_groups:
            return False
        bounds = group_bounds(file, 0, rules.schema, rules.names.at(slice_.base.name.instant))
    keys, values = bounds(RECORD_KEY), bounds(fields[0])
    if None in (keys.low, keys.high, values.low, values.high) or values.nulls:
        return False
    plain = (values.low, values.high)
    return (keys.low, keys.high) in (plain, tuple(f"{fields[0]}:{value}" for value in plain))


def some_rows(storage: Storage, slice_: FileSlice, rules: SliceRules, columns: Sequence[str]) -> pa.Table:
    """The first rows of a slice: of its base file, else of its logs. Errors as those of a read."""
    stream = SliceStream(storage, slice_, replace(rules, batch_rows=_SAMPLE_ROWS), columns)
    batches = stream.base_batches() if slice_.base is not None else stream.batches()
    first = islice((batch for batch in batches if batch.num_rows), 1)
    return pa.Table.from_batches(list(first), schema=stream.schema)
