"""Arrow rows to Avro binary records without a loop over rows (pure, vectorised).

The encoding of a row is divided into pieces, and every row has the same pieces. A piece is either a column of single
bytes (rows may omit a byte, since a varint has one to ten bytes) or a column of byte strings. Runs of single bytes
become byte strings through one masked numpy matrix; Arrow then joins the byte strings row by row. The items of a list
repeat inside a row, so they are encoded as separate rows; the piece of the outer row is the range of bytes that its
items occupy: the same bytes with other offsets. Values under nulls are omitted in the same way.

    null union       varint of the branch index, value
    int, long        zigzag varint
    string, bytes    varint of the length, data
    array, map       varint of the count, items (map: key, value), 0; if empty only the 0
    decimal          fixed: big-endian two's complement; bytes: the same, as short as possible
    enum             varint of the symbol's number

Source: Avro 1.11 specification, binary encoding. Lists are one block each, as Hudi's Java encoder writes them.

Reading promotes types (see `conform`); writing does not. Rows must have the table's types. `exact_rows` removes only
differences in how Arrow stores them:

    dictionary of T             T
    int8, int16 (int32)         int32 (int64)
    large or view text, bytes   text, bytes
    names of list elements, nullability of nested fields"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UnsupportedError, UsageError
from .arrow_schema import avro_field
from .avro_schema import without_null
from .columns import flags, flat, list_parts
from .conform import convert


def exact_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of `schema`, in its order and types, each column in one piece.
    UsageError names the column: it is missing, unknown or given twice, has another type, or holds a null although the
    schema, at any depth, forbids it."""
    _check_names(rows.schema.names, schema.names, "columns of the rows")
    columns = []
    for field in schema:
        column = rows.column(field.name)
        _check_type(column.type, field.type, field.name)
        column = convert(flat(column), field.type, field.name)
        _check_nulls(column, field, field.name)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _check_names(found: list[str], expected: list[str], what: str) -> None:
    if sorted(found) != sorted(expected):
        odd = sorted(set(found) ^ set(expected)) or sorted({n for n in found if found.count(n) > 1})
        raise UsageError(f"{what} are not those of the schema", expected=str(expected), found=f"{odd} differ")


def _check_type(source: pa.DataType, target: pa.DataType, where: str) -> None:
    types = pa.types
    if types.is_dictionary(source):
        source = source.value_type
    if types.is_struct(target) and types.is_struct(source):
        fields = {f.name: f for f in source}
        _check_names([f.name for f in source], [f.name for f in target], f"fields of column {where}")
        for field in target:
            _check_type(fields[field.name].type, field.type, f"{where}.{field.name}")
    elif types.is_map(target) and types.is_map(source):
        _check_type(source.key_type, target.key_type, f"{where}.key")
        _check_type(source.item_type, target.item_type, f"{where}.value")
    elif types.is_list(target) and (types.is_list(source) or types.is_large_list(source)):
        _check_type(source.value_type, target.value_type, f"{where}.element")
    elif not (source == target or _same_values(source, target)):
        what = f"column {where} has another type than the schema"
        raise UsageError(what, expected=str(target), found=str(source), todo="Cast it before writing.")


def _same_values(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_signed_integer(target):
        return bool(types.is_signed_integer(source) and source.bit_width <= target.bit_width)
    if types.is_string(target):
        return bool(types.is_large_string(source) or types.is_string_view(source))
    return bool(types.is_binary(target) and (types.is_large_binary(source) or types.is_binary_view(source)))


def _check_nulls(array: Any, field: pa.Field, where: str, above: int = 0) -> None:
    """`above`: the number of the array's nulls whose surrounding record is null."""
    if not field.nullable and array.null_count > above:
        raise UsageError(
            f"column {where} must not hold nulls",
            found=f"{array.null_count - above} nulls",
            todo="Give each row a value, or leave the column's rows out.",
        )
    kind = field.type
    if pa.types.is_struct(kind):
        # flatten() makes the fields of a null record null.
        for child, child_field in zip(array.flatten(), kind, strict=True):
            _check_nulls(child, child_field, f"{where}.{child_field.name}", array.null_count)
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        # A null list may cover values that belong to no list.
        values = list_parts(array.drop_null())[1]
        if pa.types.is_map(kind):
            _check_nulls(values.field(1), kind.item_field, f"{where}.value")
        else:
            _check_nulls(values, kind.value_field, f"{where}.element")


_Flags: TypeAlias = npt.NDArray[np.bool_]
_Integers: TypeAlias = npt.NDArray[np.int64]

_BINARY = pa.large_binary()


@dataclass(frozen=True, slots=True)
class _Byte:
    """One byte of each row, or of the rows that use it."""

    values: npt.NDArray[np.uint8]
    used: _Flags | None = None


_Piece: TypeAlias = _Byte | pa.LargeBinaryArray
"""A null in a byte string piece stands for zero bytes."""


def encode_rows(rows: pa.Table | pa.RecordBatch, schema: dict[str, Any], *, framed: bool = False) -> Any:
    """Each row as one Avro record: a `pa.LargeBinaryArray` with one value for each row, contiguous in one buffer.
    `schema`: a record schema from `avro_schema.parse_avro`; the rows have its columns, in any order. `framed`: put the
    length in front of each record, a big-endian int32, as in log blocks. Memory: about three times the result.
    UsageError: see `exact_rows`; also a text that is not a symbol of its enum, or a decimal that does not fit its fixed
    type. UnsupportedError: a column of a type that tables cannot have."""
    table = exact_rows(rows, pa.schema([_field(f["name"], f["type"]) for f in schema["fields"]]))
    columns = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in table.columns]
    return _join(_fields(columns, schema, ""), table.num_rows, framed=framed)


def encode_table(rows: pa.Table, schema: dict[str, Any], *, framed: bool = False) -> Iterator[pa.Buffer]:
    """The records of `encode_rows`, concatenated, in buffers of some thousand records.
    The encoder itself needs the memory of one buffer, and its working data stays in the processor's cache."""
    for batch in rows.to_batches(_STEP_ROWS):
        yield _contents(encode_rows(batch, schema, framed=framed))[1]


_STEP_ROWS = 16_384


def _field(name: str, node: Any) -> pa.Field:
    try:
        return avro_field(name, node)
    except UnsupportedError as error:
        raise error.reworded(f"column {name}: {error.what}") from error


# --- values to pieces ------------------------------------------------------------------------------------------


def _fields(columns: Sequence[Any], record: dict[str, Any], where: str) -> list[_Piece]:
    pieces: list[_Piece] = []
    for column, field in zip(columns, record["fields"], strict=True):
        pieces += _pieces(column, field["type"], f"{where}{field['name']}")
    return pieces


def _pieces(array: Any, node: Any, where: str) -> list[_Piece]:
    """The encoding of each value of an array of the node's Arrow type; nulls only if the node allows them."""
    if not isinstance(node, list):
        return _values(array, node, None, where)
    inner, _ = without_null(node)
    # A union in a table has at most two branches: its index is one byte.
    branch = np.uint8(2 * node.index(inner))
    if not array.null_count:
        return [_Byte(np.full(len(array), branch)), *_values(array, inner, None, where)]
    valid = flags(array.is_valid())
    index = _Byte(np.where(valid, branch, np.uint8(2 * node.index("null"))))
    if not isinstance(inner, str) and inner["type"] in ("record", "array", "map"):
        dense = array.drop_null()  # the byte strings of the valid positions; those of the others are empty
        offsets, data = _contents(_join(_values(dense, inner, None, where), len(dense)))
        return [index, _binary(offsets[_offsets(valid)], data)]
    return [index, *_values(array, inner, valid, where)]


def _values(array: Any, node: Any, valid: _Flags | None, where: str) -> list[_Piece]:
    """Like `_pieces`, without a union. `valid`: which values are not null; None: all (always None for nested types)."""
    kind = node if isinstance(node, str) else node["type"]
    if not isinstance(node, str) and node.get("logicalType") == "decimal":
        return _decimals(array, node, valid, where)
    if kind == "record":
        fields = [array.field(i) for i in range(array.type.num_fields)]
        return _fields(fields, node, f"{where}.")
    if kind in ("array", "map"):
        return _lists(array, node, where)
    if kind in ("string", "bytes"):
        data = array.cast(_BINARY)
        return [*_varints(_filled(pc.binary_length(data), 0), valid), data]
    if kind == "fixed":
        return [array.cast(_BINARY)]
    if kind == "enum":
        return _varints(_filled(_symbols(array, node, where), 0), valid)
    if kind == "boolean":
        return [_Byte(_filled(array, False).astype(np.uint8), valid)]
    if kind in ("float", "double"):
        width = 4 if kind == "float" else 8
        return _wide(_filled(array, 0.0).astype(f"<f{width}").view(np.uint8).reshape(-1, width), valid)
    if kind in ("int", "long"):
        # Dates and times are encoded as their integers.
        return _varints(_filled(array.view(pa.int32() if kind == "int" else pa.int64()), 0), valid)
    raise UnsupportedError(f"column {where}: Avro type not supported as a column", found=str(node)[:120])


def _filled(array: Any, value: Any) -> Any:
    """The values as numpy, with `value` for nulls."""
    return (array.fill_null(value) if array.null_count else array).to_numpy(zero_copy_only=False)


def _varints(numbers: npt.NDArray[Any], valid: _Flags | None) -> list[_Piece]:
    """Zigzag varints: seven bits per byte, lowest bits first, the highest bit set on all bytes except the last."""
    signed = numbers.astype(np.int64)
    rest = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    pieces: list[_Piece] = []
    used = valid
    while True:
        more = rest > np.uint64(0x7F)
        if not more.any():
            return [*pieces, _Byte(rest.astype(np.uint8), used)]
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        pieces.append(_Byte(low | (more.view(np.uint8) << np.uint8(7)), used))
        # A null is 0 here, and 0 has no second byte.
        used = more
        rest = rest >> np.uint64(7)


def _wide(values: npt.NDArray[np.uint8], valid: _Flags | None) -> list[_Piece]:
    return [_Byte(values[:, i], valid) for i in range(values.shape[1])]


def _symbols(array: Any, node: dict[str, Any], where: str) -> Any:
    numbers = pc.index_in(array, pa.array(node["symbols"], pa.string()))
    if numbers.null_count > array.null_count:
        odd = array.filter(pc.and_(array.is_valid(), numbers.is_null()))[0].as_py()
        expected, found = str(node["symbols"])[:200], repr(odd)[:200]
        raise UsageError(f"column {where} holds a text that is no symbol of its enum", expected=expected, found=found)
    return numbers


def _decimals(array: Any, node: dict[str, Any], valid: _Flags | None, where: str) -> list[_Piece]:
    width = array.type.bit_width // 8
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, width)[array.offset : array.offset + len(array)]
    values = raw[:, ::-1]
    if valid is not None:
        values = np.where(valid[:, None], values, np.uint8(0))
    sign = np.where(values[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))
    if node["type"] == "fixed":
        return _fixed_decimals(values, sign, node["size"], valid, where)
    # A byte is redundant if it only repeats the sign, and so does the highest bit of the next byte.
    spare = np.logical_and.accumulate(
        (values[:, :-1] == sign[:, None]) & ((values[:, 1:] ^ sign[:, None]) < 0x80), axis=1
    )
    start = spare.sum(axis=1)
    used = [start <= i if valid is None else (start <= i) & valid for i in range(width)]
    return [*_varints(width - start, valid), *(_Byte(values[:, i], used[i]) for i in range(width) if used[i].any())]


def _fixed_decimals(
    values: npt.NDArray[np.uint8], sign: npt.NDArray[np.uint8], size: int, valid: _Flags | None, where: str
) -> list[_Piece]:
    spare = values.shape[1] - size
    if spare <= 0:
        return [*(_Byte(sign, valid) for _ in range(-spare)), *_wide(values, valid)]
    if not size or (values[:, :spare] != sign[:, None]).any() or ((values[:, spare] ^ sign) >= 0x80).any():
        raise UsageError(f"column {where} holds a decimal beyond its fixed type", expected=f"{size} bytes")
    return _wide(values[:, spare:], valid)


def _lists(array: Any, node: dict[str, Any], where: str) -> list[_Piece]:
    positions, values = list_parts(array)
    starts = positions.to_numpy().astype(np.int64)
    if node["type"] == "map":
        fields = [{"name": "key", "type": "string"}, {"name": "value", "type": node["values"]}]
        pieces = _fields([values.field(0), values.field(1)], {"fields": fields}, f"{where}.")
    else:
        pieces = _pieces(values, node["items"], f"{where}.element")
    offsets, data = _contents(_join(pieces, len(values)))
    counts = np.diff(starts)
    # An empty list consists of this 0 only: it is the count.
    end = _Byte(np.zeros(len(array), np.uint8))
    return [*_varints(counts, counts > 0), _binary(offsets[starts], data), end]


# --- pieces to byte strings ------------------------------------------------------------------------------------


def _join(pieces: Sequence[_Piece], rows: int, *, framed: bool = False) -> pa.LargeBinaryArray:
    """The pieces of each row, concatenated to one byte string per row."""
    if framed:
        lengths = np.zeros(rows, np.int64)
        for piece in pieces:
            lengths += _lengths(piece)
        prefix = lengths.astype(">i4").view(np.uint8).reshape(rows, 4)
        pieces = [*_wide(prefix, None), *pieces]
    parts: list[Any] = []
    for is_byte, group in groupby(pieces, lambda piece: isinstance(piece, _Byte)):
        run: list[Any] = list(group)
        parts += [_run(run)] if is_byte else run
    if not parts:
        return _binary(np.zeros(rows + 1, np.int64), pa.py_buffer(b""))
    if len(parts) == 1 and not parts[0].null_count:
        return parts[0]
    empty = pa.scalar(b"", _BINARY)  # not at import: pyarrow then imports pandas, in every command
    return pc.binary_join_element_wise(*parts, empty, null_handling="replace")


def _lengths(piece: _Piece) -> Any:
    if isinstance(piece, _Byte):
        return 1 if piece.used is None else piece.used
    return _filled(pc.binary_length(piece), 0)


def _run(run: list[_Byte]) -> pa.LargeBinaryArray:
    """Columns of single bytes, joined to one column of byte strings."""
    values = np.stack([b.values for b in run], axis=1)
    rows, width = values.shape
    if all(b.used is None for b in run):
        return _binary(np.arange(rows + 1, dtype=np.int64) * width, pa.py_buffer(values))
    lengths = np.zeros(rows, np.int64)
    used = np.ones((rows, width), np.bool_)
    for i, byte in enumerate(run):
        lengths += _lengths(byte)
        if byte.used is not None:
            used[:, i] = byte.used
    return _binary(_offsets(lengths), pa.py_buffer(values[used]))


def _offsets(lengths: npt.NDArray[Any]) -> _Integers:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _binary(offsets: _Integers, data: pa.Buffer) -> pa.LargeBinaryArray:
    return pa.LargeBinaryArray.from_buffers(_BINARY, len(offsets) - 1, [None, pa.py_buffer(offsets), data])


def _contents(array: pa.LargeBinaryArray) -> tuple[_Integers, pa.Buffer]:
    """(offsets, data) of byte strings, with offsets that begin at 0."""
    _, raw, data = array.buffers()
    if not len(array) or data is None:
        return np.zeros(len(array) + 1, np.int64), pa.py_buffer(b"")
    offsets = np.frombuffer(raw, np.int64, len(array) + 1, 8 * array.offset)
    return offsets - offsets[0], data.slice(offsets[0], offsets[-1] - offsets[0])
