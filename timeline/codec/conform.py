"""Converts Arrow data written under an older schema to the table's schema (pure, vectorised).

Columns, and fields of records, are matched by name (`stored_names`): first exactly, then without regard to case.
Missing ones get the default that the schema gives them (`Defaults`), or null; unknown ones are dropped, widened ones
are cast. The changes are those that Hudi reads:

    int -> long, float, double; long -> float, double; float -> double          Avro's promotions
    string <-> bytes
    int, long, float, double -> string                                          Java's texts, see `java_text`
    decimal -> decimal                                                          with as many digits, if values fit
    timestamp-micros -> timestamp-millis, long -> local-timestamp-*             the same numbers with another label

Old Hudi versions put the label `timestamp-micros` on milliseconds, and none on local timestamps. Since 1.1 Hudi reads
such a file's numbers with the table's label; a table changed from micros to millis has no other meaning.

Java's texts of floats, which Hudi stores after a column of floats became one of text:

    1.0, 0.001, 1234567.9       from a thousandth to below ten million
    1.0E7, 1.234E-5             otherwise: one digit, a point, the other digits, the power of ten
    NaN, Infinity, -Infinity

The digits are the fewest that read back as the same value, but two at least (4.9E-324), as Java prints since 19
(JDK-4511638). Java before 19 prints some values with one digit more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import MalformedError, UnsupportedError
from .columns import list_parts, null_mask
from .stored_names import SAME_NAMES, Names, names_in

_PARTS = r"^(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?(?:e(?P<power>[-+]?[0-9]+))?$"
_LEAST = {pa.float64(): 5e-324, pa.float32(): 2.0**-149}
_FEW_DIGITS = 64
"""Multiples of the least value up to this one may need only one digit to be read back."""


def java_text(values: Any) -> Any:
    """The texts of an array of float or double."""
    text = values.cast(pa.string())  # 1, 0.001, 1e+15, nan, inf
    size = pc.abs(values)
    least = _LEAST[values.type]
    has_few = pc.any(pc.and_(pc.less(size, least * _FEW_DIGITS), pc.greater(size, 0))).as_py()
    for times in range(1, _FEW_DIGITS) if has_few else ():
        few = f"{least * times:.1e}"
        text = pc.if_else(pc.equal(size, least * times), pc.if_else(pc.less(values, 0), f"-{few}", few), text)
    plain = pc.or_(pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7)), pc.equal(size, 0.0))
    pointed = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, ".0", ""))
    return pc.if_else(pc.is_finite(values), pc.if_else(plain, pointed, _with_power(text)), _named(text))


def _with_power(text: Any) -> Any:
    parts = pc.extract_regex(text, _PARTS)
    sign, whole, part, power = (pc.fill_null(pc.struct_field(parts, i), "") for i in range(4))
    digits = pc.binary_join_element_wise(whole, part, "")
    known = pc.utf8_ltrim(digits, "0")
    shift = pc.if_else(pc.equal(power, ""), "0", pc.utf8_ltrim(power, "+")).cast(pa.int32())
    before = pc.subtract(
        pc.subtract(pc.utf8_length(whole), 1), pc.subtract(pc.utf8_length(digits), pc.utf8_length(known))
    )
    known = pc.utf8_rtrim(known, "0")
    rest = pc.utf8_slice_codeunits(known, 1)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    head = pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(known, 0, 1), "")
    number = pc.binary_join_element_wise(head, rest, ".")
    return pc.binary_join_element_wise(number, pc.add(before, shift).cast(pa.string()), "E")


def _named(text: Any) -> Any:
    for found, java in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        text = pc.if_else(pc.equal(text, found), java, text)
    return text


Path: TypeAlias = tuple[str, ...]
"""The name of a column, then those of its part; `element` and `value` are parts of lists and maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The defaults of columns, and of their parts, that are not null, as their Avro schema has them. Picklable.
    `filled`: rows written before such a column existed get them, as in Avro, and in Hudi 0.15.0 in logs and
    compactions. Hudi 1.2.0 fails there, so elsewhere a file without such a column is refused."""

    values: Mapping[Path, Any] = field(default_factory=dict)
    filled: bool = False


NO_DEFAULTS = Defaults()


def conform(
    data: pa.RecordBatch | pa.Table,
    schema: pa.Schema,
    where: str,
    *,
    float_as_text: bool = True,
    names: Names = SAME_NAMES,
    defaults: Defaults = NO_DEFAULTS,
) -> pa.Table:
    """`data` with exactly the columns of `schema`, in its order and types; `where` names the source in errors. `names`:
    those of the columns in `data`, where they differ. `defaults`: of the columns of `schema`. `float_as_text`: float
    widens to double through its decimal text (1.1f -> 1.1). Hudi does this everywhere except in Avro log blocks read by
    0.15, which keep the bits (1.100000023841858) unless another column of the record turns into text or bytes: then
    0.15 rewrites the entire record, floats through their text. MalformedError: a required column is missing or holds
    nulls, or a value does not fit. UnsupportedError: a type change that is not a promotion, or names that differ by
    case only."""
    return _Change(text=float_as_text, defaults=defaults).table(data, schema, where, names)


def check_conformable(
    there: pa.Schema,
    schema: pa.Schema,
    where: str,
    *,
    names: Names = SAME_NAMES,
    defaults: Defaults = NO_DEFAULTS,
    rows: bool = True,
) -> None:
    """Raises what `conform` would raise for data with these columns, as far as types and names determine it.
    `there`: the schema's columns that the data has. `rows`: the data has rows, so required columns must exist."""
    if there == schema:
        return
    empty = pa.Table.from_arrays([pa.nulls(0, field.type) for field in there], schema=there)
    _Change(text=True, defaults=defaults, strict=rows).table(empty, schema, where, names)


def convert(array: pa.Array, target: pa.DataType, where: str, float_as_text: bool = True) -> pa.Array:
    """`array` as `target`, by promotion only; nulls are preserved."""
    return _Change(text=float_as_text, required=False).array(array, target, where, ())


@dataclass(frozen=True, slots=True)
class _Change:
    """`text`: see `float_as_text`. `strict`: a required column must exist even without rows. `required`:
    fields that may not be null are checked."""

    text: bool
    defaults: Defaults = NO_DEFAULTS
    strict: bool = False
    required: bool = True

    def table(self, data: pa.RecordBatch | pa.Table, schema: pa.Schema, where: str, names: Names) -> pa.Table:
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        if not names and table.schema.names == schema.names and table.schema.types == schema.types:
            columns = [self.column(column, one, where) for column, one in zip(table.columns, schema, strict=True)]
            return pa.Table.from_arrays(columns, schema=schema)
        names = names_in(schema.names, names, table.schema.names, where)
        kinds = {f.name: f.type for f in table.schema}
        rewritten = any(_is_rewrite(kinds.get(names.get(f.name, f.name) or ""), f.type) for f in schema)
        change = replace(self, text=self.text or rewritten)
        columns = []
        for one in schema:
            there = names.get(one.name, one.name)
            index = -1 if there is None else _place(table.schema, there, where)
            if index < 0:
                columns.append(change.missing(one, table.num_rows, f"{where}: column {one.name}", (one.name,)))
            else:
                columns.append(change.column(table.column(index), one, where))
        return pa.Table.from_arrays(columns, schema=schema)

    def column(self, column: Any, one: pa.Field, where: str) -> Any:
        if column.type != one.type:
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            at = f"{where}: column {one.name}"
            column = pa.chunked_array([self.array(c, one.type, at, (one.name,)) for c in chunks], type=one.type)
        if not one.nullable and column.null_count:
            raise _required(where, one, f"{column.null_count} nulls")
        return column

    def missing(self, one: pa.Field, rows: int, where: str, path: Path, above: int = 0) -> Any:
        """The values of a column, or a record's field, that the data lacks. `above`: how many have null records."""
        if path in self.defaults.values:
            return pa.repeat(self.default(path, one, where), rows)
        if not one.nullable and (rows > above or self.strict):
            raise _required(where.partition(": column ")[0], one, f"no column {'.'.join(path)}")
        return pa.nulls(rows, one.type)

    def default(self, path: Path, one: pa.Field, where: str) -> pa.Scalar:
        value = self.defaults.values[path]
        if not self.defaults.filled:
            what = "a file from before a column that has another default than null"
            expected = "the column in each file, or the default null: Hudi 1.x does not read such a file either"
            todo = "Rewrite its file group with Hudi, or record the schema with the default null."
            raise UnsupportedError(what, path=where, expected=expected, found=f"default {value!r}", todo=todo)
        try:
            return _scalar(value, one.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError) as error:
            raise UnsupportedError(
                "a default that is not supported", path=where, expected=f"a value of {one.type}", found=repr(value)[:80]
            ) from error

    def array(self, array: pa.Array, target: pa.DataType, where: str, path: Path) -> pa.Array:
        """`array` as `target`, by promotion only."""
        source = array.type
        if source == target:
            return array
        if pa.types.is_dictionary(source):
            return self.array(array.dictionary_decode(), target, where, path)
        if pa.types.is_struct(target) and pa.types.is_struct(source):
            return self.struct(array, target, where, path)
        if pa.types.is_list(target) and _is_list(source):
            offsets, values = list_parts(array)
            nulls = partial(_nulls_in_lists, array)
            values = self.part(values, target.value_field, where, (*path, "element"), nulls)
            return pa.ListArray.from_arrays(offsets, values, type=target, mask=null_mask(array))
        if pa.types.is_map(target) and _is_list(source):
            return self.map(array, target, where, path)
        if not is_promotion(source, target):
            raise UnsupportedError(
                "column type change is not a promotion", path=where, expected=str(target), found=str(source)
            )
        try:
            return self.promoted(array, target)
        except pa.ArrowInvalid as error:
            what, found = "a value does not fit the type of its column", f"{source}: {str(error)[:200]}"
            raise MalformedError(what, path=where, expected=str(target), found=found) from error

    def promoted(self, array: pa.Array, target: pa.DataType) -> pa.Array:
        source = array.type
        if self.text and pa.types.is_float32(source) and pa.types.is_float64(target):
            return array.cast(pa.string()).cast(pa.float64())
        if pa.types.is_floating(source) and _is_text(target):
            return java_text(array).cast(target)
        if pa.types.is_timestamp(target) and _is_relabelled(source, target):
            return array.cast(pa.int64()).cast(target)
        # Java rounds integers beyond a float's mantissa; polars has times of day in nanoseconds only.
        rounds = pa.types.is_floating(target) or pa.types.is_time(target)
        return array.cast(target, safe=not rounds)

    def struct(self, array: pa.StructArray, target: pa.StructType, where: str, path: Path) -> pa.StructArray:
        parts = []
        fields = [target.field(i) for i in range(target.num_fields)]
        there = [array.type.field(i).name for i in range(array.type.num_fields)]
        names = names_in([one.name for one in fields], SAME_NAMES, there, where)
        for one in fields:
            at = f"{where}.{one.name}"
            index = _place(array.type, names.get(one.name, one.name) or "", where)
            if index < 0:
                parts.append(self.missing(one, len(array), at, (*path, one.name), array.null_count))
            else:
                # field(i) ignores the parent's validity; the mask below carries it.
                part = array.field(index)
                parts.append(self.part(part, one, at, (*path, one.name), partial(_nulls_in_records, part, array)))
        return pa.StructArray.from_arrays(parts, fields=fields, mask=null_mask(array))

    def map(self, array: Any, target: pa.MapType, where: str, path: Path) -> pa.MapArray:
        offsets, pairs = list_parts(array)
        keys = self.array(pairs.field(0), target.key_type, where, (*path, "key"))
        nulls = partial(_nulls_in_lists, array, 1)
        items = self.part(pairs.field(1), target.item_field, where, (*path, "value"), nulls)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=null_mask(array))

    def part(self, array: pa.Array, one: pa.Field, where: str, path: Path, nulls: Callable[[], int]) -> pa.Array:
        """A part of a column. MalformedError: a null in a record or list that is not null, where none is allowed."""
        found = self.array(array, one.type, where, path)
        if self.required and not one.nullable and found.null_count and nulls():
            raise _required(where.partition(": column ")[0], one, f"nulls in {'.'.join(path)}")
        return found


def _nulls_in_records(part: pa.Array, records: pa.Array) -> int:
    """The number of values that are null in a record that is not."""
    return int((part.filter(records.is_valid()) if records.null_count else part).null_count)


def _nulls_in_lists(lists: Any, field: int | None = None) -> int:
    """The number of nulls among the elements of lists, or their fields: a null list may cover values of no list."""
    values = list_parts(lists.drop_null())[1]
    return int((values if field is None else values.field(field)).null_count)


def _required(where: str, one: pa.Field, found: str) -> MalformedError:
    return MalformedError("required column is missing or holds nulls", path=where, expected=str(one), found=found)


def _place(fields: pa.Schema | pa.StructType, name: str, where: str) -> int:
    """The index of the field, -1 if it is missing. MalformedError: it exists twice, for which Arrow returns -1 too."""
    index = fields.get_field_index(name)
    if index < 0 and any(f.name == name for f in fields):
        raise MalformedError("two columns of one name", path=where, found=name)
    return int(index)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """An Avro default, given in JSON, as a value of this type."""
    types = pa.types
    if _is_bytes(kind) or types.is_decimal(kind):
        raw = value.encode("latin-1")
        if not types.is_decimal(kind):
            return pa.scalar(raw, kind)
        return pa.scalar(Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.scale), kind)
    if types.is_boolean(kind) != isinstance(value, bool) or _is_text(kind) != isinstance(value, str):
        raise TypeError(value)
    if types.is_temporal(kind):
        return pa.scalar(value, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    if types.is_nested(kind) and value:
        raise TypeError(value)
    return pa.scalar([] if types.is_map(kind) else value, kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


_UNITS = ("s", "ms", "us", "ns")


def is_promotion(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the values of a file can be read as another type, or as their own."""
    types = pa.types
    if types.is_null(source):
        return True
    if _is_text(target) or _is_bytes(target):
        number = types.is_integer(source) or types.is_float32(source) or types.is_float64(source)
        return _is_text(source) or _is_bytes(source) or (_is_text(target) and bool(number))
    if types.is_fixed_size_binary(target):
        return _is_bytes(source)
    if types.is_integer(target):
        return bool(types.is_integer(source) and source.bit_width <= target.bit_width)
    if types.is_floating(target):
        return bool(types.is_integer(source) or (types.is_floating(source) and source.bit_width <= target.bit_width))
    if types.is_decimal(target):
        return bool(types.is_decimal(source) and source.scale <= target.scale and source.precision <= target.precision)
    if types.is_timestamp(target):
        fits = types.is_timestamp(source) and _UNITS.index(source.unit) <= _UNITS.index(target.unit)
        return _is_relabelled(source, target) or fits
    if types.is_time(target):
        return bool(types.is_time(source))
    return False


def _is_relabelled(source: pa.DataType, target: pa.TimestampType) -> bool:
    """The same numbers with another label: see the module."""
    if pa.types.is_int64(source):
        return target.tz is None
    moments = pa.types.is_timestamp(source) and source.tz is not None and target.tz is not None
    return bool(moments and source.unit == "us" and target.unit == "ms")


def _is_rewrite(source: pa.DataType | None, target: pa.DataType) -> bool:
    """Whether a column of another type turns into text or bytes."""
    if source is None or not (_is_text(target) or _is_bytes(target)):
        return False
    source = source.value_type if pa.types.is_dictionary(source) else source  # enums, as polars has them
    return not (_is_text(source) and _is_text(target)) and not (_is_bytes(source) and _is_bytes(target))


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(kind) or kind in (pa.binary(), pa.large_binary(), pa.binary_view())
