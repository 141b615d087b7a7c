"""A paused table: nobody begins work on it; what cannot be read is no "not paused"; a poll costs no request more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import phantombase
from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import Paused, Ready
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.served_table import TableOnStorage
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.compactor_daemon.services.options import ServiceOptions
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import MalformedError, PausedError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.pause import Pause, held_by, pause_files, put_pause
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import open_table
from tests.support.daemons import ROWS, daemon_on, pending_table, served_on
from tests.support.faults import Faults
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server
from tests.support.written_tables import read_rows


def invoke(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in (*words, "--json")])
    assert done.exit_code == code, done.output + repr(done.exception)
    return json.loads(done.stdout)


def refused(*words: object) -> BaseException | None:
    return CliRunner().invoke(app, [str(word) for word in words]).exception


def test_nobody_begins_work_on_a_paused_table_until_it_is_resumed(tmp_path: Path) -> None:
    path = pending_table(tmp_path / "rides")
    rows = read_rows(path)
    paused = invoke("pause", path, "--reason", "the disk is replaced", "--for", "2h")["paused"]
    assert paused.endswith(": the disk is replaced")
    for words in (
        ("compact", path),
        *((name, path, "--sole-writer") for name in ("clean", "archive", "cluster", "metadata")),
        ("schedule", path, "--sole-writer"),
    ):
        error = refused(*words)
        assert isinstance(error, PausedError), words
        assert (error.what, "compactor-daemon resume" in str(error)) == (paused, True)
    steps = invoke("maintain", path, "--sole-writer", "--max-delta-commits", "1")["tables"][0]["steps"]
    assert {step["what"] for step in steps[2:]} == {paused}  # clean, archive, ...: held, and no failure
    with daemon_on(path, zookeeper=None, services=ServiceOptions.of(), sole_writer=True) as daemon:
        summary = daemon.run()
    assert (list(summary.done), list(summary.failed), summary.problems) == ([], [], {})
    late = writer(pa.table({"id": ["0"], "ts": [9], "fare": [9.0]})).buckets(1).clean()
    after = late.compact_inline(strategy=TriggerStrategy.ALWAYS).upsert(str(path)).after
    assert (after.error, after.compacted, paused in after.why) == (None, (), True)
    assert invoke("status", path)["paused"][0]["what"] == paused
    shown = CliRunner().invoke(app, ["status", str(path)], env={"COLUMNS": "200"}).stdout
    assert (shown.count(f"info: {paused}"), f"paused: {paused}" in shown) == (1, False)
    (found,) = (one for one in invoke("check", path)["tables"][0]["findings"] if one["name"] == "paused")
    assert (found["severity"], found["what"]) == ("info", paused)
    assert invoke("resume", path)["removed"] == [paused]
    assert invoke("resume", path)["removed"] == []
    with daemon_on(path, zookeeper=None) as daemon:
        assert len(daemon.run().done) == 1
    assert len(read_rows(path)) == len(rows)


def test_a_pause_during_a_run_holds_its_next_instant(tmp_path: Path) -> None:
    path = unzip_golden("v9_two_pending", tmp_path)
    _, second = pending_instants(open_table(path))

    def runner(storage: Storage, tasks: Any, progress: Any) -> list[SliceDone]:
        put_pause(LocalStorage(str(path)), Pause(who="a", reason="r", since_ms=0))
        return LocalRunner(1)(storage, tasks, progress)

    how = {"output": OutputOptions(), "execute": ExecuteOptions(), "attempt": AttemptOptions(), "runner": runner}
    with pytest.raises(PausedError):
        run_compactions(str(path), **how)  # type: ignore[arg-type]
    assert pending_instants(open_table(path)) == (second,)


def test_a_pause_of_some_services_one_that_is_over_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    path = pending_table(tmp_path / "rides")
    storage = LocalStorage(str(path))
    put_pause(storage, Pause(who="a", reason="r", since_ms=0, until_ms=1))
    assert held_by(storage, "compaction") is None
    invoke("pause", path, "--reason", "audit", "--services", "clean,archive")
    assert len(pause_files(storage)) == 1  # the one that was over is removed
    assert isinstance(refused("clean", path, "--sole-writer"), PausedError)
    assert [one.readiness for one in served_on(open_table(path)).snapshot().pending] == [Ready()]
    (tmp_path / "rides/.hoodie/.phantombase/0-pause-torn").write_bytes(b"{")
    for error in (refused("compact", path), refused("clean", path, "--sole-writer")):
        assert isinstance(error, MalformedError)
        assert "compactor-daemon resume" in str(error)
    with daemon_on(path, zookeeper=None) as daemon:
        summary = daemon.run()
    assert (list(summary.done), list(summary.problems)) == ([], [str(path)])
    assert invoke("check", path, code=2)["tables"][0]["health"] == "broken"
    assert len(invoke("resume", path)["removed"]) == 2
    assert len(phantombase.compact(path).done) == 1


def test_a_poll_makes_no_more_requests_for_pauses_and_none_where_nothing_is_pending(
    s3: S3Server, tmp_path: Path
) -> None:
    """The listing of the records of instants has the pauses too. Only a pause that is there is read."""
    idle, path = tmp_path / "idle", pending_table(tmp_path / "rides")
    writer(ROWS).table("rides").key("id").ordering("ts").buckets(1).upsert(str(idle))
    bucket = s3.new_bucket()

    def polled(table: TableOnStorage) -> tuple[list[str], int, Any]:
        before = len(s3.asked)
        seen = table.snapshot()
        asked = s3.asked[before:]
        lists = [one.query for one in asked if "list-type" in one.query and "phantombase" in one.query]
        return lists, len(asked), seen

    first = served_on(Table.open(s3.upload(idle, bucket, "idle")))
    assert polled(first)[0] == []
    second = served_on(table := Table.open(s3.upload(path, bucket, "rides")))
    polled(second)  # it opens the table, too
    lists, number, seen = polled(second)
    assert (len(lists), number, seen.paused) == (1, 3, False)
    put_pause(table.storage, Pause(who="ann", reason="audit", since_ms=clock_ms()))
    lists, number, seen = polled(second)
    assert (len(lists), number, seen.paused) == (1, 4, True)
    assert [one.readiness for one in seen.pending] == [Paused("paused by ann: audit")]


def test_a_process_that_dies_while_it_pauses_or_resumes_leaves_a_whole_pause_or_none(tmp_path: Path) -> None:
    path = tmp_path / "rides"
    writer(ROWS).table("rides").key("id").ordering("ts").buckets(1).upsert(str(path))
    old = Pause(who="a", reason="r", since_ms=0, until_ms=1)
    new = Pause(who="b", reason="r", since_ms=clock_ms())
    put_pause(LocalStorage(str(path)), old)
    counted = 0
    for _, copy in Faults.of(path, lambda storage: put_pause(storage, new)).deaths():
        storage = LocalStorage(str(copy))
        assert held_by(storage, "clean") in (None, new)
        put_pause(storage, new)
        assert held_by(storage, "clean") == new
        counted += 1
    put_pause(LocalStorage(str(path)), new)
    put_pause(LocalStorage(str(path)), new)
    for _, copy in Faults.of(path, lambda storage: storage.delete_all(pause_files(storage))).deaths():
        storage = LocalStorage(str(copy))
        assert held_by(storage, "clean") == new
        storage.delete_all(pause_files(storage))
        assert held_by(storage, "clean") is None
        counted += 1
    assert counted >= 3
