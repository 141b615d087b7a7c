"""Record keys and partition paths against plain Python, and against what real Hudi 0.15.0 and 1.2.0 wrote."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError, UnsupportedError, UsageError
from phantombase.timeline.format.table_config import TableConfig
from phantombase.writer_hooks.schema.key_encoding import is_prefixed
from phantombase.writer_hooks.schema.key_generator import DEFAULT_PARTITION, KeyGenerator, escaped, generator_kind
from tests.support.selection import for_each

_TYPES = {
    "id": pa.string(),
    "b": pa.bool_(),
    "i16": pa.int32(),
    "i64": pa.int64(),
    "d": pa.date32(),
    "t": pa.timestamp("us", tz="UTC"),
    "tn": pa.timestamp("us"),
    "dec": pa.decimal128(12, 2),
    "dec8": pa.decimal128(20, 9),
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.text(max_size=6),
    "b": st.booleans(),
    "i16": st.integers(-(2**31), 2**31 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "d": st.dates(),
    "t": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    "tn": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    "dec": st.decimals(-(10**10) + 1, 10**10 - 1, places=2),
    "dec8": st.decimals(-1, 1, places=9),
}
_ROWS = st.lists(st.fixed_dictionaries({k: st.none() | v for k, v in _VALUES.items()}), max_size=8)


def config(
    key: str, partition: str = "", kind: str = "COMPLEX", version: int = 9, more: Mapping[str, str] = {}
) -> TableConfig:
    """The settings of a table that matter here."""
    properties = {
        "hoodie.table.version": str(version),
        "hoodie.table.recordkey.fields": key,
        "hoodie.table.partition.fields": partition,
        "hoodie.table.keygenerator.type": kind,
        **(more or {}),
    }
    return TableConfig(properties=properties)


HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
SLASHES = {"hoodie.datasource.write.slash.separated.date.partitioning": "true"}
ENCODE = {"hoodie.datasource.write.partitionpath.urlencode": "true"}


def java_text(value: Any) -> str | None:
    """A value as Java prints it, one at a time."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime():
            epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
            delta = value - epoch
            return str((delta.days * 86_400 + delta.seconds) * 10**6 + delta.microseconds)
        case date():
            return value.isoformat()
        case _:
            return str(value)


def escaped_slowly(text: str) -> str:
    """Hive's escapes, character by character."""
    special = "\"#%'*/:=?\\{[]^\x7f"
    return "".join(f"%{ord(c):02X}" if c < " " or c in special else c for c in text)


@given(_ROWS)
def test_keys_of_several_fields(rows: list[dict[str, Any]]) -> None:
    """Every type, nulls and empty texts."""
    rows = [{**row, "i64": row["i64"] or 1} for row in rows]  # one field at least has a value
    table = pa.Table.from_pylist(rows, pa.schema(list(_TYPES.items())))
    fields = tuple(_TYPES)
    expected = []
    for row in rows:
        texts = {name: java_text(row[name]) for name in fields}
        parts = {n: "__null__" if t is None else t or "__empty__" for n, t in texts.items()}
        expected.append(",".join(f"{name}:{part}" for name, part in parts.items()))
    assert KeyGenerator.of(config(",".join(fields), "id")).keys(table).to_pylist() == expected


_FOLDERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r/:."), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.none() | _FOLDERS, st.none() | st.integers(-5, 5))), st.booleans(), st.booleans())
def test_partition_paths(values: list[tuple[str | None, int | None]], hive: bool, encode: bool) -> None:
    """Two levels, both switches, nulls."""
    generator = KeyGenerator.of(
        config("id", "p,n", more={**(HIVE if hive else {}), **(ENCODE if encode else {})}), one_field_prefixed=True
    )
    schema = pa.schema([("p", pa.string()), ("n", pa.int64())])
    rows = pa.Table.from_pylist([{"p": p, "n": n} for p, n in values], schema)
    expected = []
    for row in values:
        levels = [DEFAULT_PARTITION if v is None else str(v) for v in row]
        levels = [escaped_slowly(v) if encode else v for v in levels]
        expected.append("/".join(f"{n}={v}" if hive else v for n, v in zip("pn", levels, strict=True)))
    assert generator.partition_paths(rows).to_pylist() == expected


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_escapes(texts: list[str]) -> None:
    """All characters."""
    assert escaped(pa.array(texts, pa.string())).to_pylist() == [escaped_slowly(t) for t in texts]


def test_what_real_hudi_wrote() -> None:
    """One row of every type: the key and path that both releases gave it."""
    row = {
        "id": "a:b,c",
        "b": True,
        "i16": 300,
        "i64": 10**12,
        "d": date(1969, 12, 31),
        "t": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "tn": datetime(1950, 1, 1),
        "dec": Decimal("0.00"),
        "dec8": Decimal("0.000000001"),
    }
    table = pa.Table.from_pylist([row], pa.schema(list(_TYPES.items())))
    generator = KeyGenerator.of(config("id,b,i16,i64,d,t,tn,dec,dec8", "d,t,dec,dec8,b"))
    key = "id:a:b,c,b:true,i16:300,i64:1000000000000,d:1969-12-31,t:-1,tn:-631152000000000,dec:0.00,dec8:1E-9"
    assert generator.keys(table).to_pylist() == [key]
    assert generator.partition_paths(table).to_pylist() == ["1969-12-31/-1/0.00/1E-9/true"]
    encoded = KeyGenerator.of(config("id", "p", "SIMPLE", more={**HIVE, **ENCODE}))
    folders = encoded.partition_paths(pa.table({"p": ["a=b/c d:é%", "", None]}))
    assert folders.to_pylist() == ["p=a%3Db%2Fc d%3Aé%25", f"p={DEFAULT_PARTITION}", f"p={DEFAULT_PARTITION}"]


@for_each(
    [
        (config("id", "p", "SIMPLE"), ["1", "2"]),
        (config("id", kind="NON_PARTITION"), ["1", "2"]),
        (config("id,p", kind="NON_PARTITION"), ["id:1,p:a", "id:2,p:b"]),
        (config("id", "p:simple", "CUSTOM"), ["1", "2"]),
        (config("id", "p", ""), ["1", "2"]),  # inferred: SIMPLE
        (config("r.x", "p", "SIMPLE"), ["7", "8"]),
    ]
)
def test_generators(settings: TableConfig, keys: list[str]) -> None:
    """Each generator, pickled on the way."""
    rows = pa.table({"id": [1, 2], "p": ["a", "b"], "r": [{"x": 7}, {"x": 8}]})
    generator = pickle.loads(pickle.dumps(KeyGenerator.of(settings)))
    assert generator.keys(rows).to_pylist() == keys
    assert generator.partition_paths(rows).to_pylist() == (["a", "b"] if settings.partition_fields else ["", ""])


@pytest.mark.parametrize(("partition", "kind"), [("", "NON_PARTITION"), ("p", "SIMPLE"), ("p,q", "COMPLEX")])
def test_a_hash_of_the_row_stands_for_the_key_of_a_keyless_table(partition: str, kind: str) -> None:
    """It depends on the row alone: on neither its place nor the rows beside it."""
    settings = config("", partition, kind)
    inferred = {k: v for k, v in settings.properties.items() if "keygenerator" not in k}
    assert generator_kind(TableConfig(properties=inferred)) == kind
    rows = pa.table({"p": ["a", "b", "a"], "q": ["x", "x", None]})
    generator = KeyGenerator.of(settings)
    keys = generator.keys(rows).to_pylist()
    assert len(set(keys)) == 3
    assert generator.keys(rows.slice(1).take([1, 0])).to_pylist() == [keys[2], keys[1]]


@for_each(
    [
        (config("id", "p", "USER_PROVIDED"), "key generator"),
        (config("id,n", "p", "SIMPLE"), "SIMPLE keys of such fields"),
        (config("id", "p,q", "TIMESTAMP"), "TIMESTAMP keys of such fields"),
        (config("id", "p", "CUSTOM"), "partition types"),
        (config("id", "p", "SIMPLE", more=SLASHES), "path"),
    ]
)
def test_refused_tables(settings: TableConfig, what: str) -> None:
    """By name."""
    with pytest.raises(UnsupportedError, match=what):
        KeyGenerator.of(settings)


@for_each(
    [
        ("id", {"id": ["a", None, ""], "p": ["x"] * 3}, "2 of 3 rows: id"),
        ("id,n", {"id": ["a", "", None], "n": [None, None, None], "p": ["x"] * 3}, "2 of 3 rows: id, n"),
        ("id", {"p": ["x"]}, "found p"),
        ("id", {"id": [1.5], "p": ["x"]}, "id: double"),
        ("id", {"id": [b"1"], "p": ["x"]}, "id: binary"),
        ("id", {"id": [{"x": 1}], "p": ["x"]}, "id: struct"),
        ("id.x", {"id": [{"y": 1}], "p": ["x"]}, "expected id.x"),
        ("id", {"id": pa.array([2_932_897], pa.date32()), "p": ["x"]}, "found id"),
    ]
)
def test_rows_without_a_key(key: str, rows: dict[str, Any], found: str) -> None:
    """Null, empty, missing, and of types that have no exact text."""
    table = pa.table({n: pa.array(v, pa.string()) if v == [None] * 3 else v for n, v in rows.items()})
    with pytest.raises(UsageError, match=found):
        KeyGenerator.of(config(key, "p"), one_field_prefixed=False).keys(table)


@for_each(["..", "a/../b", "/a", "a/", "a//b", ".", ".hoodie", ".hoodie/x", "a:b/c", "a\nb", "\0"])
def test_paths_outside_the_partitions(value: str) -> None:
    """They would be written somewhere else, or nobody could read them."""
    generator = KeyGenerator.of(config("id", "p", "SIMPLE"))
    with pytest.raises(UsageError, match="1 of 2 paths"):
        generator.partition_paths(pa.table({"p": ["ok", value]}))
    assert generator.partition_paths(pa.table({"p": ["a.b", "a/b:c", ".hoodies", "..."]})).to_pylist()


def test_the_two_encodings_of_one_field() -> None:
    """Rows decide."""
    settings = config("id", "p")
    with pytest.raises(UsageError, match="two encodings"):
        KeyGenerator.of(settings)
    rows = pa.table({"id": ["1", "2"], "p": ["x", "y"]})
    for prefixed, keys in ((True, ["id:1", "id:2"]), (False, ["1", "2"])):
        assert KeyGenerator.of(settings, one_field_prefixed=prefixed).keys(rows).to_pylist() == keys
        assert is_prefixed(settings, rows.append_column("_hoodie_record_key", pa.array(keys))) is prefixed
    for wrong in (["id:1", "2"], ["1", None], ["x", "y"]):
        with pytest.raises(MalformedError, match="encoding"):
            is_prefixed(settings, rows.append_column("_hoodie_record_key", pa.array(wrong)))
    with pytest.raises(MalformedError, match="no rows"):
        is_prefixed(settings, rows.append_column("_hoodie_record_key", pa.array(["1", "2"])).slice(0, 0))
