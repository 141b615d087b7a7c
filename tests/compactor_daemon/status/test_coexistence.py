"""What a table shows of others is found, with what to set; a table that only we write to shows nothing."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.status.coexistence import coexistence, find_hudi_signs
from phantombase.compactor_daemon.status.snapshot import of_kept
from phantombase.compactor_daemon.status.status import table_status
from phantombase.timeline.dashboard.compactions import view_backlog
from phantombase.timeline.dashboard.overview import Clock
from phantombase.timeline.dashboard.verdict import Finding, Severity
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.clock_check import Zone, ZoneVerdict
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import is_replaced, latest_slice
from phantombase.writer_hooks.commit.transaction import transaction
from tests.support.clock import sleeps
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import one_of, unzip_golden

VERSIONS = pytest.mark.parametrize("version", [6, 8, 9])


def findings(path: Path, options: AttemptOptions | None = None) -> dict[str, Finding]:
    table = open_table(path)
    found = coexistence(find_hudi_signs(table.snapshot()), round(time.time() * 1000), options)
    return {f.name: f for f in found if f.name != "auto-upgrade"}


def pending(path: Path, version: int) -> tuple[Path, Table]:
    made = unzip_golden(f"v{version}_pending", path)
    return made, open_table(made)


def put(table: Table, time_: str, action: str, state: State) -> None:
    table.storage.put_if_absent(table.instant_path(Instant(requested_time=time_, action=action, state=state)), b"")


def test_hudi_beside_us_may_upgrade_a_table_of_version_9(tmp_path: Path) -> None:
    """To a version that phantombase refuses; only where Hudi is at work."""
    _, table = pending(tmp_path, 9)
    beside = find_hudi_signs(table.snapshot())
    assert list(coexistence(replace(beside, compactions={"20990101000000000": True}), 0)) == []
    (found,) = coexistence(replace(beside, compactions={"20990101000000000": False, "3": True}, traces={}), 0)
    assert (found.name, found.severity) == ("auto-upgrade", Severity.INFO)
    assert "hoodie.write.table.version=9" in found.todo


@VERSIONS
def test_a_table_with_no_sign_of_others(version: int, tmp_path: Path) -> None:
    """Also with Hudi's compactions before ours, and while a write of ours pends."""
    path, table = pending(tmp_path, version)
    assert findings(path) == {}
    run_all(table)
    every = coexistence(find_hudi_signs(table.snapshot()), 0)
    assert [(f.name, f.severity) for f in every] == [("auto-upgrade", Severity.INFO)] * (version < 9)
    with transaction(table, ProcessLock("x"), 30.0):
        assert findings(path) == {}


def test_a_live_metadata_table(tmp_path: Path) -> None:
    """It is kept; indexes that are not are named, and unknown ones keep us from writing."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    kept = properties.read_bytes()
    assert "metadata-table" not in findings(path)
    properties.write_bytes(kept + b"\nhoodie.table.metadata.partitions=files,record_index,secondary_index_city\n")
    found = findings(path)["metadata-table"]
    assert (found.severity, found.found) == (Severity.WARNING, "record_index, secondary_index_city")
    properties.write_bytes(kept + b"\nhoodie.table.metadata.partitions=files,vector_index\n")
    found = findings(path)["metadata-table"]
    assert (found.severity, found.found) == (Severity.DANGER, "vector_index")


def test_a_record_index_is_kept_if_it_is_one_for_all_partitions(tmp_path: Path) -> None:
    """As the first write does."""
    path = unzip_golden("more/v9_record_index", tmp_path)
    assert not findings(path).keys() & {"metadata-table", "record-index"}
    folder = path / ".hoodie/metadata/record_index"
    (folder / ".record-index-a-0000-0_20260101000000000.log.1_0-0-0").write_bytes(b"")
    assert findings(path)["metadata-table"].found == "record_index"
    next(folder.glob(".record-index-0000-0_2*")).unlink()
    assert findings(path)["record-index"].severity is Severity.DANGER


@VERSIONS
def test_a_write_without_heartbeat_alone_and_beside_another(version: int, tmp_path: Path) -> None:
    path, table = pending(tmp_path, version)
    put(table, "29990101000000000", "deltacommit", State.INFLIGHT)
    assert findings(path)["write-without-heartbeat"].severity is Severity.WARNING
    with transaction(table, ProcessLock("x"), 30.0) as ours:
        found = findings(path)["writers-without-lock"]
        assert found.severity is Severity.DANGER
        assert found.found == f"29990101000000000 concurrently with {ours.instant}"
        assert "optimistic_concurrency_control" in found.todo


def test_a_write_that_ends_during_the_look_is_not_without_heartbeat(tmp_path: Path) -> None:
    """Its heartbeat goes with it."""
    _, table = pending(tmp_path, 9)
    put(table, "29990101000000000", "deltacommit", State.INFLIGHT)
    before = table.load_timeline()
    assert find_hudi_signs(table.with_timeline(before)).silent == ("29990101000000000",)
    (instant,) = before.pending_delta_commits
    table.storage.delete(table.instant_path(instant))
    assert find_hudi_signs(table.with_timeline(before)).silent == ()


@pytest.mark.parametrize(
    ("zone", "version", "severity"),
    [
        (Zone.BEHIND, 9, Severity.DANGER),
        (Zone.AHEAD, 9, Severity.WARNING),
        (Zone.AHEAD, 6, Severity.DANGER),  # Hudi 1.x compares times of files there
    ],
)
def test_another_zone_than_that_of_the_writers(zone: Zone, version: int, severity: Severity, tmp_path: Path) -> None:
    _, table = pending(tmp_path, 9)
    beside = replace(find_hudi_signs(table.snapshot()), version=version, zone=ZoneVerdict(zone=zone))
    assert {f.name: f.severity for f in coexistence(beside, 0)}["time-zone"] is severity


@pytest.mark.parametrize("version", [8, 9])
def test_a_write_without_heartbeat_while_another_completed(version: int, tmp_path: Path) -> None:
    path, table = pending(tmp_path, version)
    first = min(table.load_timeline().completed_writes)
    put(table, f"{int(first) + 1}", "deltacommit", State.INFLIGHT)
    assert "writers-without-lock" in findings(path)


@VERSIONS
def test_a_compaction_of_somebody_else_after_ours(version: int, tmp_path: Path) -> None:
    path, table = pending(tmp_path, version)
    run_all(table)
    ours = table.files.completed_commits()[-1]
    done = table.storage.read(table.instant_path(ours))
    theirs = done.replace(b"phantombase.ledger", b"somebody.elses.one")
    later = Instant(
        requested_time="29990101000000000",
        action="commit",
        state=State.COMPLETED,
        completion_time="29990101000000001" if version > 6 else None,
    )
    table.storage.put_if_absent(table.instant_path(later), theirs)
    found = findings(path)["other-compactor"]
    assert found.severity is Severity.WARNING
    assert "hoodie.compact.inline=false" in found.todo
    table.storage.delete(table.instant_path(ours))
    assert findings(path) == {}  # all of them are Hudi's


def test_two_completed_commits_of_one_compaction(tmp_path: Path) -> None:
    _, table = pending(tmp_path, 9)
    run_all(table)
    ours = table.files.completed_commits()[-1]
    twin = Instant(
        requested_time=ours.requested_time, action="commit", state=State.COMPLETED, completion_time="29990101000000001"
    )
    table.storage.put_if_absent(table.instant_path(twin), table.storage.read(table.instant_path(ours)))
    found = [one.found for one in of_kept(table.snapshot(), Clock.of(table), 60) if one.name == "completed-twice"]
    assert found == [ours.requested_time]


@VERSIONS
def test_an_executor_of_hudi_live_then_dead(version: int, tmp_path: Path) -> None:
    path, table = pending(tmp_path, version)
    instant = pending_instants(table)[0]
    table.storage.put_if_absent(inflight_path(table, instant), b"")
    found = findings(path)["hudi-at-work"]
    assert found.severity is Severity.WARNING
    assert instant in found.found
    long_ago = time.time() - 7200
    os.utime(path / inflight_path(table, instant), (long_ago, long_ago))
    assert findings(path)["hudi-left-off"].severity is Severity.INFO
    assert "hudi-at-work" in findings(path, AttemptOptions(foreign_grace_s=10_000))
    partition = table.compaction_plan(instant).operations[0].partition_path
    (path / partition / f"some-file-0_0-1-2_{instant}.parquet").touch()
    assert "hudi-at-work" in findings(path), "it writes files, as the row of the compaction shows"
    (row,) = table_status(open_table(path).snapshot(cached=False)).pending
    assert row.state == "foreign"


# `status` as the page one opens: backlog, the next plan, the last compaction, what a clean could remove.


def call(*words: str | Path) -> str:
    """stdout of a command that must succeed."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def status(path: Path, *words: str) -> dict[str, Any]:
    """The document of `status`."""
    document = json.loads(call("status", path, *words, "--json"))
    assert isinstance(document, dict)
    return document


@one_of("name", "v9_plain", "v6_plain")
def test_a_table_before_and_after_its_compaction(name: str, tmp_path: Path) -> None:
    """The backlog is what the next plan takes; then nothing, and the success is the last one."""
    path = unzip_golden(name, tmp_path)
    found = status(path, "--max-delta-commits", "3")
    slices = json.loads(call("schedule", path, "--dry-run", "--json"))["picked"]
    assert found["backlog"]["file_groups"] == len(slices) > 0
    assert found["backlog"]["log_files"] == sum(one["log_files"] for one in slices)
    assert found["next_plan"]["due"]
    assert " of 3 delta commits since " in found["next_plan"]["why"]
    assert not status(path, "--max-delta-commits", "99")["next_plan"]["due"]
    assert found["last_success"] is None
    (done,) = json.loads(call("compact", path, "--schedule", "--sole-writer", "--json"))["compacted"]
    after = status(path)
    assert (after["backlog"]["file_groups"], after["backlog"]["log_bytes"]) == (0, 0)
    assert after["last_success"]["instant"] == done["instant"]
    assert 0 <= after["last_success"]["ago_s"] < 600
    assert "0 of 5 delta commits" in call("status", path)


def test_logs_of_a_pending_plan_are_no_backlog(tmp_path: Path) -> None:
    """Nor are those of replaced file groups."""
    assert status(unzip_golden("v9_pending", tmp_path))["backlog"]["file_groups"] == 0
    replaced = open_table(unzip_golden("v9_replaced", tmp_path)).load_view()
    assert [latest.logs for group in replaced.groups if is_replaced(group, replaced.facts)
            and (latest := latest_slice(group)) and latest.logs]  # fmt: skip
    assert view_backlog(replaced).file_groups == 0


def test_a_brief_look_lists_no_partition(tmp_path: Path) -> None:
    assert "backlog" not in status(unzip_golden("v9_plain", tmp_path), "--brief")


def test_what_cannot_be_found_out_stops_nothing(tmp_path: Path) -> None:
    """A base file of a completed compaction is lost: the backlog is unknown, the next plan is not."""
    path = unzip_golden("v9_plain", tmp_path)
    call("compact", path, "--schedule", "--sole-writer")
    instant = status(path)["last_success"]["instant"]
    next(path.rglob(f"*_{instant}.parquet")).unlink()
    found = status(path)
    assert found["backlog"]["problem"]
    assert found["next_plan"]["problem"] is None
    assert "names a base file that does not exist" in " ".join(call("status", path).split())


def test_it_is_shown_again_until_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    path = unzip_golden("v9_plain", tmp_path)
    sleeps(monkeypatch, sleep)
    assert call("status", path, "--brief", "--watch", "2").count("No compaction is pending.") == 3
    assert waits == [2, 2, 2]
