"""Base files of one type, logs and table of another, flat and in records, lists and maps: rows or a refusal by name.

Where a pair is read, it is planned and compacted, and the rows stay; where it is refused, nothing is requested."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.errors import PhantombaseError, UnsupportedError
from tests.support.compaction_steps import open_table
from tests.support.selection import ALL, deep

MILLIS, MICROS = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
MOMENT = datetime(2024, 7, 10, 17, 7, 4, 939000, tzinfo=UTC)
MILLIS_AS_MICROS = datetime(1970, 1, 20, 21, 57, 11, 224939, tzinfo=UTC)
"""The milliseconds of that moment, taken for microseconds."""
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "boolean": (pa.bool_(), True),
    "int": (pa.int32(), -7),
    "long": (pa.int64(), 1720631224939),
    "float": (pa.float32(), 1.1),
    "double": (pa.float64(), 12345678.9),
    "string": (pa.string(), "text"),
    "bytes": (pa.binary(), b"bytes"),
    "date": (pa.date32(), date(2024, 7, 10)),
    "timestamp-millis": (MILLIS, MOMENT),
    "timestamp-micros": (MICROS, MILLIS_AS_MICROS),
    "local-timestamp-millis": (pa.timestamp("ms"), MOMENT.replace(tzinfo=None)),
    "local-timestamp-micros": (pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
    "decimal(10, 2)": (pa.decimal128(10, 2), Decimal("1.25")),
    "decimal(12, 2)": (pa.decimal128(12, 2), Decimal("1.25")),
}
"""The Arrow type, and a value as a file of it has it."""

READ: dict[tuple[str, str], Any] = {
    ("int", "long"): -7,
    ("int", "float"): -7.0,
    ("int", "double"): -7.0,
    ("int", "string"): "-7",
    ("long", "float"): 1720631164928.0,
    ("long", "double"): 1720631224939.0,
    ("long", "string"): "1720631224939",
    ("long", "local-timestamp-micros"): MILLIS_AS_MICROS.replace(tzinfo=None),
    ("float", "double"): 1.1,
    ("float", "string"): "1.1",
    ("double", "string"): "1.23456789E7",
    ("string", "bytes"): b"text",
    ("bytes", "string"): "bytes",
    ("timestamp-millis", "timestamp-micros"): MOMENT,
    ("timestamp-millis", "local-timestamp-micros"): MOMENT.replace(tzinfo=None),
    ("timestamp-micros", "local-timestamp-micros"): MILLIS_AS_MICROS.replace(tzinfo=None),
    ("local-timestamp-millis", "local-timestamp-micros"): MOMENT.replace(tzinfo=None),
    ("local-timestamp-millis", "timestamp-micros"): MOMENT,
    ("local-timestamp-micros", "timestamp-micros"): MOMENT,
    ("decimal(10, 2)", "decimal(12, 2)"): Decimal("1.25"),
}
"""What the value of the first type reads as under the second. All other pairs are refused.

Hudi 0.15.0 and 1.2.0 read, and compact, the numbers, texts and decimals of these so; 1.2.0 the relabelled times.
"""

SHAPES: dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]] = {
    "flat": (lambda kind: kind, lambda value: value),
    "struct": (lambda kind: pa.struct([("a", kind)]), lambda value: {"a": value}),
    "list": (lambda kind: pa.list_(pa.field("element", kind)), lambda value: [value, None]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
}


def table(path: Path, new: str, shape: str, version: int) -> None:
    """Three rows in a base file, one of them again in a log."""
    of, wrapped = SHAPES[shape]
    kind, value = TYPES[new]

    def rows(ids: list[str], ts: int) -> pa.Table:
        values = pa.array([None if one == "null" else wrapped(value) for one in ids], of(kind))
        return pa.table({"id": ids, "ts": pa.array([ts] * len(ids), pa.int64()), "v": values})

    writer(rows(["old", "new", "null"], 1)).table("t", version=version).key("id").ordering("ts").upsert(str(path))
    writer(rows(["new"], 2)).upsert(str(path))


def retyped(path: Path, old: str, shape: str) -> None:
    """The base file as a writer of before wrote it."""
    (file,) = path.glob("*.parquet")
    of, wrapped = SHAPES[shape]
    kind, value = TYPES[old]
    stored = pq.read_table(file)
    ids = stored.column("id").to_pylist()
    values = pa.array([None if one == "null" else wrapped(value) for one in ids], of(kind))
    at = stored.schema.get_field_index("v")
    changed = stored.set_column(at, pa.field("v", of(kind)), values)
    pq.write_table(changed.replace_schema_metadata(None), file, store_schema=False)


def found(path: Path) -> dict[str, Any] | None:
    """The values by key; None: refused by name."""
    refusal = ""
    try:
        return {row["id"]: row["v"] for row in read(str(path), columns=["id", "v"]).to_arrow().to_pylist()}
    except UnsupportedError as error:
        refusal = str(error)
    assert "column v" in refusal
    return None


def command(*args: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(daemon, [*args, "--sole-writer", "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit | PhantombaseError), done.exception
    return done.exit_code, json.loads(done.stdout)


def pairs() -> Iterator[Any]:
    """(type, shape): flat all of them, in a record some; the rest asks the same of other readers of one schema."""
    for new in (name for name in TYPES if not name.endswith("millis")):  # our writer makes micros
        for shape in SHAPES:
            usual = shape == "flat" or (shape == "struct" and new in ("string", "timestamp-micros", "decimal(12, 2)"))
            yield (new, shape) if usual else deep(new, shape)


@pytest.mark.parametrize("version", [deep(6), 9])
@pytest.mark.parametrize(("new", "shape"), pairs())
def test_every_pair(new: str, shape: str, version: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    table(made, new, shape, version)
    _, wrapped = SHAPES[shape]
    for number, old in enumerate(TYPES):
        if not ALL and (old, new) not in READ and (number + [*TYPES].index(new)) % 3:
            continue  # a usual run takes each third of those that are refused
        path = tmp_path / f"from {old}"
        copytree(made, path)
        retyped(path, old, shape)
        if old != new and (old, new) not in READ:
            assert found(path) is None, (old, new)
            code, said = command("schedule", str(path))
            assert (code, len(said["cannot_be_merged"])) == (1, 1), (old, new)
            assert open_table(path).load_timeline().pending_merges == ()
            continue
        value = wrapped(TYPES[new][1])
        was = value if old == new else wrapped(READ[old, new])
        of = SHAPES[shape][0](TYPES[new][0])
        expected = dict(zip(("old", "new", "null"), pa.array([was, value, None], of).to_pylist(), strict=True))
        assert found(path) == expected, (old, new)
        code, said = command("compact", str(path), "--schedule", "--executor", "local")
        assert (code, len(said["compacted"])) == (0, 1), (old, new)
        assert found(path) == expected, (old, new)
