"""Columns of Arrow tables as arrays, and rows by their numbers (pure).

Arrow's own `take` first puts all chunks of a column into one array, and fails above 2 GiB of text; `rows_at` works
chunk by chunk there.

Ordering values are compared as Java does, vectorised. A row's ordering value is the tuple of its ordering columns,
compared in declared order. Floats follow `Double.compareTo` (-0.0 < 0.0 < NaN); text compares by UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]


def flags(array: Any) -> Flags:
    """Truth values without nulls as numpy."""
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def first_of(groups: Indices, positions: Indices, count: int, none: int) -> Indices:
    """For each of `count` groups the least of its positions; `none`, which is greater, where it has none. An assignment
    would do only as long as numpy happens to assign in order: of repeated indices it promises no one."""
    found = np.full(count, none, np.int64)
    np.minimum.at(found, groups, positions)
    return found


def last_of(groups: Indices, positions: Indices, count: int) -> Indices:
    """For each of `count` groups the greatest of its positions; -1 where it has none."""
    found = np.full(count, -1, np.int64)
    np.maximum.at(found, groups, positions)
    return found


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts or bytes of any length, with offsets."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array, without a copy if it is one already."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def counted(rows: pa.RecordBatch | pa.Table, count: int | None = None) -> pa.Table:
    """The rows as a table. If they have no columns a null column keeps their number: Arrow tables without columns have
    no rows. `count`: of a table that has no columns."""
    if not rows.num_columns:
        return pa.table({"__none": pa.nulls(rows.num_rows if count is None else count)})
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def leaf_types(field: pa.Field, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Parquet paths of a field's leaf columns, in pyarrow's notation, and their types."""
    here, kind = f"{path}{field.name}", field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from leaf_types(child, f"{here}.")
    elif pa.types.is_map(kind):
        yield from leaf_types(kind.key_field.with_name("key"), f"{here}.key_value.")
        yield from leaf_types(kind.item_field.with_name("value"), f"{here}.key_value.")
    elif pa.types.is_list(kind):
        yield from leaf_types(kind.value_field.with_name("element"), f"{here}.list.")
    else:
        yield here, kind


Index = npt.NDArray[np.intp]

_CACHE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class ByteBlock:
    """Some values of one byte length, few enough for the L2 cache: `data` is (values, bytes) of uint8.
    `ordinals`: the indices of these values in the array."""

    ordinals: Index
    data: npt.NDArray[np.uint8]


def byte_blocks(values: pa.Array) -> Iterator[ByteBlock]:
    """Every value of a string or binary array, each in exactly one block; a null counts as empty."""
    if not len(values):
        return
    text = values.cast(pa.large_binary())
    lengths = np.diff(_offsets(text))
    order = np.arange(len(text))
    if lengths.min() != lengths.max():
        # Sorted by length, the values of one length form a matrix of bytes, without a copy for each length.
        order = np.argsort(lengths, kind="stable")
        text, lengths = text.take(pa.array(order)), lengths[order]
    offsets = _offsets(text)
    bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(text)]
    content = text.buffers()[2]
    for low, high in pairwise(bounds):
        length = int(lengths[low])
        # Besides its bytes, each value needs some words of scratch space.
        step = max(1, _CACHE_BYTES // (length + 20))
        for start in range(low, high, step):
            stop = min(start + step, high)
            size = (stop - start) * length
            data = np.frombuffer(content, np.uint8, size, int(offsets[start])) if size else np.zeros(0, np.uint8)
            yield ByteBlock(order[start:stop], data.reshape(stop - start, length))


def _offsets(values: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    return np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, values.offset * 8)


def list_parts(array: Any) -> tuple[pa.Array, pa.Array]:
    """(int32 offsets from 0, values) of a list-like array, sliced or not."""
    offsets = array.offsets
    start = offsets[0].as_py()
    values = array.values.slice(start, offsets[-1].as_py() - start)
    # Computed also when they begin with 0: Arrow cannot build a list from a slice of offsets together with a mask.
    return pc.subtract(offsets, offsets[0]).cast(pa.int32()), values


def null_mask(array: pa.Array) -> pa.Array | None:
    """Which values are null, for building a new array; None if there are no nulls."""
    return array.is_null() if array.null_count else None


def leaves_changed(array: Any, change: Callable[[Any], Any]) -> Any:
    """The array with what `change` makes of each of its leaves, in the order that they have in Parquet."""
    kind = array.type
    if pa.types.is_struct(kind) and kind.num_fields:
        parts = [leaves_changed(array.field(i), change) for i in range(kind.num_fields)]
        fields = [one.with_type(part.type) for one, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=null_mask(array))
    if pa.types.is_map(kind):
        offsets, pairs = list_parts(array)
        keys, items = (leaves_changed(pairs.field(i), change) for i in range(2))
        kind = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=null_mask(array))
    if pa.types.is_list(kind):
        offsets, values = list_parts(array)
        values = leaves_changed(values, change)
        kind = pa.list_(kind.value_field.with_type(values.type))
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=null_mask(array))
    return change(array)


_NO_TEXT = "^<value out of range: (-?[0-9]+)>Z?$"


def time_text(times: Any) -> Any:
    """Dates and times as text. One that Arrow has no text for, beyond the year 32767 or the day, is its number."""
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        return pc.replace_substring_regex(times.cast(pa.string()), _NO_TEXT, r"\1")
    # Arrow prints a wrong year for such a time with a zone.
    text = times.cast(pa.timestamp(times.type.unit)).cast(pa.string())
    return pc.replace_substring_regex(pc.binary_join_element_wise(text, "Z", ""), _NO_TEXT, r"\1")


def has_no_text(column: pa.ChunkedArray) -> bool:
    """Whether it is one of dates or times, and Arrow has no text for some, see `time_text`."""
    if not pa.types.is_temporal(column.type):
        return False
    ends = pc.min_max(column)
    texts = time_text(pa.array([ends["min"], ends["max"]], column.type))
    return bool(pc.any(pc.match_substring_regex(texts, "^-?[0-9]+$")).as_py())


def as_json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values as JSON has them, at any depth: dates and times as in ISO 8601, see `time_text`, decimals as text,
    floats by the digits that they have as such."""
    return pa.chunked_array([leaves_changed(one, _json_leaf) for one in column.chunks or [pa.nulls(0, column.type)]])


def _json_leaf(values: Any) -> Any:
    kind = values.type
    if pa.types.is_float32(kind):
        return values.cast(pa.string()).cast(pa.float64())
    if pa.types.is_temporal(kind):
        return pc.replace_substring(time_text(values), " ", "T")
    return values.cast(pa.string()) if pa.types.is_decimal(kind) else values


MANY_BYTES = 1 << 30
"""A column from this size on is not copied into one array."""
PIECE_BYTES = 128 << 20
"""Bytes of such a column that are put into one array at a time; a chunk may exceed them by one row."""


def rows_at(table: pa.Table, numbers: Indices) -> pa.Table:
    """The rows with these numbers, in their order; in several chunks where they would not fit into one."""
    if not numbers.size or table.nbytes * max(numbers.size, table.num_rows) < MANY_BYTES * table.num_rows:
        return table.take(pa.array(numbers))  # rows may repeat, but rarely the longest one alone
    sizes = row_bytes(table)
    pieces = [_picked(table, part) for part in np.split(numbers, cuts(sizes[numbers]))]
    return pa.concat_tables(pieces)


def row_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """About how many bytes each row takes: exact for text; for other types the mean of the chunk."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        start = 0
        for chunk in column.chunks:
            own = total[start : start + len(chunk)]
            start += len(chunk)
            if is_text(chunk.type):
                own += np.asarray(pc.fill_null(pc.binary_length(chunk), 0)).astype(np.int64)
            else:
                own += -(-chunk.nbytes // max(1, len(chunk)))
    return total


def cuts(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where values of these sizes, one after the other, are cut into chunks of about `PIECE_BYTES`."""
    piece = (np.cumsum(sizes) - sizes) // PIECE_BYTES
    return np.flatnonzero(np.diff(piece)) + 1


def _picked(table: pa.Table, numbers: Indices) -> pa.Table:
    """A `take` chunk by chunk: of each only the requested rows are copied."""
    batches = table.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    places = np.searchsorted(numbers[order], ends)
    found, start = [], 0
    for batch, end, place in zip(batches, ends.tolist(), places.tolist(), strict=True):
        if place > start:
            found.append(batch.take(pa.array(numbers[order[start:place]] - (end - batch.num_rows))))
        start = place
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.Table.from_batches(found, table.schema).take(pa.array(back))


Ordering: TypeAlias = tuple[pa.Array, ...]
"""One array per ordering column; empty if the table has none."""


def orderable(array: pa.Array) -> pa.Array:
    """The array in a form that Arrow sorts as Java does: floats become integers of the same order."""
    if pa.types.is_floating(array.type):
        bits = np.ascontiguousarray(array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)).copy()
        bits[np.isnan(bits)] = np.nan  # one NaN for all payloads
        raw = bits.view(np.int64)
        ordered = np.where(raw < 0, raw ^ np.int64(0x7FFFFFFFFFFFFFFF), raw)
        return pa.array(ordered, mask=array.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    return array


def ranks(ordering: Ordering, rows: int, *, hudi_0x: bool = False) -> npt.NDArray[np.int64]:
    """One integer for each row; the integers sort as the rows' ordering values do, nulls first.
    `hudi_0x`: compare decimals as 0.15 compares them in log entries, by their raw bytes: negative ones are greatest."""
    result = np.zeros(rows, np.int64)
    for column in ordering:
        dense = _rank(column)
        if hudi_0x and pa.types.is_decimal(column.type):
            negative = flags(pc.fill_null(pc.less(column, 0), False))
            dense = np.where(negative, dense + dense.max(initial=0), dense)
        if len(ordering) > 1:
            # Raw numbers become dense ranks, here and after each step, so that the product fits into 64 bits.
            dense = np.unique(dense, return_inverse=True)[1].astype(np.int64)
            dense = np.unique(result * len(dense) + dense, return_inverse=True)[1].astype(np.int64)
        result = dense
    return result


def _rank(column: pa.Array) -> npt.NDArray[np.int64]:
    values = orderable(column)
    kind = values.type
    # Integers are their own rank; all other values are ranked once.
    if not values.null_count and (pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)):
        if pa.types.is_temporal(kind):
            values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        return np.asarray(values).astype(np.int64)
    dense = np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
    return np.where(flags(values.is_null()), 0, dense)


def at_least(left: Ordering, right: Ordering, rows: int) -> npt.NDArray[np.bool_]:
    """Row by row, whether `left` >= `right`; a null is smaller than every value and equal to a null."""
    greater = np.zeros(rows, np.bool_)
    equal = np.ones(rows, np.bool_)
    for a, b in zip(left, right, strict=True):
        x, y = orderable(a), orderable(b)
        x_null, y_null = flags(x.is_null()), flags(y.is_null())
        both = ~x_null & ~y_null
        greater |= equal & ((y_null & ~x_null) | (both & flags(pc.fill_null(pc.greater(x, y), False))))
        equal &= (x_null & y_null) | (both & flags(pc.fill_null(pc.equal(x, y), False)))
    return greater | equal


def same_class(wrapper: pa.DataType, column: pa.DataType, *, hudi_0x: bool) -> bool:
    """Whether a delete's ordering value has the same Java class as the ordering column of the rows. If the classes
    differ, Hudi cannot compare the values, and the delete wins over every earlier row. That happens with an IntWrapper
    on a long column, with the wrappers made for dates, and in 0.15 (whose rows hold Avro objects) also with text and
    decimals. Rows hold dates and timestamps as Avro's integers. (Observed with typed deletes in 0.15.0 and 1.2.0.)"""
    types = pa.types
    if hudi_0x and (types.is_string(column) or types.is_decimal(column)):
        return False
    if types.is_date(column):
        return bool(wrapper == pa.int32())
    if types.is_timestamp(column):
        return bool(wrapper == pa.int64())
    if types.is_decimal(column):
        return bool(types.is_decimal(wrapper))
    return bool(wrapper == column)


def concat(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """All parts, concatenated, as `kind`."""
    return pa.concat_arrays([p.cast(kind) if p.type != kind else p for p in parts]) if parts else pa.array([], kind)
