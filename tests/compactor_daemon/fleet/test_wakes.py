"""What wakes a daemon beside its polls: a file, S3's events in a queue, the notifications of a metastore."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.catalogs.metastore import Metastore
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.fleet import wakes
from phantombase.compactor_daemon.fleet.catalog import FleetTables
from phantombase.compactor_daemon.fleet.pools import Pools
from phantombase.compactor_daemon.fleet.wakes import (
    WakeFile,
    WakeMetastore,
    WakeOptions,
    WakeQueue,
    Woken,
    listening,
    tables_in,
)
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.storage_options import Settings, StorageOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.compaction_steps import open_table
from tests.support.daemons import ROWS, WAIT_S, at_work, daemon_on, pending_table
from tests.support.places import capture_logs
from tests.support.servers.hive_metastore import MemoryMetastore
from tests.support.servers.zookeeper_server import wait_until

PLAN = ".hoodie/timeline/20260101000000000.compaction.requested"
ENDED = threading.Event()
ENDED.set()


@dataclass
class Heard:
    """A daemon, and what it was woken for."""

    paths: tuple[str, ...] = ()
    fleet: FleetTables | None = None
    woken: list[str] = field(default_factory=list)

    def wake(self, table: str) -> None:
        self.woken.append(table)


def pending(table: Path) -> bool:
    return bool(open_table(table).load_timeline().pending_compactions)


def fleet_of(**names: str) -> FleetTables:
    """Tables by name and path."""
    return FleetTables(names={path: name for name, path in names.items()}, members=frozenset(), pools=Pools())


def event(*keys: str, bucket: str = "lake") -> str:
    """What S3 says of these objects."""
    return json.dumps({"Records": [{"s3": {"bucket": {"name": bucket}, "object": {"key": key}}} for key in keys]})


def test_lines_that_are_added_to_a_file_wake(tmp_path: Path) -> None:
    """Whole lines only; not those that were there. The file may be cut off, replaced or removed."""
    path, heard = tmp_path / "wake", list[str]()
    path.write_text("/lake/before\n")
    source = WakeFile(path)

    def hear(text: bytes | None = None) -> list[str]:
        heard.clear()
        if text is not None:
            with path.open("ab") as file:
                file.write(text)
        source.hear(heard.append, ENDED)
        return list(heard)

    assert hear() == []
    assert hear(b"/lake/a\n/lake/a\n\n/lake/half") == ["/lake/a"]
    assert hear(f"/{PLAN}\n\xff\0\n".encode("latin-1")) == ["/lake/half", "\udcff\0"]
    path.write_text("/lake/b\n")
    assert hear() == ["/lake/b"]
    path.unlink()
    assert hear() == []
    assert hear(b"/lake/c\n") == ["/lake/c"]


def test_only_what_is_served_is_woken_in_any_spelling() -> None:
    daemon = Heard(paths=("s3a://lake/t", "/lake/t"))
    woken = Woken(daemon=daemon)
    for path in (
        "s3://lake/t",
        "s3n://lake/t/",
        "file:///lake/t",
        "s3://other/t",
        "/lake/t/x",
        "\udcff\0",
        "s3:/x",
        "",
    ):
        woken(path)
    assert daemon.woken == ["s3a://lake/t", "s3a://lake/t", "/lake/t"]


def test_a_table_of_another_daemon_is_rung_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rung = list[Any]()

    class Claims:
        def __init__(self, session: object, name: str, holder: str) -> None:
            rung.append(name)

        def ring(self, instant: str) -> None:
            rung.append("rung")

    monkeypatch.setattr(wakes, "ZooKeeperClaims", Claims)
    for name in ("known", "new"):
        (tmp_path / name / ".hoodie/.phantombase").mkdir(parents=True)
    (tmp_path / "known/.hoodie/.phantombase/table-id").write_text("abc")
    daemon = Heard(fleet=fleet_of(known=str(tmp_path / "known"), new=str(tmp_path / "new")))
    woken = Woken(daemon=daemon, session=object())  # type: ignore[arg-type]
    for name in ("known", "new", "unknown"):
        woken(str(tmp_path / name))
    assert (rung, daemon.woken) == (["abc", "rung"], [])


def test_tables_are_known_by_the_objects_of_their_timelines() -> None:
    """In all forms in which S3's events come. What daemons write while they work is no news."""
    inner = event(f"a+b/t%3D1/{PLAN}")
    assert tables_in(inner) == frozenset({"s3://lake/a b/t=1"})
    assert tables_in(json.dumps({"Type": "Notification", "Message": inner})) == frozenset({"s3://lake/a b/t=1"})
    detail = {"bucket": {"name": "lake"}, "object": {"key": f"a b/{PLAN}"}}
    assert tables_in(json.dumps({"source": "aws.s3", "detail": detail})) == frozenset({"s3://lake/a b"})
    assert tables_in(event("t/.hoodie/20260101000000000.commit", f"u/{PLAN}")) == frozenset(
        {"s3://lake/t", "s3://lake/u"}
    )
    quiet = ("t/.hoodie/.phantombase/1/open", "t/.hoodie/.heartbeat/1", "t/p/1.parquet", "t/.hoodie/timeline/history/1")
    assert tables_in(event(*quiet)) == frozenset()
    assert tables_in(json.dumps({"Event": "s3:TestEvent", "Service": "Amazon S3"})) == frozenset()
    twice = json.dumps({"Message": json.dumps({"Message": inner})})
    for strange in ("", "{", "[]", "{}", "null", '{"Records": [{}]}', '{"Records": 1}', '{"Message": "hello"}', twice):
        assert tables_in(strange) is None, strange


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """The URL of a queue in this process, and a client."""
    moto = pytest.importorskip("moto")
    import boto3

    monkeypatch.setattr(wakes, "_QUEUE_S", 0)
    with moto.mock_aws():
        client = boto3.client("sqs", region_name="us-east-1")
        yield client.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "0"})["QueueUrl"], client


def test_a_message_is_deleted_once_its_tables_are_woken(queue: tuple[str, Any]) -> None:
    """One that is not S3's stays in the queue, and nothing is woken for it."""
    url, client = queue
    for body in ("hello", event(f"t/{PLAN}", f"t/{PLAN}"), event("t/p/1.parquet")):
        client.send_message(QueueUrl=url, MessageBody=body)
    source, heard = WakeQueue(url, Settings()), list[str]()

    def dies(_: str) -> None:
        raise KeyboardInterrupt

    with capture_logs() as logs:
        with pytest.raises(KeyboardInterrupt):
            source.hear(dies, ENDED)
        for _ in range(3):
            source.hear(heard.append, ENDED)
    assert heard == ["s3://lake/t"]
    (left,) = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert left["Body"] == "hello"
    assert [one["event"] for one in logs] == ["no_event_of_s3"]


def test_a_metastore_tells_which_tables_were_changed(memory_metastore: MemoryMetastore) -> None:
    """Not what it noted before the daemon began, or when its numbers begin again."""
    daemon, notes = Heard(fleet=fleet_of(**{"db/t": "s3://lake/t"})), memory_metastore.notes
    source = WakeMetastore(Metastore.parse(memory_metastore.where), daemon)
    notes.append(("db", "t"))
    source.hear(daemon.wake, ENDED)
    notes += [("db", "t_ro"), ("db", "t_rt"), ("db", "other"), ("db2", "t"), (None, None)]
    source.hear(daemon.wake, ENDED)
    source.hear(daemon.wake, ENDED)
    assert daemon.woken == ["s3://lake/t"]
    del notes[1:]
    source.hear(daemon.wake, ENDED)
    notes.append(("db", "t"))
    source.hear(daemon.wake, ENDED)
    assert daemon.woken == ["s3://lake/t"] * 2


def test_a_source_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops nothing, and is told once."""
    for name in ("_AGAIN_S", "_FILE_S"):
        monkeypatch.setattr(wakes, name, 0.0)
    lines, rung, tries = WakeFile._lines, threading.Event(), list[int]()

    def fails(source: WakeFile) -> list[str]:
        tries.append(1)
        if len(tries) < 4:
            raise StorageError("the disk is away")
        return lines(source)

    monkeypatch.setattr(WakeFile, "_lines", fails)
    daemon = Heard(paths=("/lake/a",))
    monkeypatch.setattr(daemon, "wake", lambda table: rung.set())
    path = tmp_path / "wake"
    with capture_logs() as logs, listening(WakeOptions(file=path), daemon, None, None, StorageOptions()):
        path.write_text("/lake/a\n")
        assert rung.wait(WAIT_S)
    assert [one["event"] for one in logs] == ["no_wake_ups"]


def test_a_daemon_is_woken_long_before_its_next_poll(tmp_path: Path) -> None:
    """And a bell that rings while it looks is not lost."""
    table, lines = pending_table(tmp_path / "t"), tmp_path / "wake"
    by_file = WakeOptions(file=lines)
    with (
        daemon_on(table, zookeeper=None, once=False) as daemon,
        at_work(daemon),
        listening(by_file, daemon, None, None, StorageOptions()),
    ):
        wait_until(lambda: not pending(table), WAIT_S)
        ask = writer(ROWS.slice(0, 5)).buckets(1).schedule(strategy=TriggerStrategy.ALWAYS)
        assert ask.upsert(str(table)).after.scheduled is not None
        lines.write_text(f"{table}\n")
        wait_until(lambda: not pending(table), WAIT_S)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--once", "--wake-file", "w"], "--wake-file with --once has no effect"),
        (["--wake-metastore"], "--wake-metastore is for the tables of a Hive Metastore"),
        (["--wake-queue", "lake"], "not a queue of SQS"),
    ],
)
def test_a_source_that_cannot_wake_is_refused(given: list[str], what: str, tmp_path: Path) -> None:
    create_table(LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",)))
    done = CliRunner().invoke(app, ["run", str(tmp_path), "--executor", "local", *given])
    assert isinstance(done.exception, UsageError)
    assert what in str(done.exception)
