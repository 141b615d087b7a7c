"""Readers put pins, keep them, and let go of them; bad input leaves none."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from typer.testing import CliRunner

import phantombase
from phantombase import ExecuteOptions, Executor, PhantombaseError, UsageError, compact, schedule, writer
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.cli.main import app
from phantombase.timeline.pins.held import earliest_to_retain
from phantombase.timeline.pins.pins import pins, release_pin
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from pyspark_phantombase.batch_reader import BatchReader
from pyspark_phantombase.options import source_options
from pyspark_phantombase.stream_reader import StreamReader
from tests.support.s3_server import S3Server

KEYS = ["a", "b", "c"]


def upsert(path: str, ts: int) -> None:
    writer(pa.table({"id": KEYS, "ts": [ts] * 3})).table("t").key("id").ordering("ts").buckets(1).upsert(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of two writes."""
    found = str(tmp_path / "t")
    upsert(found, 1)
    upsert(found, 2)
    return found


def moments(path: str) -> list[str]:
    """When its writes completed."""
    timeline = Table.open(path).load_timeline()
    return sorted(timeline.moment_of(write) for write in timeline.completed_writes.values())


def held(path: str) -> dict[str, str]:
    """Name and moment of each pin that is live."""
    storage = Table.open(path).storage
    now_ms = storage_ms(storage)
    return {one.pin.name: one.pin.moment for one in pins(storage) if one.is_live(now_ms)}


def test_a_snapshot_holds_the_newest_state(path: str) -> None:
    with phantombase.read(path, pin="export") as rows:
        assert held(path) == {"export": moments(path)[-1]}
        assert rows.to_arrow().num_rows == 3
        upsert(path, 3)
        timeline = Table.open(path).load_timeline()
        newest = max(timeline.completed_writes)
        assert earliest_to_retain(timeline, pins(Table.open(path).storage), 0) == newest
    assert held(path) == {}


@pytest.mark.parametrize("query", ["incremental", "changes"])
def test_a_window_holds_the_state_at_its_begin(query: str, path: str) -> None:
    first, _ = moments(path)
    with phantombase.read(path, query=query, begin=first, pin="p"):
        assert held(path) == {"p": first}
    with phantombase.read(path, query=query, begin="earliest", pin="p"):
        assert held(path) == {"p": "0"}


def test_a_past_state_is_held(path: str) -> None:
    first, _ = sorted(Table.open(path).load_timeline().completed_writes)
    with phantombase.read(path, as_of=first, pin="p"):
        assert held(path) == {"p": first}


@pytest.mark.parametrize(
    "bad",
    [
        {"columns": ["other"]},
        {"filter": "other = 1"},
        {"as_of": "yesterday"},
        {"pin": "../x"},
        {"pin_seconds": 0},
        {"query": "incremental"},
    ],
)
def test_bad_input_leaves_no_pin(bad: dict[str, Any], path: str) -> None:
    with pytest.raises(PhantombaseError):
        phantombase.read(path, **{"pin": "p", **bad})
    assert pins(Table.open(path).storage) == ()


def test_one_reader_a_name(path: str) -> None:
    """A second one would move the first one's pin. An expired one, or one that was released, is free."""
    rows = phantombase.read(path, pin="p", pin_seconds=50)
    with pytest.raises(UsageError, match=r"held.*--release p"):
        phantombase.read(path, pin="p")
    age(path, 60)
    phantombase.read(path, pin="p").release()
    rows.release()
    assert pins(Table.open(path).storage) == ()


def age(path: str, seconds: float) -> None:
    """As if the pin had been written earlier, by the storage's clock."""
    file = Path(path) / ".hoodie/.phantombase/pins/p.json"
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime - seconds))


def test_a_reader_at_work_keeps_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch may write it again, when a third of its time is over."""
    rows = phantombase.read(path, pin="p", pin_seconds=600)
    assert rows.pin is not None
    age(path, 300)
    assert sum(batch.num_rows for batch in rows.batches()) == 3
    assert left_s(path) < 310
    rows.pin._written._steady -= 201
    assert sum(batch.num_rows for batch in rows.batches()) == 3
    assert left_s(path) > 590


def left_s(path: str) -> float:
    storage = Table.open(path).storage
    (found,) = pins(storage)
    return (found.expires_ms() - storage_ms(storage)) / 1000


def test_the_clock_of_the_process_does_not_count(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    phantombase.read(path, pin="p", pin_seconds=60)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    assert held(path) == {"p": moments(path)[-1]}


def test_nothing_else_minds(path: str) -> None:
    """Compactions, their audit and what follows them leave pins alone."""
    with phantombase.read(path, pin="p"):
        schedule(path)
        compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
        table = Table.open(path)
        assert all(audit(table, instant).good for instant in audited_instants(table))
        assert list(held(path)) == ["p"]


def test_a_clean_that_began_before_the_pin_is_noticed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader looks again behind its pin, and lets go when it cannot have what it needs."""

    def cleaned(_: phantombase.Rows) -> None:
        assert list(held(path)) == ["p"]
        raise UsageError("cleaned meanwhile")

    monkeypatch.setattr(phantombase.Rows, "_plan", cleaned)
    with pytest.raises(UsageError, match="cleaned meanwhile"):
        phantombase.read(path, pin="p")
    assert pins(Table.open(path).storage) == ()


def test_the_command(path: str) -> None:
    phantombase.read(path, pin="nightly", pin_seconds=7200)
    shown = CliRunner().invoke(app, ["pins", path])
    assert shown.exit_code == 0
    assert "nightly" in shown.output
    assert moments(path)[-1] in shown.output
    assert CliRunner().invoke(app, ["pins", path, "--release", "other"]).exit_code == 1
    assert "released: nightly" in CliRunner().invoke(app, ["pins", path, "--release", "nightly"]).output
    assert "No reader" in CliRunner().invoke(app, ["pins", path]).output


def test_a_batch_of_spark(path: str) -> None:
    """The pin outlives the planning: its tasks run later. What cannot be read leaves none."""
    options = source_options({"path": path, "pin": "p", "pin_seconds": "60"})
    reader = BatchReader(options, StructType())
    reader.partitions()
    assert held(path) == {"p": moments(path)[-1]}
    release_pin(Table.open(path).storage, "p")
    with pytest.raises(UsageError):
        BatchReader(source_options({"path": path, "pin": "p", "filter": "other = 1"}), StructType()).partitions()
    assert held(path) == {}


def test_a_stream(path: str) -> None:
    """The pin follows the batches: it holds the begin of the next one, also for the process that goes on."""
    options = source_options({"path": path, "pin": "p"})
    reader = StreamReader(options, StructType())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert held(path) == {"p": "0"}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert held(path) == {"p": moments(path)[-1]}
    StreamReader(options, StructType()).latestOffset(start, ReadAllAvailable())
    assert held(path) == {"p": "0"}


def test_on_an_object_store(s3: S3Server) -> None:
    """Its times are in whole seconds."""
    path = f"s3://{s3.new_bucket()}/t"
    upsert(path, 1)
    with phantombase.read(path, pin="p", pin_seconds=60) as rows:
        assert held(path) == {"p": moments(path)[-1]}
        assert rows.to_arrow().num_rows == 3
        with pytest.raises(UsageError, match="held"):
            phantombase.read(path, pin="p")
    assert held(path) == {}
