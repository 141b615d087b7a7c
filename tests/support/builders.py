"""What tests are made of: log files written by hand, timelines and listings from names, and a reference merge.

Log bytes follow hudi-format.md section 5 and use none of the product's code, so a mistake there cannot hide here.
The reference merge decides row by row, as the notes on Hudi's sources say it."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from phantombase.timeline.format.instant import Instant, highest_states
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.log_block import LogBlock, scan_blocks
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.view.grouping import file_groups
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, ViewFacts

# --- log files -------------------------------------------------------------------------------------------------

MAGIC = b"#HUDI#"
COMMAND, DELETE, CORRUPT, AVRO, HFILE, PARQUET, CDC = range(7)
INSTANT_TIME, TARGET_INSTANT_TIME, SCHEMA, COMMAND_BLOCK_TYPE, COMPACTED_BLOCK_TIMES = range(5)
IS_PARTIAL = 7
Headers = Mapping[int, str]
OrderingValue = tuple[str, Any] | None
"""(wrapper record's name, value), or None for union index 0. An ArrayWrapper's value is a list of these."""
NO_ORDERING: OrderingValue = ("IntWrapper", 0)


def header_map(headers: Headers) -> bytes:
    """The count and the (key, length, UTF-8 value) entries."""
    parts = [struct.pack(">i", len(headers))]
    for key, value in headers.items():
        data = value.encode()
        parts += [struct.pack(">ii", key, len(data)), data]
    return b"".join(parts)


def block(kind: int, headers: Headers, content: bytes = b"", *, version: int = 1) -> bytes:
    """One block, whole and sound."""
    body = struct.pack(">ii", version, kind) + header_map(headers)
    body += struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    size = len(body) + 8
    return MAGIC + struct.pack(">q", size) + body + struct.pack(">q", size + 6)


def avro_content(schema: str, rows: Iterable[Mapping[str, Any]], *, version: int = 3) -> bytes:
    """int32 version, int32 count, then each record behind its int32 length."""
    parsed = fastavro.parse_schema(json.loads(schema))
    records = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, dict(row))
        records.append(struct.pack(">i", len(stream.getvalue())) + stream.getvalue())
    return struct.pack(">ii", version, len(records)) + b"".join(records)


def avro_block(instant: str, schema: str, rows: Iterable[Mapping[str, Any]], headers: Headers | None = None) -> bytes:
    """An Avro data block."""
    return block(AVRO, {INSTANT_TIME: instant, SCHEMA: schema, **(headers or {})}, avro_content(schema, rows))


def parquet_block(instant: str, schema: str, rows: pa.Table, headers: Headers | None = None) -> bytes:
    """A Parquet data block."""
    stream = io.BytesIO()
    pq.write_table(rows, stream, store_schema=False)
    return block(PARQUET, {INSTANT_TIME: instant, SCHEMA: schema, **(headers or {})}, stream.getvalue())


_AVRO_MODEL = "org.apache.hudi.avro.model"
_DECIMAL_30_15 = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}
_WRAPPERS: dict[str, Any] = {
    "BooleanWrapper": "boolean",
    "IntWrapper": "int",
    "LongWrapper": "long",
    "FloatWrapper": "float",
    "DoubleWrapper": "double",
    "BytesWrapper": "bytes",
    "StringWrapper": "string",
    "DateWrapper": {"type": "int", "logicalType": "date"},
    "DecimalWrapper": _DECIMAL_30_15,
    "TimeMicrosWrapper": {"type": "long", "logicalType": "time-micros"},
    "TimestampMicrosWrapper": {"type": "long", "logicalType": "timestamp-micros"},
}
_LOCAL_DATE = {"type": "int", "logicalType": "date"}


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


_ARRAY = _record(
    "ArrayWrapper",
    (
        "wrappedValues",
        ["null", {"type": "array", "items": ["null", *_WRAPPERS, _record("LocalDateWrapper", ("value", _LOCAL_DATE))]}],
    ),
)
_DELETE_LIST: Any = fastavro.parse_schema(
    {
        **_record(
            "HoodieDeleteRecordList",
            (
                "deleteRecordList",
                {
                    "type": "array",
                    "items": _record(
                        "HoodieDeleteRecord",
                        ("recordKey", ["null", "string"]),
                        ("partitionPath", ["null", "string"]),
                        ("orderingVal", ["null", *(_record(n, ("value", t)) for n, t in _WRAPPERS.items()), _ARRAY]),
                    ),
                },
            ),
        ),
        "namespace": _AVRO_MODEL,
    }
)


def _wrapped(value: OrderingValue) -> Any:
    if value is None:
        return None
    name, inner = value
    if name == "ArrayWrapper":
        return f"{_AVRO_MODEL}.{name}", {"wrappedValues": [_wrapped(v) for v in inner]}
    return f"{_AVRO_MODEL}.{name}", {"value": inner}


def delete_content(entries: Iterable[tuple[str | None, OrderingValue]], *, partition: str | None = "d=0") -> bytes:
    """int32 3, int32 length, Avro list of (key, partition path, wrapped ordering value)."""
    records = [{"recordKey": k, "partitionPath": partition, "orderingVal": _wrapped(v)} for k, v in entries]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _DELETE_LIST, {"deleteRecordList": records})
    return struct.pack(">ii", 3, len(stream.getvalue())) + stream.getvalue()


def delete_block(instant: str, entries: Iterable[tuple[str | None, OrderingValue]], schema: str = "{}") -> bytes:
    """A delete block."""
    return block(DELETE, {INSTANT_TIME: instant, SCHEMA: schema}, delete_content(entries))


def rollback_block(instant: str, target: str) -> bytes:
    """A command block that revokes `target`; header order as real Hudi 0.15 writes it."""
    return block(COMMAND, {COMMAND_BLOCK_TYPE: "0", INSTANT_TIME: instant, TARGET_INSTANT_TIME: target})


def blocks_of(data: bytes, path: str = "log") -> list[LogBlock]:
    """The blocks of a log file held in memory."""
    return list(scan_blocks(pa.BufferReader(data), path))


def avro_schema(*fields: tuple[str, Any], name: str = "t1_record") -> str:
    """A record schema as JSON."""
    record = {**_record(name, *fields), "namespace": "hoodie.t1"}
    return json.dumps(record)


# --- timelines, listings, views --------------------------------------------------------------------------------


def timeline_of(
    layout: Layout, *names: str, archived: Sequence[str] = (), legacy: Mapping[str, str] | None = None
) -> Timeline:
    """A timeline from the file names of its instants, e.g. `10.deltacommit`, `20.compaction.requested`."""
    return Timeline(
        layout=layout,
        instants=highest_states(instant_of(layout, name) for name in names),
        archived=tuple(instant_of(layout, name) for name in archived),
        legacy_completions=dict(legacy or {}),
    )


def instant_of(layout: Layout, name: str) -> Instant:
    """The instant a file name stands for."""
    instant = layout.parse(name)
    assert instant is not None, name
    return instant


def listing_of(*names: str) -> list[Entry]:
    """A partition's listing in shorthand; `b10` base file of instant 10, `l10.1` log file 1 of instant 10. `b10x` is a
    second base file of instant 10 (another write token). Longer names are taken as they are."""
    return [Entry(name=_file_name(n), is_folder=False, size=1) for n in names]


def _file_name(short: str) -> str:
    if short.startswith("b") and len(short) < 6:
        token = "9-9-9" if short.endswith("x") else "0-0-0"
        return f"f_{token}_{short[1:].rstrip('x')}.parquet"
    if short.startswith("l") and len(short) < 8:
        instant, _, version = short[1:].partition(".")
        return f".f_{instant}.log.{version}_0-0-0"
    return short


NO_FACTS = ViewFacts(pending_plans={}, replaced={}, compacted={})
GROUP: GroupKey = ("p", "f")
"""The key of the one file group that shorthand names belong to."""


def facts_of(*, pending: str | None = None, replaced: str | None = None, compacted: str | None = None) -> ViewFacts:
    """What the timeline's files say about the one file group; `compacted`: instant whose commit names base `b<it>`."""
    return ViewFacts(
        pending_plans={GROUP: pending} if pending else {},
        replaced={GROUP: replaced} if replaced else {},
        compacted={GROUP: {compacted: f"f_0-0-0_{compacted}.parquet"}} if compacted else {},
    )


def group_of(timeline: Timeline, entries: Iterable[Entry], facts: ViewFacts = NO_FACTS) -> FileGroup:
    """The one file group of a listing."""
    (group,) = file_groups("p", entries, timeline, facts)
    return group


def picture(slice_: FileSlice | None) -> str | None:
    """A slice in shorthand: `10: b10 l10.1 l10.2`; a missing base file is `-`."""
    if slice_ is None:
        return None
    base = "-" if slice_.base is None else f"b{slice_.base.name.instant}"
    logs = [f"l{log.name.instant}.{log.name.version}" for log in slice_.logs]
    return " ".join([f"{slice_.base_instant}:", base, *logs])


def pictures(group: FileGroup) -> list[str | None]:
    """All slices of a group in shorthand."""
    return [picture(s) for s in group.slices]


# --- the reference merge ---------------------------------------------------------------------------------------


class HudiFails(Exception):
    """Hudi cannot read the table (ClassCastException, or "ordering value is null" in 0.15)."""


class Kind(Enum):
    """What a log entry is."""

    ROW = "upd"
    DELETED_ROW = "isdel"
    DELETE = "del"


Java = tuple[str, Any]
"""(Java class, value in Java's order)."""
INTEGER_0: Java = ("Integer", 0)


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One log entry of one key. `order`: its ordering value as Hudi holds it, `INTEGER_0` for none. `null`: the
    ordering column is null (0.15 then fails)."""

    kind: Kind
    order: Java
    null: bool = False
    label: str = ""

    @property
    def commit_time_delete(self) -> bool:
        """Hudi 1.x: a delete that carries Integer 0."""
        return self.kind is not Kind.ROW and self.order == INTEGER_0


def compare(left: Java, right: Java) -> int:
    """Java's compareTo: -1, 0 or 1; tuples element by element."""
    if left[0] == right[0] == "Array":
        for a, b in zip(left[1], right[1], strict=True):
            if (order := compare(a, b)) != 0:
                return order
        return 0
    if left[0] != right[0]:
        raise HudiFails(f"{left[0]} cannot be cast to {right[0]}")
    return int(left[1] > right[1]) - int(left[1] < right[1])


def same_java_class(left: Java, right: Java) -> bool:
    """Same class; for tuples of every element."""
    if left[0] == right[0] == "Array":
        return len(left[1]) == len(right[1]) and all(
            same_java_class(a, b) for a, b in zip(left[1], right[1], strict=True)
        )
    return left[0] == right[0]


def reference_log(mode: MergeMode, entries: Sequence[LogEntry]) -> LogEntry:
    """Which entry of one key survives among log entries."""
    old = entries[0]
    if mode in _0X and any(e.null for e in entries):
        raise HudiFails("Ordering value is null for record")
    for new in entries[1:]:
        old = _log_log(mode, old, new)
    return old


_0X = (MergeMode.OVERWRITE_WITH_LATEST_0X, MergeMode.EVENT_TIME_0X, MergeMode.EVENT_TIME_AVRO_0X)


def _log_log(mode: MergeMode, old: LogEntry, new: LogEntry) -> LogEntry:
    if mode is MergeMode.COMMIT_TIME:
        return new
    if new.kind is Kind.DELETE:
        if mode is MergeMode.EVENT_TIME and old.commit_time_delete:
            return old
        if new.order == INTEGER_0 or not same_java_class(old.order, new.order):
            return new
        return old if compare(old.order, new.order) > 0 else new
    if mode is MergeMode.EVENT_TIME:
        if new.commit_time_delete or old.commit_time_delete:
            return new
        return new if compare(new.order, old.order) >= 0 else old
    if old.kind is Kind.DELETE:
        return new
    return old if compare(_raw(old.order), _raw(new.order)) > 0 else new


def _raw(order: Java) -> Java:
    """0.15 compares decimals of log entries by their fixed bytes, unsigned: negative ones are the greatest."""
    return (order[0], (order[1] < 0, order[1])) if order[0] == "GenericFixed" else order


def reference_log_wins(mode: MergeMode, log: LogEntry, base: Java, *, base_null: bool = False) -> bool:
    """Whether the surviving log entry takes effect on a base row."""
    if mode in (MergeMode.COMMIT_TIME, MergeMode.OVERWRITE_WITH_LATEST_0X):
        return True
    if mode is MergeMode.EVENT_TIME_AVRO_0X and log.kind is not Kind.ROW:
        return True
    if mode in (MergeMode.EVENT_TIME_0X, MergeMode.EVENT_TIME_AVRO_0X):
        return log.kind is Kind.DELETE or base_null or compare(log.order, base) >= 0
    return log.commit_time_delete or compare(log.order, base) >= 0


@dataclass(frozen=True, kw_only=True)
class BaseRow:
    """One row of the base file."""

    key: str
    order: Java
    null: bool = False
    label: str = ""


@dataclass(kw_only=True)
class Merged:
    """What the reference merge says: labels of the rows in order, counts for the ledger, keys Hudi fails on."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    untouched: int = 0
    kept: int = 0
    replaced: int = 0
    deleted: int = 0
    duplicate_hits: int = 0
    inserts: int = 0
    deletes_of_absent: int = 0


def reference_merge(
    mode: MergeMode, base: Sequence[BaseRow], log: Sequence[tuple[str, LogEntry]], *, every_duplicate: bool = False
) -> Merged:
    """One file slice, row by row. Rows of keys that Hudi fails on are left out."""
    result = Merged()
    by_key: dict[str, list[LogEntry]] = {}
    for key, entry in log:
        by_key.setdefault(key, []).append(entry)
    survivors: dict[str, LogEntry] = {}
    for key, entries in by_key.items():
        try:
            survivors[key] = reference_log(mode, entries)
        except HudiFails:
            result.failed.add(key)
    seen: set[str] = set()
    for row in base:
        try:
            _base_row(mode, row, survivors, seen, every_duplicate, result)
        except HudiFails:
            result.failed.add(row.key)
    for key, entry in survivors.items():
        if key in seen or key in result.failed:
            continue
        if entry.kind is Kind.ROW:
            result.rows.append((key, entry.label))
            result.inserts += 1
        else:
            result.deletes_of_absent += 1
    result.rows = [(key, label) for key, label in result.rows if key not in result.failed]
    return result


def _base_row(
    mode: MergeMode,
    row: BaseRow,
    survivors: Mapping[str, LogEntry],
    seen: set[str],
    every_duplicate: bool,
    result: Merged,
) -> None:
    again = row.key in seen
    if row.key not in survivors or (again and not every_duplicate):
        result.untouched += 1
        result.rows.append((row.key, row.label))
        return
    seen.add(row.key)
    result.duplicate_hits += again
    entry = survivors[row.key]
    if not reference_log_wins(mode, entry, row.order, base_null=row.null):
        result.kept += 1
        result.rows.append((row.key, row.label))
    elif entry.kind is Kind.ROW:
        result.replaced += 1
        result.rows.append((row.key, entry.label))
    else:
        result.deleted += 1


def java_double(value: float) -> tuple[int, float, int]:
    """A sort key in the order of Double.compareTo: -0.0 < 0.0, NaN last."""
    return (1, 0.0, 0) if math.isnan(value) else (0, value, 0 if math.copysign(1, value) < 0 else 1)


@dataclass(frozen=True, kw_only=True)
class OrderingColumn:
    """An ordering column type: its pool of values, Java class in rows (1.x, 0.15) and delete wrapper."""

    name: str
    arrow: pa.DataType
    pool: tuple[Any, ...]
    wrapper: str
    wrapper_arrow: pa.DataType
    java: str
    java_0x: str = ""
    wrapper_java: str = ""

    def row_value(self, value: Any, mode: MergeMode) -> Java:
        """What Hudi holds for a row's value."""
        if value is None:
            return INTEGER_0
        return (self.java_0x or self.java) if mode in _0X else self.java, self._sortable(value)

    def delete_value(self, value: Any) -> Java:
        """What Hudi holds for a typed delete's value."""
        return self.wrapper_java or self.java, self._sortable(value)

    def _sortable(self, value: Any) -> Any:
        if isinstance(value, float):
            return java_double(value)
        return value.encode() if isinstance(value, str) else value


ORDERING_COLUMNS = (
    OrderingColumn(
        name="int",
        arrow=pa.int32(),
        pool=(-2, -1, 0, 1, 5),
        wrapper="IntWrapper",
        wrapper_arrow=pa.int32(),
        java="Integer",
    ),
    OrderingColumn(
        name="long",
        arrow=pa.int64(),
        pool=(-(2**62), -1, 0, 1, 5, 2**62),
        wrapper="LongWrapper",
        wrapper_arrow=pa.int64(),
        java="Long",
    ),
    OrderingColumn(
        name="double",
        arrow=pa.float64(),
        pool=(-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan),
        wrapper="DoubleWrapper",
        wrapper_arrow=pa.float64(),
        java="Double",
    ),
    OrderingColumn(
        name="float",
        arrow=pa.float32(),
        pool=(-1.5, -0.0, 0.0, 2.5, math.nan),
        wrapper="FloatWrapper",
        wrapper_arrow=pa.float32(),
        java="Float",
    ),
    OrderingColumn(
        name="boolean",
        arrow=pa.bool_(),
        pool=(False, True),
        wrapper="BooleanWrapper",
        wrapper_arrow=pa.bool_(),
        java="Boolean",
    ),
    OrderingColumn(
        name="string",
        arrow=pa.string(),
        pool=("", "a", "b", "é", "\uffff", "\U0001f600"),
        wrapper="StringWrapper",
        wrapper_arrow=pa.string(),
        java="String",
        java_0x="Utf8",
    ),
    OrderingColumn(
        name="decimal",
        arrow=pa.decimal128(10, 2),
        pool=(Decimal("-5.00"), Decimal("-1.00"), Decimal("0.00"), Decimal("1.25"), Decimal("3.00")),
        wrapper="DecimalWrapper",
        wrapper_arrow=pa.decimal128(30, 15),
        java="BigDecimal",
        java_0x="GenericFixed",
    ),
    OrderingColumn(
        name="timestamp",
        arrow=pa.timestamp("us", tz="UTC"),
        pool=(-1, 0, 1, 5, 1_700_000_000_000_000),
        wrapper="LongWrapper",
        wrapper_arrow=pa.int64(),
        java="Long",
    ),
    OrderingColumn(
        name="date",
        arrow=pa.date32(),
        pool=(-1, 1, 5, 20_000),
        wrapper="DateWrapper",
        wrapper_arrow=pa.date32(),
        java="Integer",
        wrapper_java="Date",
    ),
)
COLUMN = {column.name: column for column in ORDERING_COLUMNS}


def schema(**columns: pa.DataType) -> pa.Schema:
    """Nullable columns; a name that ends in `_` is one that is not (without the `_`)."""
    return pa.schema(
        [pa.field(name.rstrip("_"), kind, nullable=not name.endswith("_")) for name, kind in columns.items()]
    )


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.decimal128(12, 2): st.decimals(-(10**9), 10**9, places=2).map(lambda d: d or Decimal("0.00")),
    pa.timestamp("us", tz="UTC"): st.integers(-(2**52), 2**52),
    pa.list_(pa.field("element", pa.int64())): st.lists(st.integers(0, 9), max_size=4),
    pa.struct({"x": pa.string(), "y": pa.int32()}): st.fixed_dictionaries(
        {"x": st.none() | st.text(max_size=3), "y": st.none() | st.integers(0, 5)}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=3).map(
        lambda found: list(found.items())
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Up to 60 rows of some columns of some types, with nulls."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    rows = draw(st.integers(1, 60))
    columns = [draw(st.lists(st.none() | VALUES[k], min_size=rows, max_size=rows)) for k in kinds]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])
