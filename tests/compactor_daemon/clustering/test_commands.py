"""`compactor-daemon cluster`, and the service of the daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.failures import CLUSTERING, Failure, record_failure
from phantombase.compactor_daemon.attempt.outcome import find_decision
from phantombase.compactor_daemon.attempt.pending_clusterings import inflight_content, pending_clusterings
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, Tasks
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.cancel import left_by_dead, settle_dead_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.clustering.result import ClusterResult
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.pools import Pools
from phantombase.compactor_daemon.status.catalog import catalog_rows
from phantombase.compactor_daemon.status.snapshot import clustering_snapshots
from phantombase.compactor_daemon.status.status import table_status
from phantombase.timeline.audit.clusterings import audit_clustering
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.avro_container import read_record, write_record
from phantombase.timeline.errors import UnknownCommitError, UnsupportedError, UsageError
from phantombase.timeline.format.instant import State
from phantombase.timeline.format.replace_request import _SCHEMA
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.terminal import console
from phantombase.timeline.view.view import GroupKey, is_replaced
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write
from phantombase.writer_hooks.write.write import write
from phantombase.writer_hooks.write.writer import writer
from tests.support.archived_tables import (
    COPIED,
    OUTPUT,
    TWO,
    WRITES,
    cluster,
    forget_heartbeats,
    living,
    one_row,
    request,
    rows_at,
    small_files,
    unzip,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at
from tests.support.faults import died_or_ended
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.places import capture_logs
from tests.support.selection import ALL, deep
from tests.support.servers.s3_server import S3Server
from tests.support.written_tables import Rows, read_rows


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output or done.exception
    return json.loads(done.stdout)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9, 5)
    before = sorted(p.name for p in path.rglob("*"))
    would = run("cluster", str(path), "--dry-run")
    assert (would["done"]["files"], would["done"]["made"], would["done"]["instant"]) == (5, 1, "")
    assert sorted(p.name for p in path.rglob("*")) == before
    done = run("cluster", str(path), "--sole-writer", "--target-size", "1g", "--codec", "gzip")
    assert (done["done"]["files"], done["done"]["rows"], done["why"]) == (5, 5, "")
    assert read_rows(path) == rows
    again = CliRunner().invoke(app, ["cluster", str(path), "--sole-writer"])
    assert "nothing to cluster: too few small files in a row; 1 small file" in again.stdout
    reasons = ["--rewrite", "codec,row-groups", "--rewrite", "bloom-filters"]
    would = run("cluster", str(path), *reasons, "--dry-run")
    (file_id,) = living(path)
    size = next(path.glob(f"*/{file_id}*")).stat().st_size
    assert would["reasons"] == {"codec": {"files": 1, "bytes": size}}
    shown = CliRunner().invoke(app, ["cluster", str(path), *reasons, "--codec", "gzip", "--sole-writer"])
    assert "nothing to cluster: no file has a reason to be rewritten" in shown.stdout


def test_it_shows_what_is_staged_before_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trips"
    small_files(path, 9, 5)
    monkeypatch.setattr(console, "_LOG_INTERVAL_S", 0.0)
    with capture_logs() as logs:
        assert CliRunner().invoke(app, ["cluster", str(path), "--sole-writer"]).exit_code == 0
    shown = [one for one in logs if one["event"] == "progress"][-1]
    assert (shown["task"], shown["done"], shown["total"]) == ("staging groups to cluster", 1, 1)
    (file_id,) = living(path)
    assert (shown["rows"], shown["bytes"]) == (5, next(path.glob(f"*/{file_id}*")).stat().st_size)


@pytest.mark.parametrize("copy", ["reencode", "force"])
def test_a_repeated_key_is_counted(copy: str, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9, 5)
    for ts in (10, 11):
        write(
            open_table(path), LocalEngine(one_row("k1", ts), slots=1), Write(operation=Operation.INSERT, options=WRITES)
        )
    done = CliRunner().invoke(app, ["cluster", str(path), "--sole-writer", "--copy", copy])
    assert "2 rows with the record key of another row of the same new file" in done.stdout.replace("\n", " ")
    assert read_table(open_table(path)).num_rows == 7


def test_what_it_refuses(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9, 5)
    for options, text in (
        ([], "which other processes write"),
        (["--sole-writer", "--lock", "file:/x"], "which other processes write"),
        (["--dry-run", "--cancel"], "cannot be combined"),
        (["--cancel", "--sole-writer", "--full", "--codec", "gzip"], "found --full, --codec"),
        (["--sole-writer", "--sort-order", "zorder"], "an order without columns"),
        (["--sole-writer", "--small-size", "1g"], "small-size must not be above target-size"),
    ):
        done = CliRunner().invoke(app, ["cluster", str(path), *options])
        assert isinstance(done.exception, UsageError), done.output
        assert text in str(done.exception)
    bucket = unzip_golden("v9_bucket_nonpart", tmp_path)
    done = CliRunner().invoke(app, ["cluster", str(bucket), "--dry-run"])
    assert isinstance(done.exception, UnsupportedError)


def test_take_back_and_status(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9, 5)
    instant = request(path, alive=False)
    shown = run("status", str(path))
    assert [(one["instant"], one["action"]) for one in shown["in_progress"]] == [(instant, "clustering")]
    assert "cluster" in shown["in_progress"][0]["todo"]
    assert run("cluster", str(path), "--cancel", "--sole-writer")["cancelled"] == [instant]
    again = CliRunner().invoke(app, ["cluster", str(path), "--cancel", "--sole-writer"])
    assert "nothing to cancel" in again.stdout
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_status_shows_each_clustering(version: int, tmp_path: Path) -> None:
    """Whose it is, who works on it, and how large it is; those that daemons plan, while they wait."""

    def shown(path: Path) -> list[tuple[str, str, int, str | None]]:
        rows = run("status", str(path))["clusterings"]
        assert all(row["input_bytes"] > 0 and row["age_s"] is not None for row in rows if row["instant"] != CLUSTERING)
        return [(row["instant"], row["state"], row["file_groups"], row["work"] and row["work"]["host"]) for row in rows]

    path, host = tmp_path / "trips", socket.gethostname()
    small_files(path, version, 3)
    assert shown(path) == []
    instant = request(path, alive=True)
    assert shown(path) == [(instant, "running", 3, host)]
    (claim,) = run("claims", str(path))["claims"]
    assert (claim["instant"], claim["host"]) == (instant, host)
    forget_heartbeats(path)
    assert shown(path) == [(instant, "waiting", 3, None)]
    assert "its process has ended" in run("status", str(path))["clusterings"][0]["why"]
    (listed,) = catalog_rows({"trips": str(path)}, Pools())
    assert listed.pending == 1
    assert "1 pending clustering" in CliRunner().invoke(app, ["status", str(path)]).stdout
    table = open_table(path)
    (pending,) = pending_clusterings(table.snapshot())
    inflight = path / table.instant_path(pending.requested.at(State.INFLIGHT))
    inflight.write_bytes(inflight_content(table))
    assert shown(path) == [(instant, "waiting", 3, None)]
    inflight.write_bytes(b"")
    os.utime(inflight, (1, 1))  # Hudi's, however old
    assert shown(path) == [(instant, "foreign", 3, None)]
    inflight.unlink()
    assert run("cluster", str(path), "--sole-writer", "--cancel")["cancelled"] == [instant]
    now = clock_ms()
    record_failure(table.storage, CLUSTERING, Failure(at_ms=now, error="Full", what="disk", who="me"))
    (row,) = run("status", str(path), "--backoff", "3600")["clusterings"]
    assert (row["instant"], row["state"], row["why"]) == (CLUSTERING, "backing off", "Full: disk")
    for number in range(8):
        record_failure(table.storage, CLUSTERING, Failure(at_ms=number, error="Full", what="disk", who="me"))
    (row,) = run("status", str(path))["clusterings"]
    assert (row["instant"], row["state"], row["why"]) == (CLUSTERING, "parked", "Full: disk")
    assert "release TABLE clustering" in CliRunner().invoke(app, ["status", str(path)]).stdout
    (listed,) = catalog_rows({"trips": str(path)}, Pools())
    assert (listed.pending, listed.parked) == (0, 1)


def test_status_leaves_out_a_clustering_that_ends_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trips"
    small_files(path, 9)
    request(path, alive=False)

    def seen(table: Snapshot) -> object:
        found = clustering_snapshots(table)
        assert len(found) == 1
        assert len(cluster(path).finished) == 1
        return found

    monkeypatch.setattr(f"{table_status.__module__}.clustering_snapshots", seen)
    table = open_table(path)
    assert table_status(table.snapshot(cached=False)).clusterings == ()


def test_status_shows_a_plan_of_hudi(tmp_path: Path) -> None:
    path = unzip("v6_0.15.0_cluster.scheduled", tmp_path)
    (row,) = run("status", str(path))["clusterings"]
    assert (row["action"], row["state"], row["file_groups"]) == ("clustering", "waiting", 9)
    assert "a plan of Hudi" in row["why"]


def test_a_dry_run_shows_what_a_killed_run_left(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9, 5)
    instant = request(path, alive=True)
    assert run("cluster", str(path), "--dry-run")["finished"] == []  # its process lives
    forget_heartbeats(path)
    before = sorted(p.name for p in path.rglob("*"))
    (would,) = run("cluster", str(path), "--dry-run")["finished"]
    assert sorted(p.name for p in path.rglob("*")) == before
    assert (would["instant"], would["files"], would["made"]) == (instant, 5, 1)
    assert "planned before" in CliRunner().invoke(app, ["cluster", str(path), "--dry-run"]).stdout
    (done,) = run("cluster", str(path), "--sole-writer")["finished"]
    assert {key for key in done if done[key] != would[key]} <= {"bytes_made", "rows", "copied_row_groups", "copied"}
    assert read_rows(path) == rows


@pytest.mark.parametrize("copy", ["reencode", "force"])
def test_the_daemon_clusters(copy: str, tmp_path: Path) -> None:
    """And goes on beside a table that cannot be clustered."""
    path, bucket = tmp_path / "trips", unzip_golden("v9_bucket_nonpart", tmp_path)
    rows = small_files(path, 9, 5)
    options = [
        "--once",
        "--executor",
        "local",
        "--services",
        "cluster,clean",
        "--sole-writer",
        "--cluster-min-file-num",
        "3",
        "--cluster-copy",
        copy,
    ]
    data = run("run", str(path), str(bucket), *options)
    assert [(one["table"], one["service"], one["what"]) for one in data["services"]] == [
        (str(path), "cluster", "5 files clustered, now 1")
    ]
    assert read_rows(path) == rows
    (file_id,) = living(path)
    (made,) = path.rglob(f"{file_id}*.parquet")
    assert pq.read_metadata(made).num_row_groups == (5 if copy == "force" else 1)


def test_the_runner_of_compactions_makes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the command and of the daemon, as their options say, and after a write, as the write runs."""
    ran: list[tuple[str, int]] = []
    run_them = LocalRunner.__call__

    def noted(self: LocalRunner, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        ran.append((tasks[0].job, self._threads))
        return run_them(self, storage, tasks, progress)

    monkeypatch.setattr(LocalRunner, "__call__", noted)
    path, how = tmp_path / "trips", ("--sole-writer", "--executor", "local", "--threads", "9")
    rows = small_files(path, 9)
    run("cluster", str(path), "--min-file-num", "2", *how)
    upsert(path, one_row("k8", 8))
    run("run", "--once", "--services", "cluster", "--cluster-min-file-num", "2", str(path), *how)
    what = Write(operation=Operation.UPSERT, options=replace(WRITES, cluster=TWO))
    write(open_table(path), LocalEngine(one_row("k9", 9), slots=3), what)
    assert ran == [("clustering", 1), ("clustering", 1), ("clustering", 3)]
    assert len(living(path)) == 1
    assert read_rows(path) == {**rows, "k8": (8, 8.0), "k9": (9, 9.0)}


def test_a_reason_is_said_once(tmp_path: Path) -> None:
    """Nothing is archived of a young table, and a table without metadata table has one reason for all its services."""
    path = tmp_path / "trips"
    small_files(path, 9, 3)
    shown = {c: CliRunner().invoke(app, [c, str(path), "--dry-run"]).stdout for c in ("archive", "metadata")}
    assert shown["archive"].count("archiving begins above 30") == 1
    assert shown["metadata"] == "nothing to do: the table has no metadata table\n"
    columns = CliRunner().invoke(app, ["cluster", str(path), "--dry-run", "--sort-by", "fear"])
    assert ", day, ts, fare; found fear" in str(columns.exception)
    pending = CliRunner().invoke(
        app, ["clean", str(unzip_golden("v9_pending", tmp_path)), "--dry-run", "--retain", "1", "--floor", "0"]
    )
    assert re.match(r"nothing to clean: compaction \d{17} is pending", pending.stdout)


# Beside real Hudi 0.15.0's clustering of the same table: the same rows, and what each of the two joins.


def _rows(path: Path) -> pa.Table:
    """Without the names of the files: the rows are in others."""
    return read_table(open_table(path)).drop_columns(["_hoodie_file_name"])


def golden_living(path: Path) -> dict[GroupKey, bool]:
    """The file groups that are not replaced, each with whether its newest slice has log files."""
    view = open_table(path).load_view()
    return {g.key: bool(g.slices[-1].logs) for g in view.groups if g.slices and not is_replaced(g, view.facts)}


def test_the_same_rows_and_file_groups(tmp_path: Path) -> None:
    """Both make one file of each partition, also of a file group with log files."""
    before, after = unzip("v6_0.15.0_cluster.before", tmp_path), unzip("v6_0.15.0_cluster.after", tmp_path)
    rows, planned = _rows(before), golden_living(before)
    assert_same_rows(_rows(after), rows)
    assert any(planned.values())
    result = cluster(before)
    assert result.done is not None
    assert (result.done.files, result.done.made) == (len(planned), 2)
    assert_same_rows(_rows(before), rows)
    replaced = open_table(before).facts.replaced_groups(open_table(before).load_timeline())
    theirs = open_table(after).facts.replaced_groups(open_table(after).load_timeline())
    assert replaced.keys() == theirs.keys()
    assert len(golden_living(after)) == len(golden_living(before))


def test_a_plan_of_hudi_is_executed(tmp_path: Path) -> None:
    """Log files too; a dry run shows it. A plan for a class that is not known, or with changed files, is left."""
    path = unzip("v6_0.15.0_cluster.scheduled", tmp_path)
    rows, before = _rows(path), golden_living(path)
    would = cluster_table(open_table(path), TWO, LOCK, output=OUTPUT, dry_run=True)
    assert [(one.files, one.made) for one in would.finished] == [(9, 2)]
    (plan,) = path.rglob("*.replacecommit.requested")
    (time,) = (one.instant for one in would.finished)
    unknown = shutil.copytree(path, tmp_path / "unknown")
    data = plan.read_bytes().replace(b"SparkSortAndSizeExecutionStrategy", b"SparkSortAndSizeExecutionMadeBySm")
    (unknown / plan.relative_to(path)).write_bytes(data)
    changed = shutil.copytree(path, tmp_path / "changed")
    hidden_by_hudi(changed, plan.relative_to(path))
    spanning = shutil.copytree(path, tmp_path / "spanning")
    (spanning / plan.relative_to(path)).write_bytes(in_one_group(plan.read_bytes()))
    assert_same_rows(_rows(spanning), rows)
    result = cluster(path)
    assert ([one.instant for one in result.finished], result.left_to_hudi) == ([time], {})
    assert_same_rows(_rows(path), rows)
    assert len(golden_living(path)) == 2
    assert not golden_living(path).keys() & before.keys()
    assert audit_clustering(open_table(path), time).good
    for other, why in (
        (unknown, "SparkSortAndSizeExecutionMadeBySm"),
        (changed, "as they were planned"),
        (spanning, "of several"),
    ):
        would = cluster_table(open_table(other), TWO, LOCK, output=OUTPUT, dry_run=True)
        assert why in would.left_to_hudi[time]
        result = cluster(other)
        assert (result.finished, result.cancelled, list(result.left_to_hudi)) == ((), (), [time])
        assert why in result.left_to_hudi[time]
        assert "the plan is cancelled" not in result.left_to_hudi[time]
        assert (other / plan.relative_to(path)).exists()
        assert not [*other.rglob(f"{time}.*inflight")]
        shown = CliRunner().invoke(app, ["cluster", str(other), "--sole-writer", "--min-file-num", "9"]).stdout
        assert "left to Hudi" in shown


def in_one_group(plan: bytes) -> bytes:
    """As a planner of a user may make it: the slices of all groups, which are of several partitions, in one group."""
    _, record = read_record(plan, "plan", _SCHEMA)
    groups = record["clusteringPlan"]["inputGroups"]
    groups[0]["slices"] += [one for group in groups[1:] for one in group["slices"]]
    del groups[1:]
    assert len({one["partitionPath"] for one in groups[0]["slices"]}) > 1
    return write_record(record, _SCHEMA)


def hidden_by_hudi(path: Path, plan: Path) -> None:
    """A write that did not see the plan adds a log file to a file group in it."""
    data = (path / plan).read_bytes()
    (path / plan).unlink()
    batch = read_table(open_table(path))
    batch = batch.select([name for name in batch.column_names if not name.startswith("_hoodie")])
    upsert(path, batch.slice(0, 1))
    (path / plan).write_bytes(data)


@pytest.mark.parametrize("ends", ["decided", "changed since", "undecided"])
def test_a_write_ends_what_a_dead_process_left_at_a_plan_of_hudi(ends: str, tmp_path: Path) -> None:
    """A decision is published, or reverted. The plan alone stays: Hudi, or the next run, executes it."""
    path, dead = unzip("v6_0.15.0_cluster.scheduled", tmp_path), list[str]()
    (plan,) = path.rglob("*.replacecommit.requested")
    time, before = plan.name.partition(".")[0], golden_living(path).keys()

    def hook(call: Call) -> object:
        if dead:
            raise ProcessDied(call.path)
        if call.name == "put_if_absent" and call.path.endswith("/outcome"):
            dead.append(call.path)
            if ends != "undecided":
                call.do()
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    forget_heartbeats(path)
    assert bool(find_decision(open_table(path).storage, time)) == (ends != "undecided")
    if ends == "changed since":
        hidden_by_hudi(path, plan.relative_to(path))
    rows, table = _rows(path), open_table(path)
    left = [one.time for one in left_by_dead(table.snapshot())]
    assert left == ([] if ends == "undecided" else [time])
    settle_dead_clusterings(table.snapshot(), LOCK)
    assert_same_rows(_rows(path), rows)
    assert find_decision(open_table(path).storage, time) is None or ends == "decided"
    pending = [i.requested_time for i in open_table(path).load_timeline().pending("replacecommit")]
    assert pending == ([] if ends == "decided" else [time])
    assert (golden_living(path).keys().isdisjoint(before)) == (ends == "decided")
    assert left_by_dead(open_table(path).snapshot()) == ()


@pytest.mark.parametrize("name", ["trips", "a plan of Hudi"])
def test_an_unreadable_decision_is_released(name: str, tmp_path: Path) -> None:
    """Its placed files are removed, and the next run, or a write, ends the clustering as if it were not decided."""
    path, dead = tmp_path / name, list[str]()
    if name == "trips":
        small_files(path, 9)
    else:
        path = unzip("v6_0.15.0_cluster.scheduled", tmp_path)

    def hook(call: Call) -> object:
        if dead:
            raise ProcessDied(call.path)
        done = call.do()
        if call.name == "place" and call.path.endswith(".parquet"):
            dead.append(call.path)
        return done

    rows, before = _rows(path), golden_living(path).keys()
    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    (outcome,) = path.rglob("outcome")
    time = outcome.parent.parent.name
    outcome.write_bytes(b"{")
    released = ["release", str(path), time, "--unreadable", "--sole-writer"]
    alive = CliRunner().invoke(app, released)
    assert "a compactor is at work" in str(alive.exception)
    forget_heartbeats(path)
    done = run(*released)
    assert (done["attempt"], len(done["files"])) == (1, 1)
    assert not [file for file in done["files"] if (path / file).exists()]
    assert_same_rows(_rows(path), rows)
    assert find_decision(open_table(path).storage, time) is None
    assert [one.instant for one in cluster(path).finished] == [time]
    assert_same_rows(_rows(path), rows)
    assert golden_living(path).keys().isdisjoint(before)


def test_a_death_at_any_step_of_a_plan_of_hudi(tmp_path: Path) -> None:
    """The next run completes it. Until then the plan is there, and the rows are as before."""
    origin = unzip("v6_0.15.0_cluster.scheduled", tmp_path)
    rows = _rows(origin)
    (plan,) = origin.rglob("*.replacecommit.requested")
    for path in died_or_ended(origin, lambda s: cluster_table(Table.on(s), TWO, LOCK, output=OUTPUT), (1, 3)):
        assert_same_rows(_rows(path), rows)
        assert (path / plan.relative_to(origin)).exists()
        forget_heartbeats(path)
        cluster(path)
        assert_same_rows(_rows(path), rows)
        assert len(golden_living(path)) == 2
        assert not open_table(path).load_timeline().pending("replacecommit")


# Clustering on an object store: deaths at a sample of its requests, and answers that are lost.


def on_s3_small_files(s3: S3Server, version: int) -> tuple[str, Rows]:
    """Three file groups of a row each, and the rows."""
    url = f"s3://{s3.new_bucket()}/a trip=1%20"
    for number in range(3):
        write = writer(one_row(f"k{number}", number)).table("trips", version=version)
        write.key("id").partition("day").ordering("ts").option(small_file_bytes=0).insert(url)
    return url, rows_at(url)


def on_s3_cluster(url: str, storage: Storage | None = None, options: ClusterOptions = TWO) -> ClusterResult:
    return cluster_table(Table.on(storage) if storage else Table.open(url), options, LOCK, output=OUTPUT)


def on_s3_living(url: str) -> int:
    view = Table.open(url).load_view()
    return len([g for g in view.groups if not is_replaced(g, view.facts)])


def forget(url: str) -> None:
    """The heartbeats of what died here: this process lives."""
    table = Table.open(url)
    for pending in pending_clusterings(table.snapshot()):
        table.storage.delete(heartbeat_path(pending.time))


@pytest.mark.parametrize(("version", "options"), [deep(6, TWO), deep(9, TWO), (9, COPIED)])
def test_it_is_finished_after_a_death_at_any_request(version: int, options: ClusterOptions, s3: S3Server) -> None:
    """Every 37th call, with all tests every 17th; the next run goes on where the last one died."""
    url, rows = on_s3_small_files(s3, version)
    for number in range(0, 400, 17 if ALL else 37):
        try:
            on_s3_cluster(url, HookedStorage(Table.open(url).storage, die_at(number)), options)
            ended = True
        except ProcessDied:
            ended = False
        assert rows_at(url) == rows
        forget(url)
        if ended:
            break
    assert ended
    assert on_s3_living(url) == 1


def test_a_commit_whose_answer_is_lost_waits_for_it(s3: S3Server) -> None:
    """It may come yet: no process takes the clustering back before that must be over, or completes it twice."""
    url, rows = on_s3_small_files(s3, 9)

    def lost(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".replacecommit"):
            raise UnknownCommitError("no answer", path=call.path)
        return call.do()

    with pytest.raises(UnknownCommitError):
        on_s3_cluster(url, HookedStorage(Table.open(url).storage, lost))
    assert rows_at(url) == rows
    assert (on_s3_cluster(url).done, on_s3_cluster(url).finished) == (None, ())  # at work, for all that is known
    forget(url)
    assert len(on_s3_cluster(url).finished) == 1
    assert rows_at(url) == rows
    completed = [i for i in Table.open(url).load_timeline().completed if i.action == "replacecommit"]
    assert (len(completed), on_s3_living(url)) == (1, 1)
