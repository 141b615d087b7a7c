"""The cases: for each name of Hudi that says which rows are written, the values that say something else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from .case import Batch, Case

_W = "hoodie.datasource.write."
KEY, PARTITION, ORDERING = f"{_W}recordkey.field", f"{_W}partitionpath.field", f"{_W}precombine.field"
INDEX = "hoodie.index.type"
BUCKETS = "hoodie.bucket.index.num.buckets"
_SMALL = "hoodie.parquet.small.file.limit"
_PAYLOAD = "org.apache.hudi.common.model."
_KEYGEN = "org.apache.hudi.keygen."
_TIMES = "hoodie.keygen.timebased."
_ONCE = "hoodie.combine.before.insert"
COLUMNS = [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int32())]


def table(rows: Sequence[Sequence[Any]], columns: Sequence[tuple[str, Any]] = COLUMNS) -> pa.Table:
    """Rows of these columns."""
    names = [name for name, _ in columns]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], pa.schema(list(columns)))


FIRST = table([(key, "x" if key < "d" else "y", 10, 0) for key in "abcdef"])
SECOND = table(
    [("a", "x", 11, 1), ("b", "x", 9, 1), ("c", "x", 10, 1), ("d", "x", 12, 1), ("e", "z", 8, 1), ("g", "z", 1, 1)]
)
"""Updates that are newer, older and equal; one of a key of another partition, an older one of another; a new key."""
DOUBLED = table([("a", "x", 12, 1), ("a", "x", 11, 2), ("b", "x", 12, 3), ("b", "x", 13, 4), ("h", "y", 2, 5)])
KEYS = table([("a", "x", 12, None), ("f", "y", 3, None), ("d", "x", 99, None), ("nobody", "x", 1, None)])
HISTORY = (Batch(rows=FIRST), Batch(rows=SECOND), Batch(rows=DOUBLED), Batch(rows=KEYS, operation="delete"))

GENERATORS: Mapping[str, Mapping[str, Any]] = {
    "simple-class": {f"{_W}keygenerator.class": f"{_KEYGEN}SimpleKeyGenerator"},
    "complex-class": {f"{_W}keygenerator.class": f"{_KEYGEN}ComplexKeyGenerator"},
    "complex-avro-class": {f"{_W}keygenerator.class": f"{_KEYGEN}ComplexAvroKeyGenerator"},
    "non-partitioned-class": {f"{_W}keygenerator.class": f"{_KEYGEN}NonpartitionedKeyGenerator", PARTITION: ""},
    "no-partition": {PARTITION: None},
    "two-keys": {KEY: "id,ts"},
    "two-keys-no-partition": {KEY: "id,p", PARTITION: ""},
    "two-partitions": {PARTITION: "p,id"},
    "type-complex": {f"{_W}keygenerator.type": "COMPLEX"},
    "type-custom": {f"{_W}keygenerator.type": "CUSTOM", PARTITION: "p:SIMPLE"},
    "type-non-partitioned": {f"{_W}keygenerator.type": "NON_PARTITION"},
    "type-simple": {f"{_W}keygenerator.type": "SIMPLE", KEY: "id,p"},
    "type-timestamp": {
        f"{_W}keygenerator.type": "TIMESTAMP",
        f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS",
        f"{_TIMES}output.dateformat": "yyyy",
        f"{_TIMES}timezone": "UTC",
        PARTITION: "ts",
    },
    "custom-class": {f"{_W}keygenerator.class": f"{_KEYGEN}CustomKeyGenerator", PARTITION: "p:SIMPLE"},
    "hive-style": {f"{_W}hive_style_partitioning": "true"},
    "url-encode": {f"{_W}partitionpath.urlencode": True},
    "hive-style-url-encode": {f"{_W}partitionpath.urlencode": True, f"{_W}hive_style_partitioning": True},
    "no-meta-columns": {"hoodie.populate.meta.fields": "false", PARTITION: "p"},
}
INDEXES: Mapping[str, Mapping[str, Any]] = {
    "simple": {INDEX: "SIMPLE"},
    "bloom": {INDEX: "BLOOM"},
    "global-simple": {INDEX: "GLOBAL_SIMPLE"},
    "global-simple-stay": {INDEX: "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "false"},
    "global-bloom": {INDEX: "GLOBAL_BLOOM"},
    "global-bloom-stay": {INDEX: "GLOBAL_BLOOM", "hoodie.bloom.index.update.partition.path": False},
    "simple-with-names-of-global": {INDEX: "SIMPLE", "hoodie.simple.index.update.partition.path": "false"},
    "bucket": {INDEX: "BUCKET", BUCKETS: 3},
    "bucket-usual-number": {INDEX: "BUCKET"},
    "bucket-hash-field": {INDEX: "BUCKET", BUCKETS: "4", KEY: "id,p", "hoodie.bucket.index.hash.field": "id"},
    "buckets-without-index": {BUCKETS: 3},
    "other-logs": {"hoodie.logfile.data.block.format": "parquet"},
    "avro-logs": {"hoodie.logfile.data.block.format": "avro"},
    "no-small-files": {_SMALL: 0},
    "files-of-one-byte": {"hoodie.parquet.max.file.size": 1, _SMALL: 0},
    "parallelism": {"hoodie.upsert.shuffle.parallelism": 7},
    "inline": {"hoodie.compact.inline": True, "hoodie.compact.inline.max.delta.commits": 1},
    "inline-days": {
        "hoodie.compact.inline": "true",
        "hoodie.compact.inline.max.delta.commits": "2",
        "hoodie.compaction.strategy": "org.apache.hudi.table.action.compact.strategy.UnBoundedCompactionStrategy",
    },
    "scheduled": {"hoodie.compact.schedule.inline": True, "hoodie.compact.inline.max.delta.commits": 1},
    "cleaned": {"hoodie.clean.automatic": True, "hoodie.clean.commits.retained": 1},
    "cleaned-versions": {"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.automatic": "true"},
    "metadata-table": {"hoodie.metadata.enable": True},
    "no-services": {"hoodie.table.services.enabled": False},
    "codec": {"hoodie.parquet.compression.codec": "snappy", "hoodie.parquet.bloom.filter.enabled": "false"},
}
MERGES: Mapping[str, Mapping[str, Any]] = {
    "event-payload": {f"{_W}payload.class": f"{_PAYLOAD}DefaultHoodieRecordPayload"},
    "commit-payload": {f"{_W}payload.class": f"{_PAYLOAD}OverwriteWithLatestAvroPayload"},
    "event-mode": {"hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING"},
    "commit-mode": {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"},
    "commit-mode-small": {"hoodie.write.record.merge.mode": "commit_time_ordering"},
    "commit-mode-and-payload": {
        "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
        f"{_W}payload.class": f"{_PAYLOAD}OverwriteWithLatestAvroPayload",
    },
    "mode-against-payload": {
        "hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING",
        f"{_W}payload.class": f"{_PAYLOAD}OverwriteWithLatestAvroPayload",
    },
    "no-ordering": {ORDERING: None},
    "ordering-fields": {ORDERING: None, "hoodie.table.ordering.fields": "ts"},
    "two-orderings": {ORDERING: "ts,v"},
    "commit-strategy": {"hoodie.write.record.merge.strategy.id": "ce9acb64-bde0-424c-9b91-f6ebba25356d"},
    "uncombined": {"hoodie.combine.before.upsert": "false"},
}
_NAMES_OF_1_2 = ("event-mode", "commit-mode", "commit-strategy", "mode-against", "ordering-fields", "two-orderings")


def _histories() -> Iterator[Case]:
    for kind, known in (("key", GENERATORS), ("index", INDEXES), ("merge", MERGES)):
        for name, conf in known.items():
            yield Case(name=f"{kind}-{name}", conf=conf, batches=HISTORY)
    for name in ("complex-class", "no-partition", "two-keys", "hive-style-url-encode", "non-partitioned-class"):
        yield Case(name=f"key-{name}", conf=GENERATORS[name], batches=HISTORY, version=6)
    for name in ("global-simple", "global-bloom-stay", "bucket", "bucket-hash-field"):
        yield Case(name=f"index-{name}", conf=INDEXES[name], batches=HISTORY, version=6)
    for name in ("event-payload", "commit-payload", "no-ordering"):
        yield Case(name=f"merge-{name}", conf=MERGES[name], batches=HISTORY, version=6)


_FOLDERS = [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())]
_ODD = ["a b", "e=f", "100%", "ü", "", None, "x'y", "2024-01-01"]
ODD_FOLDERS = table([(f"k{n}", p, 1) for n, p in enumerate(_ODD)], _FOLDERS)
_TYPED = [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64())]


def _of_type(kind: Any, *values: Any) -> pa.Table:
    return table(
        [(f"k{n}", v, 1) for n, v in enumerate(values)], [("id", pa.string()), ("p", kind), ("ts", pa.int64())]
    )


_MICROS = pa.timestamp("us", "UTC")
_MOMENT = datetime(2024, 3, 1, 12, 30, 5, 123456, tzinfo=UTC)
FOLDER_TYPES: Mapping[str, pa.Table] = {
    "int": _of_type(pa.int32(), 1, -2, None),
    "long": _of_type(pa.int64(), 1, 2**40, None),
    "double": _of_type(pa.float64(), 1.0, 0.1, 1e20, None),
    "float": _of_type(pa.float32(), 1.5, 0.1, None),
    "bool": _of_type(pa.bool_(), True, False, None),
    "date": _of_type(pa.date32(), date(2024, 3, 1), date(1969, 12, 31), None),
    "time": _of_type(_MICROS, _MOMENT, _MOMENT.replace(microsecond=0), None),
    "decimal": _of_type(pa.decimal128(8, 2), Decimal("1.50"), Decimal("-2.00"), None),
}


def _keys_of(kind: Any, *values: Any) -> pa.Table:
    return table([(v, "x", 1) for v in values], [("id", kind), ("p", pa.string()), ("ts", pa.int64())])


KEY_TYPES: Mapping[str, pa.Table] = {
    "int": _keys_of(pa.int32(), 1, -2),
    "double": _keys_of(pa.float64(), 1.0, 0.1, 1e20),
    "float": _keys_of(pa.float32(), 1.5, 0.1),
    "bool": _keys_of(pa.bool_(), True, False),
    "date": _keys_of(pa.date32(), date(2024, 3, 1), date(1969, 12, 31)),
    "time": _keys_of(_MICROS, _MOMENT, _MOMENT.replace(microsecond=0)),
    "decimal": _keys_of(pa.decimal128(8, 2), Decimal("1.50"), Decimal("-2.00")),
    "empty": _keys_of(pa.string(), "", "a"),
    "null": _keys_of(pa.string(), None, "a"),
}


def _folders_and_keys() -> Iterator[Case]:
    for style in ({}, {f"{_W}hive_style_partitioning": "true"}, {f"{_W}partitionpath.urlencode": "true"}):
        suffix = "".join(style).rpartition(".")[2]
        yield Case(name=f"folders-odd-{suffix}", conf=style, batches=[Batch(rows=ODD_FOLDERS)])
        yield Case(
            name=f"folders-two-{suffix}",
            conf={**style, PARTITION: "p,ts", ORDERING: "ts"},
            batches=[Batch(rows=ODD_FOLDERS.slice(0, 1)), Batch(rows=FIRST.select(["id", "p", "ts"]))],
        )
    for name, rows in FOLDER_TYPES.items():
        yield Case(name=f"folder-of-{name}", conf={}, batches=[Batch(rows=rows), Batch(rows=rows)])
    for name, rows in KEY_TYPES.items():
        yield Case(name=f"key-of-{name}", conf={}, batches=[Batch(rows=rows), Batch(rows=rows)])
        both = {KEY: "id,p"}
        yield Case(name=f"keys-of-{name}", conf=both, batches=[Batch(rows=rows), Batch(rows=rows)])
    for name in ("date", "time", "double"):
        yield Case(name=f"folder-of-{name}", conf={}, batches=[Batch(rows=FOLDER_TYPES[name])], version=6)
        yield Case(name=f"key-of-{name}", conf={}, batches=[Batch(rows=KEY_TYPES[name])], version=6)


_GENERATOR = {f"{_W}keygenerator.class": f"{_KEYGEN}TimestampBasedKeyGenerator", f"{_TIMES}timezone": "UTC"}
_DAY = f"{_TIMES}output.dateformat"
TIMES: Mapping[str, tuple[Mapping[str, Any], pa.Table]] = {
    "millis": (
        {f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", _DAY: "yyyy/MM/dd"},
        _of_type(pa.int64(), 1709294405123, 0, -1),
    ),
    "seconds": (
        {f"{_TIMES}timestamp.type": "UNIX_TIMESTAMP", _DAY: "yyyyMMddHH"},
        _of_type(pa.int64(), 1709294405, 86399),
    ),
    "seconds-of-double": (
        {f"{_TIMES}timestamp.type": "UNIX_TIMESTAMP", _DAY: "yyyy-MM-dd'T'HH:mm:ss"},
        _of_type(pa.float64(), 1709294405.5, 86399.0),
    ),
    "micros": (
        {f"{_TIMES}timestamp.type": "EPOCHMICROSECONDS", _DAY: "yyyy-MM-dd HH"},
        _of_type(pa.int64(), 1709294405123456),
    ),
    "scalar-days": (
        {f"{_TIMES}timestamp.type": "SCALAR", f"{_TIMES}timestamp.scalar.time.unit": "DAYS", _DAY: "yyyy-MM"},
        _of_type(pa.int64(), 19783, 1),
    ),
    "text": (
        {
            f"{_TIMES}timestamp.type": "DATE_STRING",
            f"{_TIMES}input.dateformat": "yyyy-MM-dd'T'HH:mm:ssZ,yyyy-MM-dd'T'HH:mm:ss.SSSZ",
            _DAY: "yyyyMMddHH",
            f"{_TIMES}output.timezone": "GMT",
        },
        _of_type(pa.string(), "2024-03-01T12:30:05+0200", "2024-03-01T12:30:05.123-0500"),
    ),
    "zones": (
        {
            f"{_TIMES}timestamp.type": "DATE_STRING",
            f"{_TIMES}input.dateformat": "yyyy-MM-dd HH:mm",
            f"{_TIMES}input.timezone": "America/New_York",
            f"{_TIMES}timezone": None,
            f"{_TIMES}output.timezone": "Asia/Tokyo",
            _DAY: "yyyy-MM-dd HH",
        },
        _of_type(pa.string(), "2024-03-01 12:30", "2024-07-01 00:00"),
    ),
    "one-zone": (
        {f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", f"{_TIMES}timezone": "GMT+8:00", _DAY: "yyyyMMddHH"},
        _of_type(pa.int64(), 1709294405123, 0),
    ),
    "delimiter": (
        {
            f"{_TIMES}timestamp.type": "DATE_STRING",
            f"{_TIMES}input.dateformat": "yyyy-MM-dd;yyyyMMdd",
            f"{_TIMES}input.dateformat.list.delimiter.regex": ";",
            _DAY: "MM/dd/yyyy",
        },
        _of_type(pa.string(), "2024-03-01", "20240301"),
    ),
    "old-prefix": (
        {
            "hoodie.deltastreamer.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
            "hoodie.deltastreamer.keygen.timebased.output.dateformat": "yyyy",
        },
        _of_type(pa.int64(), 1709294405123),
    ),
    "of-timestamps": (
        {f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", _DAY: "yyyy-MM-dd HH"},
        FOLDER_TYPES["time"].slice(0, 2),
    ),
    "of-dates": (
        {f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", _DAY: "yyyy-MM-dd"},
        FOLDER_TYPES["date"].slice(0, 2),
    ),
    "null": ({f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", _DAY: "yyyy"}, _of_type(pa.int64(), 1709294405123, None)),
    "not-a-time": (
        {f"{_TIMES}timestamp.type": "DATE_STRING", f"{_TIMES}input.dateformat": "yyyy-MM-dd", _DAY: "yyyy"},
        _of_type(pa.string(), "yesterday"),
    ),
}


def _times() -> Iterator[Case]:
    for name, (conf, rows) in TIMES.items():
        batches = [Batch(rows=rows), Batch(rows=rows)]
        yield Case(name=f"times-{name}", conf={**_GENERATOR, **conf}, batches=batches)
        if name in ("millis", "text", "zones", "old-prefix"):
            yield Case(name=f"times-{name}", conf={**_GENERATOR, **conf}, batches=batches, version=6)
    conf, rows = TIMES["millis"]
    for style in (f"{_W}hive_style_partitioning", f"{_W}partitionpath.urlencode"):
        yield Case(
            name=f"times-{style.rpartition('.')[2]}",
            conf={**_GENERATOR, **conf, style: True},
            batches=[Batch(rows=rows)],
        )
    custom = {f"{_W}keygenerator.class": f"{_KEYGEN}CustomKeyGenerator", PARTITION: "p:TIMESTAMP,q:SIMPLE", **conf}
    wide = rows.append_column("q", pa.array(["a", "b", "c"]))
    yield Case(name="times-custom", conf=custom, batches=[Batch(rows=wide), Batch(rows=wide)])


def _custom() -> Iterator[Case]:
    """CUSTOM keys on version 6, which stores no types of theirs: each write gives them."""
    conf = {f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", _DAY: "yyyyMMdd", f"{_TIMES}timezone": "UTC"}
    columns = [*COLUMNS, ("q", pa.string()), ("t", pa.int64())]
    day = 86_400_000

    def batch(keys: str, ts: int, operation: str = "upsert") -> Batch:
        rows = [(key, "xyz"[ord(key) % 3], ts, ts, "mn"[ord(key) % 2], _EPOCH[0] + ord(key) % 3 * day) for key in keys]
        return Batch(rows=table(rows, columns), operation=operation)

    given: Mapping[str, dict[str, Any]] = {
        "one": {PARTITION: "p:SIMPLE"},
        "two": {PARTITION: "p:simple,q:SIMPLE", KEY: "id,q"},
        "time": {PARTITION: "t:TIMESTAMP", **conf},
        "both": {PARTITION: "p:SIMPLE,t:TIMESTAMP", **conf, f"{_W}hive_style_partitioning": "true"},
    }
    batches = [batch("abcdef", 1), batch("defghi", 2), batch("ag", 3, "delete"), batch("agk", 4)]
    for name, one in given.items():
        generator = {f"{_W}keygenerator.class": f"{_KEYGEN}CustomKeyGenerator", **one}
        yield Case(name=f"custom-{name}", conf=generator, batches=batches, version=6)
    yield Case(
        name="custom-by-type", conf={f"{_W}keygenerator.type": "CUSTOM", **given["one"]}, batches=batches[:2], version=6
    )
    yield Case(name="custom-untold", conf=given["one"], batches=batches[:2], version=6)


_DELETED = [*COLUMNS, ("_hoodie_is_deleted", pa.bool_())]


def _deletes() -> Iterator[Case]:
    first = table([(key, "x", 10, 0, False) for key in "abcdef"], _DELETED)
    second = table(
        [("a", "x", 11, 1, True), ("b", "x", 9, 1, True), ("c", "x", 10, 1, True), ("d", "x", 11, 1, None)], _DELETED
    )
    again = table([("a", "x", 10, 2, False), ("c", "x", 10, 2, False), ("g", "x", 0, 2, False)], _DELETED)
    batches = [Batch(rows=first), Batch(rows=second), Batch(rows=again)]
    new = table([("a", "x", 11, 1, True), ("g", "x", 1, 1, True)], _DELETED)
    yield Case(name="deleted-column-of-new-keys", conf={}, batches=[Batch(rows=one) for one in (first, new, again)])
    for name in ("event-payload", "commit-payload", "no-ordering"):
        yield Case(name=f"deleted-column-{name}", conf=MERGES[name], batches=batches)
        yield Case(name=f"deleted-column-{name}", conf=MERGES[name], batches=batches, version=6)
        late = table([("a", "x", 5, None), ("b", "x", 15, None)])
        keyed = [Batch(rows=FIRST), Batch(rows=late, operation="delete"), Batch(rows=table([("b", "x", 12, 7)]))]
        yield Case(name=f"delete-{name}", conf=MERGES[name], batches=keyed)
        yield Case(name=f"delete-{name}", conf=MERGES[name], batches=keyed, version=6)
    for name, conf in {"bucket": INDEXES["bucket"], "bloom": INDEXES["bloom"]}.items():
        yield Case(name=f"deleted-column-{name}", conf=conf, batches=batches)
    marked = [*COLUMNS, ("op", pa.string())]
    conf = {
        f"{_W}payload.class": f"{_PAYLOAD}DefaultHoodieRecordPayload",
        "hoodie.payload.delete.field": "op",
        "hoodie.payload.delete.marker": "D",
    }
    rows = [table([("a", "x", 1, 0, "I"), ("b", "x", 1, 0, "I")], marked), table([("a", "x", 2, 0, "D")], marked)]
    yield Case(name="delete-marker", conf=conf, batches=[Batch(rows=one) for one in rows])


def _operations() -> Iterator[Case]:
    said = {"second": SECOND, "doubled": DOUBLED}
    for operation in ("insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"):
        for name, rows in said.items():
            for once in (False, True):
                conf = {_ONCE: once, f"{_W}payload.class": f"{_PAYLOAD}DefaultHoodieRecordPayload"}
                batches = [Batch(rows=FIRST), Batch(rows=rows, operation=operation)]
                yield Case(name=f"{operation}-{name}{'-once' if once else ''}", conf=conf, batches=batches)
        yield Case(
            name=f"{operation}-first", conf={}, batches=[Batch(rows=FIRST, operation=operation), Batch(rows=SECOND)]
        )
        yield Case(
            name=operation, conf={}, batches=[Batch(rows=FIRST), Batch(rows=SECOND, operation=operation)], version=6
        )
        if not operation.startswith("bulk"):
            bucket = [Batch(rows=FIRST), Batch(rows=SECOND, operation=operation), Batch(rows=DOUBLED)]
            yield Case(name=f"{operation}-bucket", conf=INDEXES["bucket"], batches=bucket)
    for mode in ("STATIC", "DYNAMIC"):
        yield Case(
            name=f"overwrite-{mode.lower()}",
            conf={},
            batches=[
                Batch(rows=FIRST),
                Batch(rows=SECOND, operation="insert_overwrite", conf={"hoodie.datasource.overwrite.mode": mode}),
            ],
        )
    named = f"{_W}partitions.to.delete"
    for name, chosen in {"one": "x", "two": "x,y", "star": "*", "none-such": "q", "prefix": "x*"}.items():
        gone = Batch(rows=None, operation="delete_partition", conf={named: chosen})
        yield Case(name=f"delete-partition-{name}", conf={}, batches=[Batch(rows=FIRST), gone, Batch(rows=SECOND)])
    gone = Batch(rows=KEYS, operation="delete_partition")
    yield Case(name="delete-partition-of-rows", conf={}, batches=[Batch(rows=FIRST), gone])
    keyless = {KEY: None}
    rows = FIRST.select(["p", "ts", "v"])
    yield Case(
        name="keyless",
        conf=keyless,
        batches=[Batch(rows=rows, operation="insert"), Batch(rows=rows, operation="insert")],
    )
    policies = {"drop": "drop", "fail": "fail", "none": "none"}
    for name, policy in policies.items():
        again = Batch(rows=SECOND, operation="insert", conf={"hoodie.datasource.insert.dup.policy": policy})
        yield Case(name=f"dup-policy-{name}", conf={}, batches=[Batch(rows=FIRST), again])
    again = Batch(rows=SECOND, operation="insert", conf={f"{_W}insert.drop.duplicates": True})
    yield Case(name="drop-duplicates", conf={}, batches=[Batch(rows=FIRST), again])


def _orderings() -> Iterator[Case]:
    """Types and nulls of ordering columns, and names in other letters."""
    types: Mapping[str, tuple[Any, list[Any]]] = {
        "text": (pa.string(), ["b", "a", "c"]),
        "double": (pa.float64(), [1.0, 0.5, 1e20]),
        "date": (pa.date32(), [date(2024, 3, 1), date(1969, 12, 31), date(2024, 3, 2)]),
        "time": (_MICROS, [_MOMENT, _MOMENT.replace(year=1960), _MOMENT.replace(microsecond=123457)]),
        "decimal": (pa.decimal128(8, 2), [Decimal("10.00"), Decimal("9.00"), Decimal("100.00")]),
        "int": (pa.int32(), [10, 9, 100]),
        "bool": (pa.bool_(), [False, False, True]),
        "bytes": (pa.binary(), [b"b", b"a", b"c"]),
    }
    event = MERGES["event-payload"]
    for name, (kind, (now, older, newer)) in types.items():
        columns = [("id", pa.string()), ("p", pa.string()), ("ts", kind), ("v", pa.int32())]
        rows = [
            table([(key, "x", now, 0) for key in "abc"], columns),
            table([("a", "x", older, 1), ("b", "x", now, 1), ("c", "x", newer, 1)], columns),
        ]
        yield Case(name=f"ordering-of-{name}", conf=event, batches=[Batch(rows=one) for one in rows])
        if name == "text":
            logs = {**event, **INDEXES["other-logs"]}
            yield Case(name=f"ordering-of-{name}-other-logs", conf=logs, batches=[Batch(rows=one) for one in rows])
            both = {**event, ORDERING: "n,ts"}
            numbered = [one.append_column("n", pa.array([1] * len(one), pa.int32())) for one in rows]
            yield Case(name=f"ordering-of-int-and-{name}", conf=both, batches=[Batch(rows=one) for one in numbered])
    holes = [table([("a", "x", None, 0), ("b", "x", 5, 0)]), table([("a", "x", 1, 1), ("b", "x", None, 1)])]
    for name in ("event-payload", "commit-payload"):
        yield Case(name=f"ordering-null-{name}", conf=MERGES[name], batches=[Batch(rows=one) for one in holes])
        old = [Batch(rows=table([("a", "x", 5, 0)])), Batch(rows=table([("a", "x", None, 1)]))]
        yield Case(name=f"ordering-null-later-{name}", conf=MERGES[name], batches=old)
    for name, conf in {"ordering": {ORDERING: "TS"}, "key": {KEY: "ID"}, "partition": {PARTITION: "P"}}.items():
        yield Case(name=f"letters-{name}", conf=conf, batches=[Batch(rows=FIRST), Batch(rows=SECOND)])
    for name, conf in {"ordering": {ORDERING: "no"}, "key": {KEY: "no"}, "partition": {PARTITION: "no"}}.items():
        yield Case(name=f"missing-{name}", conf=conf, batches=[Batch(rows=FIRST)])


def _schemas() -> Iterator[Case]:
    """Columns that come, go and change their type."""
    more, fewer = SECOND.append_column("w", pa.array([1.5] * 6)), SECOND.select(["id", "p", "ts"])
    moved = SECOND.select(["v", "ts", "p", "id"])
    wider = SECOND.set_column(3, "v", SECOND["v"].cast(pa.int64()))
    text = SECOND.set_column(3, "v", SECOND["v"].cast(pa.string()))
    narrow = SECOND.set_column(3, "v", SECOND["v"].cast(pa.int16()))
    cases = {"added": more, "fewer": fewer, "moved": moved, "wider": wider, "text": text, "narrower": narrow}
    reconcile = f"{_W}reconcile.schema"
    for name, rows in cases.items():
        yield Case(name=f"columns-{name}", conf={}, batches=[Batch(rows=FIRST), Batch(rows=rows), Batch(rows=FIRST)])
        reconciled = [Batch(rows=FIRST), Batch(rows=rows, conf={reconcile: True})]
        yield Case(name=f"columns-{name}-reconciled", conf={}, batches=reconciled)
    for name in ("added", "wider", "text"):
        yield Case(name=f"columns-{name}", conf={}, batches=[Batch(rows=FIRST), Batch(rows=cases[name])], version=6)
    nulls = "hoodie.write.set.null.for.missing.columns"
    said: dict[str, dict[str, Any]] = {
        "null": {nulls: "true"},
        "no-null": {nulls: "false"},
        "no-null-reconciled": {nulls: False, reconcile: "true"},
    }
    for name, conf in said.items():
        yield Case(name=f"columns-fewer-{name}", conf=conf, batches=[Batch(rows=FIRST), Batch(rows=fewer)])
    drop = {f"{_W}schema.allow.auto.evolution.column.drop": "true"}
    gone = [Batch(rows=FIRST), Batch(rows=fewer, conf=drop)]
    yield Case(name="columns-fewer-dropped", conf={}, batches=gone)


SEEDS, WIDE_SEEDS = range(16), range(24)
"""Of the drawn histories that are recorded. A run of all tests draws more of the first kind, and asks Hudi at once.

More of the wide ones are for trying by hand: Hudi doubles keys of a global index that stay in their folders (as in
v9-drawn-12), and 0.15 has no class for each strategy.
"""


_STRATEGY = "org.apache.hudi.table.action.compact.strategy."
_INLINE: Mapping[str, Any] = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": 1}
SERVICES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "clean": [
        {"hoodie.clean.automatic": "true", "hoodie.cleaner.commits.retained": 1},
        {"hoodie.clean.automatic": "true", "hoodie.clean.fileversions.retained": 1},
        {"hoodie.clean.automatic": True, "hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS",
         "hoodie.cleaner.fileversions.retained": "2"},
        {"hoodie.clean.automatic": True, "hoodie.clean.hours.retained": 1},
        {"hoodie.clean.automatic": "true", "hoodie.clean.policy": "KEEP_LATEST_BY_HOURS",
         "hoodie.cleaner.hours.retained": 2},
        {"hoodie.clean.failed.writes.policy": "EAGER"},
        {"hoodie.cleaner.policy.failed.writes": "LAZY"},
    ],
    "archive": [
        {"hoodie.archive.automatic": "true", "hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": "3",
         "hoodie.clean.commits.retained": 1},
        {"hoodie.archive.automatic": True, "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": 4,
         "hoodie.cleaner.commits.retained": "1", "hoodie.clean.automatic": "true"},
    ],
    "compaction": [
        {**_INLINE, "hoodie.compact.inline.trigger.strategy": "NUM_OR_TIME",
         "hoodie.compact.inline.max.delta.seconds": 1},
        {**_INLINE, "hoodie.compact.inline.trigger.strategy": "NUM_COMMITS_AFTER_LAST_REQUEST"},
        {**_INLINE, "hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED",
         "hoodie.compact.inline.max.delta.seconds": "0"},
        {**_INLINE, "hoodie.compaction.strategy": f"{_STRATEGY}LogFileNumBasedCompactionStrategy",
         "hoodie.compaction.logfile.num.threshold": 2},
        {**_INLINE, "hoodie.compaction.strategy": f"{_STRATEGY}LogFileSizeBasedCompactionStrategy",
         "hoodie.compaction.logfile.size.threshold": "1"},
        {**_INLINE, "hoodie.compaction.strategy": f"{_STRATEGY}BoundedIOCompactionStrategy",
         "hoodie.compaction.target.io": "1"},
        {**_INLINE, "hoodie.compaction.strategy": f"{_STRATEGY}PartitionRegexBasedCompactionStrategy",
         "hoodie.compaction.partition.path.regex": ".*x"},
        {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": 1},
        {**_INLINE, "hoodie.memory.compaction.max.size": 1 << 26, "hoodie.memory.spillable.map.path": "/tmp/"},
    ],
    "metadata": [{"hoodie.metadata.enable": "true", "hoodie.metadata.compact.max.delta.commits": 2}],
    "others": [
        {"hoodie.client.heartbeat.interval_in_ms": 30_000, "hoodie.client.heartbeat.tolerable.misses": "3"},
        {"hoodie.table.services.enabled": "false"},
        {"hoodie.write.num.retries.on.conflict.failures": 2, "hoodie.write.concurrency.mode": "SINGLE_WRITER"},
        {"hoodie.table.timeline.timezone": "UTC"},
        {"hoodie.database.name": "lake"},
        {"hoodie.combine.before.delete": "false"},
        {"hoodie.write.set.null.for.missing.columns": "true"},
        {"hoodie.metadata.enable": False, "hoodie.upsert.shuffle.parallelism": "2"},
    ],
}  # fmt: skip
"""What runs around a write, and when: each group has no more than one of its dictionaries in a drawn one."""
_EPOCH = [1709294405123, 1709380805123, 1709467205123]
_OLD_TIMES = "hoodie.deltastreamer.keygen.timebased."
_BY_TIME: Sequence[Mapping[str, Any]] = [
    {f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS", _DAY: "yyyy/MM/dd", f"{_TIMES}output.timezone": "Asia/Tokyo"},
    {f"{_TIMES}timestamp.type": "SCALAR", f"{_TIMES}timestamp.scalar.time.unit": "milliseconds", _DAY: "yyyyMM",
     f"{_TIMES}timezone": "UTC"},
    {f"{_OLD_TIMES}timestamp.type": "EPOCHMILLISECONDS", f"{_OLD_TIMES}output.dateformat": "yyyyMMdd",
     f"{_OLD_TIMES}timezone": "UTC"},
]  # fmt: skip
"""Of folders of a long column: Hudi 0.15 reads those alone that are numbers, or have slashes."""


def _described(pick: random.Random, version: int) -> dict[str, Any]:
    """A description of the table, under the names that its properties have, too."""
    generator, simple = f"{_W}keygenerator.class", f"{_KEYGEN}SimpleKeyGenerator"
    conf: dict[str, Any] = pick.choice(
        [
            {"hoodie.table.recordkey.fields": "id"},
            {"hoodie.table.partition.fields": "p"},
            {"hoodie.table.precombine.field": "ts"},
            {generator: simple, "hoodie.table.keygenerator.class": simple},
            {"hoodie.populate.meta.fields": "false", INDEX: "SIMPLE"},
            {PARTITION: "t", generator: f"{_KEYGEN}TimestampBasedKeyGenerator", **pick.choice(_BY_TIME)},
            {PARTITION: "t", generator: f"{_KEYGEN}TimestampBasedKeyGenerator", **pick.choice(_BY_TIME)},
            {KEY: "id,k", INDEX: "BUCKET", BUCKETS: 2, "hoodie.bucket.index.hash.field": "id"},
        ]
    )  # fmt: skip
    if version == 9:
        conf = conf | pick.choice(
            [
                {},
                {},
                {"hoodie.table.ordering.fields": "ts"},
                {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"},
                {"hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING"},
            ]
        )
    return conf


def drawn(seed: int, *, wide: bool = False) -> Case:
    """A dictionary of followed names, drawn at random, and batches that go with it. `wide`: also of the names of
    `SERVICES` and of the table's description."""
    pick = random.Random(f"{'wide' if wide else 'effects'} {seed}")
    version = 6 if seed % 4 == 3 else 9
    conf: dict[str, Any] = {}
    kinds = ["plain", "hive", "encoded", "two keys", "two folders", "no folders"]
    kind = "plain" if wide else pick.choice(kinds)
    by_kind: dict[str, dict[str, Any]] = {
        "hive": {f"{_W}hive_style_partitioning": "true"},
        "encoded": {f"{_W}partitionpath.urlencode": True, f"{_W}hive_style_partitioning": pick.random() < 0.5},
        "two keys": {KEY: "id,k", f"{_W}keygenerator.class": f"{_KEYGEN}ComplexKeyGenerator"},
        "two folders": {PARTITION: "p,q", f"{_W}keygenerator.class": f"{_KEYGEN}ComplexKeyGenerator"},
        "no folders": {PARTITION: "", f"{_W}keygenerator.class": f"{_KEYGEN}NonpartitionedKeyGenerator"},
    }
    conf |= by_kind.get(kind, {})
    if not wide:
        conf |= pick.choice([MERGES["event-payload"], MERGES["commit-payload"], {ORDERING: None}, {}])
    indexes = [
        "simple",
        "bloom",
        "bucket",
        "global-simple",
        "global-simple-stay",
        "global-bloom-stay",
        "no-small-files",
    ]
    index = pick.choice(indexes)
    conf |= INDEXES[index]
    if wide:
        conf |= {name: value for of in SERVICES.values() for name, value in pick.choice([{}, *of]).items()}
        conf |= _described(pick, version)
        index = {"BUCKET": "bucket", "SIMPLE": "simple"}.get(str(conf.get(INDEX)), index)
    conf |= pick.choice([{}, {"hoodie.logfile.data.block.format": pick.choice(["avro", "parquet"])}])
    conf |= pick.choice([{}, INDEXES["codec"], INDEXES["parallelism"], INDEXES["files-of-one-byte"]])
    if not wide and pick.random() < 0.4:
        conf |= {"hoodie.compact.inline": True, "hoodie.compact.inline.max.delta.commits": pick.randint(1, 3)}
    conf |= pick.choice([{}, {_ONCE: "true"}, {_ONCE: False, "hoodie.combine.before.upsert": "true"}])
    columns = [*COLUMNS, ("k", pa.int32()), ("q", pa.string()), *([("t", pa.int64())] if wide else [])]
    fresh = itertools.count()
    home: dict[str, str] = {}

    def row(key: str, ts: int, *, moves: bool = False) -> tuple[Any, ...]:
        p = pick.choice("xyz") if moves or key not in home else home[key]
        home[key] = p
        found = (key, p, ts, pick.randint(0, 99), len(key), "mn"[len(key) % 2])
        return (*found, _EPOCH["xyz".index(p)]) if wide else found

    def batch(step: int) -> Batch:
        operation = pick.choices(
            ["upsert", "insert", "delete", "bulk_insert", "insert_overwrite"], [6, 2, 2, 1, 1 if version == 9 else 0]
        )[0]
        known = sorted(home)
        if not known or (operation == "bulk_insert" and index == "bucket"):
            operation = "upsert"
        new = [f"{next(fresh):03d}" for _ in range(pick.randint(1, 6))]
        old = pick.sample(known, min(len(known), pick.randint(1, 6)))
        moves = index.startswith("global") and operation == "upsert"
        keys = {"upsert": [*old, *new], "delete": [*old[:3], "none"]}.get(operation, new)
        rows = [row(key, 10 * step + pick.randint(-9, 9), moves=moves) for key in keys]
        home.pop("none", None)
        if operation == "insert_overwrite":
            gone = {one[1] for one in rows} if kind != "no folders" else set("xyz")
            for key in [key for key, p in home.items() if p in gone and key not in new]:
                del home[key]
        return Batch(rows=table(rows, columns), operation=operation)

    return Case(
        name=f"{'wide' if wide else 'drawn'}-{seed}",
        conf=conf,
        batches=[batch(step) for step in range(1, 6)],
        version=version,
    )


def all_cases() -> list[Case]:
    """All of them, with what phantombase refuses and why."""
    made = [
        *_histories(),
        *_folders_and_keys(),
        *_times(),
        *_custom(),
        *_deletes(),
        *_operations(),
        *_orderings(),
        *_schemas(),
        *map(drawn, SEEDS),
        *(drawn(seed, wide=True) for seed in WIDE_SEEDS),
    ]
    assert len({case.id for case in made}) == len(made)
    return made


_MISSING = "rows that lack a column are written with nulls in it"
_LATER = "Hudi's later writes with the dictionary that made the table fail"
_TEXT = "no text of it is the same in every writer"
_TYPE = "Hudi does not read the type, and infers another one"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("key-type-complex", "key-type-non-partitioned", "key-type-simple", "key-type-timestamp"), _TYPE),
    "custom-by-type": "0.15 takes the type for a part of the column's name, and cannot read the table afterwards",
    "custom-untold": "0.15 takes the type for a part of the column's name, and cannot read the table afterwards",
    "key-of-double": _TEXT,
    "key-of-float": _TEXT,
    "keys-of-double": _TEXT,
    "keys-of-float": _TEXT,
    "folder-of-double": _TEXT,
    "folder-of-float": _TEXT,
    "delete-marker": "its names are not known",
    "overwrite-static": "insert_overwrite_table is that",
    "keyless": "a forgotten key is an error; a keyless table is asked for by an empty one",
    "dup-policy-drop": "insert looks no key up",
    "drop-duplicates": "insert looks no key up",
    "ordering-null-event-payload": "Hudi cannot read the table afterwards",
    "ordering-null-later-event-payload": "Hudi cannot read the table afterwards",
    "ordering-of-bytes": "Hudi cannot read the table afterwards",
    "letters-partition": "Hudi cannot read the table afterwards",
    "missing-partition": "Hudi cannot read the table afterwards",
    "merge-mode-against-payload": _LATER,
    "columns-text": "a number does not become a text by a write",
    "columns-fewer-dropped": "a column that rows lack stays",
    "times-custom": "the zone of the writer's machine is to be named",
    "times-of-timestamps": "Hudi takes microseconds for milliseconds: folders of the year 56135",
}
"""What Hudi writes and phantombase refuses by name, and why."""
TAKEN: Mapping[str, str] = {
    "merge-commit-strategy": _LATER,
    "v9-columns-added": _MISSING,
    "columns-fewer": _MISSING,
    "columns-wider-reconciled": "Hudi fails where it widens a column and reconciles",
}
"""What Hudi refuses and phantombase writes."""
_FOLDER = "Hudi reads values from the names of folders"
OTHERWISE: Mapping[str, str] = {
    "ordering-of-text-other-logs": "Hudi compares each row of its own Parquet log block by the text of the last row",
    "v9-drawn-12": "Hudi doubles a key of a global index in its own folder",
    "v6-drawn-47": "a key whose row was deleted is new to phantombase; where keys stay, Hudi finds it by its index "
    "by the base file below the delete, and writes it to its old folder until a compaction has removed it",
    "v9-folder-of-time": "Hudi reads null from the folder of a timestamp",
    **dict.fromkeys((f"folders-odd-{style}" for style in ("", "hive_style_partitioning", "urlencode")), _FOLDER),
    "deleted-column-of-new-keys": "Hudi writes base files anew for new keys that are deleted at once, and forgets when "
    "the others in them were deleted: a late row comes back",
}
"""Of what the rows differ. By the name of a case, or by its id."""
