"""The cases: kinds of tables and partitions, all types of columns, columns and partitions that come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from .case import PARTITION, SYNC, TYPE, Batch, Case

_NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string()), ("Dec", pa.decimal128(5, 1))])))])
ALL_TYPES = pa.table(
    {
        "id": pa.array(["a", "b"]),
        "ts": pa.array([1, 2], pa.int64()),
        "p": pa.array(["x", "y z"]),
        "int_": pa.array([1, None], pa.int32()),
        "bool_": pa.array([True, None]),
        "float_": pa.array([1.5, None], pa.float32()),
        "double_": pa.array([1.5, None]),
        "dec": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "wide_dec": pa.array([Decimal("1.5"), None], pa.decimal128(38, 5)),
        "day": pa.array([date(2024, 1, 2), None]),
        "at": pa.array([datetime(2024, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2024, 1, 2), None], pa.timestamp("us")),
        "bin": pa.array([b"x", None]),
        "Cased": pa.array(["x", None]),
        "list_": pa.array([["x"], None], pa.list_(pa.string())),
        "map_": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        "nested": pa.array([{"a": 1, "b": [{"c": "x", "Dec": None}]}, None], _NESTED),
    }
)


def rows(ts: int, *partitions: str | None, **more: Any) -> pa.Table:
    """A row per partition."""
    return pa.table(
        {
            "id": [f"{number}-{p}" for number, p in enumerate(partitions)],
            "ts": pa.array([ts] * len(partitions), pa.int64()),
            "p": pa.array(partitions, pa.string()),
            "v": pa.array([1] * len(partitions), pa.int32()),
            **{name: pa.array([value] * len(partitions)) for name, value in more.items()},
        }
    )


def wider(table: pa.Table) -> pa.Table:
    """`v` becomes a bigint."""
    return table.set_column(table.schema.get_field_index("v"), "v", table["v"].cast(pa.int64()))


_COW = {TYPE: "COPY_ON_WRITE"}
_BY_P: Mapping[str, Any] = {PARTITION: "p"}
_HIVE_STYLE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
_URL = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
_TWO = {PARTITION: "p,q", "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator"}
_SAID = {
    f"{SYNC}support_timestamp": "true",
    f"{SYNC}omit_metadata_fields": "true",
    f"{SYNC}sync_comment": "true",
    f"{SYNC}table_properties": "a=b\nc=d e",
    f"{SYNC}serde_properties": "k=v",
}
_PLAIN = {f"{SYNC}sync_as_datasource": "false", f"{SYNC}skip_ro_suffix": "true"}


REFUSED = {"managed": "dropping one removes no data"}
"""What Hudi does and phantombase refuses, with words of the reason."""


def all_cases() -> list[Case]:
    return [*_usual(9), *_usual(6), *_other()]


def _usual(version: int) -> Iterator[Case]:
    def case(name: str, conf: Mapping[str, Any], *batches: Batch) -> Case:
        return Case(name=name, conf=conf, batches=batches, version=version)

    types = ALL_TYPES if version > 6 else ALL_TYPES.drop(["local"])  # which Hudi 0.15.0 does not write
    yield case("mor", _BY_P, Batch(rows=types), Batch(rows=types))
    yield case("cow", {**_COW, **_BY_P, **_HIVE_STYLE}, Batch(rows=types))
    yield case("mor_flat", {}, Batch(rows=types))
    yield case("cow_flat", _COW, Batch(rows=rows(1, "x")))
    yield case(
        "evolving",
        {**_BY_P, **_HIVE_STYLE},
        Batch(rows=rows(1, "x", "y")),
        Batch(rows=wider(rows(2, "x", "new", more="w", other=1.5))),
        Batch(rows=wider(rows(3, "x", more="w", other=1.5))),
    )
    yield case(
        "going",
        _BY_P,
        Batch(rows=rows(1, "x", "y", "z")),
        Batch(rows=None, operation="delete_partition", conf={"hoodie.datasource.write.partitions.to.delete": "x"}),
        Batch(rows=rows(2, "y"), operation="insert_overwrite"),
        Batch(rows=rows(3, "x", "new")),
        Batch(rows=rows(4, "z"), operation="insert_overwrite_table"),
    )
    yield case("said", {**_BY_P, **_SAID}, Batch(rows=types))
    yield case("plain", {**_BY_P, **_PLAIN}, Batch(rows=rows(1, "x")))


def _other() -> Iterator[Case]:
    def case(name: str, conf: Mapping[str, Any], *batches: Batch) -> Case:
        return Case(name=name, conf=conf, batches=batches)

    two = pa.table({**{c: rows(1, "a/b", None)[c] for c in ("id", "ts", "p")}, "q": pa.array([1, 2], pa.int32())})
    yield case("two", {**_TWO, **_HIVE_STYLE, **_URL}, Batch(rows=two))
    yield case("odd", _BY_P, Batch(rows=rows(1, "a b", "1%2", "a=ü'", None)))
    yield case("ro", {**_BY_P, f"{SYNC}table.strategy": "RO"}, Batch(rows=rows(1, "x")))
    yield case("rt", {**_BY_P, f"{SYNC}table.strategy": "RT"}, Batch(rows=rows(1, "x")))
    yield case("not_t", {**_BY_P, "hoodie.meta.sync.sync_snapshot_with_table_name": "false"}, Batch(rows=rows(1, "x")))
    days = pa.table({"id": ["a"], "ts": pa.array([1], pa.int64()), "p": [date(2024, 1, 2)]})
    yield case("days", {**_BY_P, **_HIVE_STYLE}, Batch(rows=days))
    slashed = {f"{SYNC}partition_extractor_class": "org.apache.hudi.hive.SlashEncodedDayPartitionValueExtractor"}
    yield case("slashed", {**_BY_P, **slashed}, Batch(rows=rows(1, "2024/01/02")))
    yield case("managed", {**_BY_P, f"{SYNC}create_managed_table": "true"}, Batch(rows=rows(1, "x")))
    yield case("named", {**_BY_P, f"{SYNC}table": "Big_Name"}, Batch(rows=rows(1, "x")))
