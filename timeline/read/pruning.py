"""Leaves out file slices that cannot hold a row that a read's filter matches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.columns import flat
from ..avro.schema import RECORD_KEY
from ..errors import MalformedError
from ..filter.bind import bound
from ..filter.parse import parse_filter
from ..filter.possible import UNKNOWN, Bounds, BoundsOf, comparable, may_match
from ..filter.tree import And, Filter
from ..format.record_key import labelled_keys, value_text
from ..format.table_config import TableConfig
from ..merge.slice_rules import SliceRules
from ..parquet.footer_bounds import group_bounds
from ..parquet.read import open_parquet, readable
from ..storage.contract import Storage
from ..view.view import FileSlice
from .bucket_pruning import bucket_slices
from .filter_keys import partition_bounds, wanted_keys
from .slice_stream import SliceStream
from .where import Where

_SAMPLE_ROWS = 1024
_SLICES_TRIED = 3


def where_of(wanted: Sequence[Filter | str], config: TableConfig, schema: pa.Schema) -> Where | None:
    """A read's filters, all of which must be true, bound to the table's schema.

    UsageError: see `parse_filter` and `bound`.
    """
    nodes = [bound(parse_filter(one) if isinstance(one, str) else one, schema) for one in wanted]
    if not nodes:
        return None
    node = nodes[0] if len(nodes) == 1 else And(tuple(nodes))
    return Where(filter=node, schema=schema, keys=wanted_keys(node, config, schema))


def prune(
    storage: Storage, slices: Sequence[FileSlice], where: Where | None, config: TableConfig, rules: SliceRules
) -> tuple[tuple[FileSlice, ...], Where | None]:
    """The slices whose partition's values let a row match, and whose bucket may hold the keys that a row must have.

    Names of folders and forms of keys are the table's settings at work, and a client may have done otherwise: some rows
    are asked first. Where they say something else nothing is left out for it, and the filter knows no keys.
    """
    if where is None:
        return tuple(slices), None
    bounds = {s.partition: partition_bounds(s.partition, config, where.schema) for s in slices}
    out = {partition for partition, of in bounds.items() if not may_match(where.filter, of)}
    if not all(_agrees(storage, some, bounds, where, rules) for some in _some_of_each_shape(slices, out)):
        out = set()
    left = tuple(s for s in slices if s.partition not in out)
    if (
        where.keys is not None
        and left
        and _uses_keys(left)
        and not _has_keys_of_fields(storage, _first(left), config, rules)
    ):
        where = replace(where, keys=None)
    return (left if where.keys is None else bucket_slices(storage, left, where.keys, config)), where


def _first(slices: Sequence[FileSlice]) -> FileSlice:
    """The slice whose rows are asked: a base file costs least."""
    return next((s for s in slices if s.base is not None and not s.flaws), slices[0])


def _some_of_each_shape(slices: Sequence[FileSlice], partitions: Collection[str]) -> Iterator[list[FileSlice]]:
    """A few slices for each way in which the folders of these partitions are named, their own first.

    Not slices with lost or damaged files: these are no reason to refuse a read of other partitions.
    """
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
    """Whether some rows of the first readable slice are within the bounds that its folder gives the columns of the
    filter."""
    for slice_ in some:
        of = bounds[slice_.partition]
        known = [name for name in sorted(where.columns) if of(name) is not UNKNOWN]
        try:
            rows = some_rows(storage, slice_, rules, known)
        except MalformedError:
            continue  # damaged: a read of it says so
        return all(_is_within(rows.column(name), of(name)) for name in known)
    return True


def _is_within(column: pa.ChunkedArray, bounds: Bounds) -> bool:
    if not len(column):
        return True
    ends = pc.min_max(column)
    return not (column.null_count or comparable(ends["min"]) < bounds.low or comparable(ends["max"]) > bounds.high)


def _uses_keys(slices: Sequence[FileSlice]) -> bool:
    return len(slices) > 1 or any(s.logs for s in slices)


def _has_keys_of_fields(storage: Storage, slice_: FileSlice, config: TableConfig, rules: SliceRules) -> bool:
    """Whether some rows of a slice have the keys that `wanted_keys` makes of their key fields."""
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
    """Whether the footer of a base file shows it, so that no row need be read: keys and field have the same bounds."""
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
