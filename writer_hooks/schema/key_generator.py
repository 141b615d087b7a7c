"""Record keys and partition paths of new rows, as Hudi's key generators make them (pure, vectorised).

    SIMPLE, TIMESTAMP, one field    the value as text
    COMPLEX, one field              the value, or f1:v1: see `key_encoding`
    two and more fields             f1:v1,f2:v2; null -> f:__null__, empty -> f:__empty__

A partition path joins the partition fields' values with `/`; a null or empty value is `__HIVE_DEFAULT_PARTITION__`. The
rows have the table's own types already (`table_schema.to_file_schema`).

A table without key fields (keyless) gets its keys when a file is made, see `Stager`; until then a hash of the row's
values stands for the key. The hash depends on nothing else, so a repeated task sends a row to the same target.

Timestamps are written as numbers, as in Hudi's upserts and inserts. Hudi's bulk inserts through Spark rows write them
as `2024-01-02 03:04:05.123`, in 0.15 and in 1.2, and so does every write with
`hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`, which no table stores. Hudi's SQL writes
`2024-01-02 03%3A04%3A05`. The existing folders decide: see `key_encoding`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.row_hash import row_hashes
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.record_key import has_text, labelled_keys, value_text
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.storage.contract import Storage

from .partition_times import PartitionTimes

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose partition value is null or empty."""
_SUPPORTED = ("SIMPLE", "COMPLEX", "NON_PARTITION", "TIMESTAMP", "CUSTOM")
PARTITION_TYPES = "hoodie.datasource.write.partitionpath.field"
"""The option of a write that gives the types of CUSTOM partition fields: `field:SIMPLE,other:TIMESTAMP`."""
_SLASHED_DATES = "hoodie.datasource.write.slash.separated.date.partitioning"
_USE_HUDI = "Write this table with Hudi."


class TimestampText(Enum):
    """How folders show a timestamp: as its number; as Hudi's SQL writes it, escaped and cut to seconds; or as Java's
    `Timestamp`, with a fraction, as bulk inserts of Spark rows write it. The texts are in UTC."""

    NUMBER = "1704164645123000"
    SQL = "2024-01-02 03%3A04%3A05"
    JAVA = "2024-01-02 03:04:05.123"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """One level of the partition path. `times`: the format, if the value is a point in time."""

    name: str
    times: PartitionTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGenerator:
    """How one table makes record keys and partition paths. Picklable: Spark tasks get a copy. `slashed_dates`,
    `timestamps`, `null_folder`: no table stores these; its folders show them, see `key_encoding`."""

    key_fields: tuple[str, ...]
    labelled: bool
    partition_fields: tuple[PartitionField, ...]
    hive_style: bool
    url_encode: bool
    slashed_dates: bool = False
    timestamps: TimestampText = TimestampText.NUMBER
    null_folder: str = DEFAULT_PARTITION

    @staticmethod
    def of(
        config: TableConfig, *, one_field_prefixed: bool | None = None, writer: Mapping[str, str] | None = None
    ) -> KeyGenerator:
        """The generator of a table. `one_field_prefixed`: whether the key of a one-field COMPLEX table is `f:v`, see
        `key_encoding`; not needed for other tables. `writer`: options under Hudi's names that the table may not store,
        see `PartitionTimes.of`. UnsupportedError: another generator, or unknown options of a generator. UsageError: an
        option is missing, or contradicts the table."""
        keys = config.record_key_fields
        if config.properties.get(_SLASHED_DATES, "false").lower() != "false":
            raise _refusal("this partition path", f"{_SLASHED_DATES}=false", "true")
        kind = generator_kind(config)
        if kind not in _SUPPORTED:
            raise _refusal("this key generator", ", ".join(_SUPPORTED), kind)
        if kind in ("SIMPLE", "TIMESTAMP") and (len(keys) > 1 or len(config.partition_fields) != 1):
            found = f"key {','.join(keys)}, partition {','.join(config.partition_fields) or 'none'}"
            raise _refusal(f"{kind} keys of such fields", "one key field and one partition field", found)
        labelled = len(keys) > 1
        if has_one_field_complex_key(config):
            if one_field_prefixed is None:
                raise UsageError(
                    "a COMPLEX key of one field has two encodings",
                    expected=f"{keys[0]}:value or value",
                    todo="Give the encoding that the table's rows have.",
                )
            labelled = one_field_prefixed
        return KeyGenerator(
            key_fields=keys,
            labelled=labelled,
            partition_fields=_partition_fields(config, kind, writer or {}),
            hive_style=config.hive_style,
            url_encode=config.url_encode,
        )

    def keys(self, rows: pa.Table) -> pa.StringArray:
        """The record key of each row; in a keyless table a hash of its values in its place. UsageError: a key column is
        missing or has a type without an exact text form; or rows have a null or empty key (with several key fields: all
        of them null or empty). The error gives the columns and the number of rows."""
        if not self.key_fields:
            return pa.array(row_hashes(rows.columns, rows.num_rows)).cast(pa.string())
        parts = [_text(field_values(rows, name), name, "record key") for name in self.key_fields]
        empty = [pc.equal(pc.fill_null(part, ""), "") for part in parts]
        without = empty[0]
        for other in empty[1:]:
            without = pc.and_(without, other)
        count = pc.sum(without).as_py() or 0
        if count:
            raise UsageError(
                "rows without a record key",
                expected="a value that is neither null nor empty",
                found=f"{count} of {rows.num_rows} rows: {', '.join(self.key_fields)}",
            )
        return labelled_keys(self.key_fields, parts) if self.labelled else parts[0]

    def partition_paths(self, rows: pa.Table) -> pa.StringArray:
        """The partition path of each row, relative to the table; "" in a table without partitions. UsageError: a
        partition column is missing or has a type without an exact text form; or a value cannot be formatted, or gives a
        path outside the table or in its metadata."""
        if not self.partition_fields:
            return pa.repeat(pa.scalar("", pa.string()), rows.num_rows)
        levels = [self._level(rows, field) for field in self.partition_fields]
        paths = levels[0] if len(levels) == 1 else pc.binary_join_element_wise(*levels, "/")
        names = ", ".join(field.name for field in self.partition_fields)
        _check_paths(pc.unique(paths), names, encoded=self.url_encode)
        return paths

    def _level(self, rows: pa.Table, field: PartitionField) -> pa.StringArray:
        values = field_values(rows, field.name)
        _check_type(values.type, field.name, "partition")
        # Many rows share a value: each distinct value is formatted and escaped once.
        distinct = pc.dictionary_encode(values, null_encoding="encode")
        return self._folders(distinct.dictionary, field).take(distinct.indices)

    def _folders(self, values: pa.Array, field: PartitionField) -> pa.StringArray:
        if field.times is not None:
            text = field.times.format(values, field.name)
        else:
            text = pc.fill_null(self._value_text(values, field.name), "")
            text = pc.if_else(pc.equal(text, ""), self.null_folder, text)
        if self.url_encode or (self.timestamps is TimestampText.SQL and pa.types.is_timestamp(values.type)):
            text = escaped(text)
        if self.slashed_dates:
            text = _slashed(text, field.name, self.null_folder)
        return pc.binary_join_element_wise(f"{field.name}=", text, "") if self.hive_style else text

    def _value_text(self, values: pa.Array, name: str) -> pa.StringArray:
        if self.timestamps is TimestampText.NUMBER or not pa.types.is_timestamp(values.type):
            return _text(values, name, "partition")
        shown = pc.strftime(values.cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
        if self.timestamps is TimestampText.SQL:
            return pc.replace_substring_regex(shown, r"\.\d*$", "")
        return pc.replace_substring_regex(shown, r"(\.\d+?)0*$", r"\1")


def _slashed(text: pa.StringArray, name: str, null_folder: str) -> pa.StringArray:
    """Dates as `2024/01/02`. UsageError: values of another form, whose folders are not known."""
    dates = pc.match_substring_regex(text, r"^\d{4}-\d{2}-\d{2}$")
    other = pc.invert(pc.or_(dates, pc.equal(text, null_folder)))
    if pc.any(other).as_py():
        raise UsageError(
            "this table has dates as folders of three levels",
            expected=f"{name}: dates, as 2024-01-02",
            found=repr(text.filter(other)[0].as_py()),
        )
    return pc.if_else(dates, pc.replace_substring(text, "-", "/"), text)


def generator_kind(config: TableConfig) -> str:
    """SIMPLE, COMPLEX, ...: as the table's config says, or as Hudi infers it from the number of fields."""
    return config.key_generator or inferred_kind(config.record_key_fields, config.partition_fields)


def inferred_kind(key_fields: tuple[str, ...], partition_fields: tuple[str, ...]) -> str:
    """The key generator that Hudi uses by default."""
    if not partition_fields:
        return "NON_PARTITION"
    if any(":" in field for field in partition_fields):
        return "CUSTOM"
    return "SIMPLE" if len(key_fields) <= 1 == len(partition_fields) else "COMPLEX"


def has_one_field_complex_key(config: TableConfig) -> bool:
    """Whether the encoding of the table's keys must be determined: see `key_encoding`."""
    return generator_kind(config) == "COMPLEX" and len(config.record_key_fields) == 1


def field_values(rows: pa.Table, name: str) -> pa.Array:
    """A column, or with dots a field inside records, null if a record is null. UsageError: it does not exist."""
    first, *inner = [name] if name in rows.column_names else name.split(".")
    if first not in rows.column_names:
        raise _missing(rows, name)
    values = flat(rows.column(first))
    for part in inner:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(part) < 0:
            raise _missing(rows, name)
        values = pc.struct_field(values, part)
    return values


def _missing(rows: pa.Table, name: str) -> UsageError:
    return UsageError(
        "the rows lack a key or partition column", expected=name, found=", ".join(rows.column_names) or "no columns"
    )


_ESCAPED = tuple(c for c in map(chr, range(128)) if c < " " or c in "\"#%'*/:=?\\{[]^\x7f")
_ESCAPED_CLASS = "[" + "".join(rf"\x{ord(c):02x}" for c in _ESCAPED) + "]"


def escaped(values: pa.StringArray) -> pa.StringArray:
    """Partition values as Hive escapes them: %XX for characters with a meaning in a path."""
    if not pc.any(pc.match_substring_regex(values, _ESCAPED_CLASS)).as_py():
        return values
    for character in ("%", *(c for c in _ESCAPED if c != "%")):
        values = pc.replace_substring(values, character, f"%{ord(character):02X}")
    return values


def _check_type(kind: pa.DataType, name: str, use: str) -> None:
    if not has_text(kind):
        raise UsageError(
            f"a column of this type cannot be a {use}",
            expected="text, integer, boolean, date, timestamp or decimal",
            found=f"{name}: {kind}",
            todo="Cast the column: other types have no text form that is the same in every writer.",
        )


def _text(values: pa.Array, name: str, use: str) -> pa.StringArray:
    _check_type(values.type, name, use)
    if pa.types.is_date32(values.type):
        ends = pc.min_max(values.cast(pa.int32())).as_py()
        if ends["min"] is not None and not (ends["min"] >= _FIRST_DAY and ends["max"] <= _LAST_DAY):
            raise UsageError(
                f"dates outside the years 0000 to 9999 cannot be a {use}",
                found=name,
                todo="Cast the column to a text, or leave these rows out.",
            )
    return value_text(values, name)


_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
"""0000-01-01 and 9999-12-31 in days since 1970: Java writes years outside this range with a sign."""

# A part that is empty, "." or ".."; the metadata folder; a leading scheme, as Hadoop reads it; forbidden characters.
_NO_PATH = r"(^|/)\.{0,2}(/|$)|^\.hoodie(/|$)|^[^/]*:|[\x00\n\r]"


def _check_paths(paths: pa.StringArray, names: str, *, encoded: bool) -> None:
    wrong = pc.match_substring_regex(paths, _NO_PATH)
    if pc.any(wrong).as_py():
        raise UsageError(
            "partition values that are not paths inside the table",
            expected=f"{names}: no empty, '.' or '..' part, not .hoodie, no ':' in the first part, no line ends",
            found=f"{pc.sum(wrong)} of {len(paths)} paths, like {paths.filter(wrong)[0].as_py()!r}",
            todo="Change the values."
            if encoded
            else "Change the values, or create the table with URL encoding of partition values.",
        )


def _partition_fields(config: TableConfig, kind: str, writer: Mapping[str, str]) -> tuple[PartitionField, ...]:
    if kind == "NON_PARTITION":
        return ()
    if kind != "CUSTOM":
        times = PartitionTimes.of(config.properties, writer) if kind == "TIMESTAMP" else None
        return tuple(PartitionField(name=name, times=times) for name in config.partition_fields)
    fields = []
    for field in _typed(config, writer):
        name, _, type_ = field.partition(":")
        if type_.upper() not in ("SIMPLE", "TIMESTAMP"):
            raise UnsupportedError(
                "CUSTOM keys whose partition types the table does not store: not supported for writing",
                expected=f"{PARTITION_TYPES}={name}:SIMPLE, or {name}:TIMESTAMP",
                found=field,
                todo='Give them as the table\'s other writers do, by .conf({...}) or .partition("field:TYPE").',
            )
        times = PartitionTimes.of(config.properties, writer) if type_.upper() == "TIMESTAMP" else None
        fields.append(PartitionField(name=name, times=times))
    return tuple(fields)


def _typed(config: TableConfig, writer: Mapping[str, str]) -> list[str]:
    """The partition fields of a CUSTOM generator, with their types: of the table, or of its writer where the table
    stores none, as on version 6. UsageError: both do, and differ, or the fields are others."""
    stored, given = (
        [field.strip() for field in text.split(",") if field.strip()]
        for text in (config.properties.get("hoodie.table.partition.fields", ""), writer.get(PARTITION_TYPES, ""))
    )
    if not given:
        return stored
    known = [field for field in stored if ":" in field]
    if [f.partition(":")[0] for f in given] != list(config.partition_fields) or (
        known and [f.upper() for f in known] != [f.upper() for f in given]
    ):
        raise UsageError(f"{PARTITION_TYPES} contradicts the table", expected=",".join(stored), found=",".join(given))
    return given


_NAME_BYTES, _PATH_BYTES, _KEY_BYTES = 255, 4096, 1024
"""The longest name of a folder and path of a file system (Linux, HDFS), and the longest key of an object store."""
_BELOW = 200
"""Bytes that a marker's path has besides those of its table and partition: the longest name below a partition."""


def refuse_long_partitions(storage: Storage, partitions: Collection[str]) -> None:
    """UsageError: a partition for which the storage can make no folder, or no file in it."""
    name_max, path_max = (_NAME_BYTES, _PATH_BYTES) if storage.is_file_system else (_KEY_BYTES, _KEY_BYTES)
    left = path_max - _BELOW - len(storage.base_path.encode())
    for partition in sorted(partitions):
        longest = max(len(part.encode()) for part in partition.split("/"))
        if longest > name_max or len(partition.encode()) > left:
            raise UsageError(
                "a partition value is too long for a folder of this storage",
                path=storage.base_path,
                expected=f"{name_max} bytes at most between two slashes, {left} in all",
                found=f"{longest} of {len(partition.encode())} bytes: {partition[:60]}...",
                todo="Shorten the values, or partition by another column.",
            )


def _refusal(what: str, expected: str, found: str) -> UnsupportedError:
    return UnsupportedError(f"{what}: not supported for writing", expected=expected, found=found, todo=_USE_HUDI)
