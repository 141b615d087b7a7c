"""What a compaction would fail on is left out of plans: base files are asked by their footers, logs by their headers.

Tables are made by our writer; the column that changes its type is rewritten in the base file by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.arrow.conform import check_conformable
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.read.slice_stream import check_base
from tests.support.compaction_steps import open_table, run_all

SPAN = [Decimal("1.25"), Decimal("99999999.25")]
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [1, 2]),
    "long": (pa.int64(), [1, 2]),
    "float": (pa.float32(), [1.5, 2.5]),
    "double": (pa.float64(), [1.5, 2.5]),
    "string": (pa.string(), ["1", "2"]),
    "bytes": (pa.binary(), [b"1", b"2"]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [1, 2]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [1, 2]),
    "local timestamp": (pa.timestamp("us"), [1, 2]),
    "decimal": (pa.decimal128(10, 2), SPAN),
    "wider decimal": (pa.decimal128(12, 2), SPAN),
    "decimal of another scale": (pa.decimal128(10, 4), [Decimal("1.25"), Decimal("2.25")]),
    "list": (pa.list_(pa.int64()), [[1], [2]]),
    "list of floats": (pa.list_(pa.float32()), [[1.5], [2.5]]),
    "struct": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": 2}]),
    "struct of text": (pa.struct([("a", pa.string())]), [{"a": "1"}, {"a": "2"}]),
}


def rows(kind: str, partition: str, ts: int) -> pa.Table:
    of, values = TYPES[kind]
    n = len(values)
    return pa.table(
        {
            "id": [f"{partition}{i}" for i in range(n)],
            "p": [partition] * n,
            "ts": pa.array([ts] * n, pa.int64()),
            "v": pa.array(values, of),
        }
    )


def table(path: Path, version: int = 9, kind: str = "long", log: str = "parquet") -> Path:
    """Two partitions, a and b, each with a base file and a log."""
    first = pa.concat_tables([rows(kind, "a", 1), rows(kind, "b", 1)])
    writer(first).table("t", version=version).key("id").partition("p").ordering("ts").bulk_insert(str(path))
    second = pa.concat_tables([rows(kind, "a", 2), rows(kind, "b", 2)])
    writer(second.slice(0, 1)).conf({"hoodie.logfile.data.block.format": log}).upsert(str(path))
    writer(second.slice(len(second) - 1)).conf({"hoodie.logfile.data.block.format": log}).upsert(str(path))
    return path


def base_of(path: Path, partition: str) -> Path:
    (file,) = (path / partition).glob("*.parquet")
    return file


def retyped(path: Path, kind: str) -> None:
    """The base file of partition a as an earlier writer would have written it: its column of another type."""
    file = base_of(path, "a")
    stored, of = pq.read_table(file), TYPES[kind]
    column = pa.array([of[1][i % 2] for i in range(len(stored))], of[0])
    at = stored.schema.get_field_index("v")
    changed = stored.set_column(at, pa.field("v", of[0]), column)
    pq.write_table(changed.replace_schema_metadata(None), file)


def command(*args: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(daemon, [*args, "--sole-writer", "--json"])
    if isinstance(done.exception, PhantombaseError):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


def merges(path: Path) -> bool:
    """Whether a read, which merges as a compaction does, can be had of partition a."""
    try:
        read(str(path), partition="a").to_arrow()
    except PhantombaseError:
        return False
    return True


@pytest.mark.parametrize("now", TYPES)
def test_schedule_plans_just_what_can_be_merged(now: str, tmp_path: Path) -> None:
    """Of every pair of types: base files of the one, logs and table of the other."""
    made = table(tmp_path / "made", kind=now)
    kept = base_of(made, "a").read_bytes()
    for then in TYPES:
        base_of(made, "a").write_bytes(kept)
        retyped(made, then)
        code, said = command("schedule", str(made), "--dry-run")
        can = merges(made)
        left = [one["partition"] for one in said["cannot_be_merged"]]
        assert (code, left) == ((0, []) if can else (1, ["a"])), (then, now, said["cannot_be_merged"])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def four_bytes(file: Path) -> None:
    file.write_bytes(b"PAR1")


def zeros(file: Path) -> None:
    """In the footer."""
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    file.write_bytes(data[: -8 - length] + bytes(length) + data[-8:])


def changelog(file: Path) -> None:
    stored = pq.read_table(file)
    pq.write_table(stored.append_column("_hoodie_operation", pa.array(["I"] * len(stored))), file)


DAMAGES: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (cut, four_bytes, zeros, changelog)}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("version", [6, 9])
def test_a_base_file_that_cannot_be_read(version: int, damage: str, tmp_path: Path) -> None:
    """It is named with the reason; the rest is planned and compacted, and the exit code says it."""
    path = table(tmp_path / "t", version)
    DAMAGES[damage](base_of(path, "a"))
    code, said = command("schedule", str(path))
    assert (code, said["file_groups"], [one["partition"] for one in said["cannot_be_merged"]]) == (1, 1, ["a"])
    assert base_of(path, "a").name in said["cannot_be_merged"][0]["why"]
    run_all(open_table(path))
    assert read(str(path), partition="b").to_arrow()["ts"].to_pylist() == [1, 2]
    code, said = command("compact", str(path), "--schedule", "--executor", "local")
    assert (code, said["scheduled"]["plans"], len(said["scheduled"]["cannot_be_merged"])) == (1, [], 1)
    text = CliRunner().invoke(daemon, ["schedule", str(path), "--sole-writer"])
    assert text.exit_code == 1
    assert base_of(path, "a").name in text.stdout.replace("\n", "")


def test_an_older_log_of_a_type_that_cannot_be_merged(tmp_path: Path) -> None:
    """The header of a block has the types of its rows."""
    path = table(tmp_path / "t", log="avro")
    (log,) = (path / "a").glob(".*.log.*")
    data = log.read_bytes()
    assert data.count(b'["null","long"]') > 0 or data.count(b'"long"') > 0
    log.write_bytes(data.replace(b'"ts","type":["null","long"]', b'"ts","type":["null","bool"]'))
    code, said = command("schedule", str(path), "--dry-run")
    assert not merges(path)
    assert (code, [one["partition"] for one in said["cannot_be_merged"]]) == (1, ["a"])


def test_of_very_many_base_files_one_of_each_write_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "t")
    asked: list[str] = []

    def counted(storage: Any, path: str, *rest: Any) -> None:
        asked.append(path)
        check_base(storage, path, *rest)

    monkeypatch.setattr("phantombase.timeline.planning.survey.check_base", counted)
    command("schedule", str(path), "--dry-run")
    assert len(asked) == 2
    monkeypatch.setattr("phantombase.timeline.planning.survey._FOOTERS_MAX", 0)
    command("schedule", str(path), "--dry-run")
    assert len(asked) == 3


def test_a_required_column_that_a_file_lacks() -> None:
    """Whatever the values, a merge would fail on it, unless the file has no row."""
    schema = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    check_conformable(schema, schema, "x")
    check_conformable(schema.remove(1), schema, "x", rows=False)
    with pytest.raises(PhantombaseError, match="required column"):
        check_conformable(schema.remove(1), schema, "x")
