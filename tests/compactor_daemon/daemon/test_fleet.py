"""Daemons on real tables with a real ZooKeeper, step by step. `tests/world/chaos` has them meet at random."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.attempt.attempt import open_attempt, stage
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant
from phantombase.compactor_daemon.attempt.failures import read_failures
from phantombase.compactor_daemon.attempt.outcome import dead_record, read_outcome, write_outcome
from phantombase.compactor_daemon.attempt.publish import publish, remove_staged
from phantombase.compactor_daemon.attempt.slice_record import SliceDone, done_slices
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, SliceTask
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.cli.run import _signals
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.daemon.dispatch import Stop
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.zookeeper_claims import ZooKeeperClaims
from phantombase.compactor_daemon.services.options import ServiceOptions
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import AttemptDeadError, LedgerError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.format.instant import State, later
from phantombase.timeline.format.table_config import save_table_config
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD, attempts
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks import heartbeat
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Entry, Storage
from phantombase.timeline.storage.folders import CLUSTERINGS, RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import cluster, data_files, forget_heartbeats, living, request, small_files, unzip
from tests.support.compaction_steps import OPTIONS, OUTPUT, check_no_strays, open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.daemons import WAIT_S, at_work, daemon_on
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import pending_write
from tests.support.golden_tables import unzip_golden
from tests.support.moved_tables import schedule, upsert
from tests.support.servers.zookeeper_server import ZooKeeper, expire, wait_until
from tests.support.trips import rows
from tests.support.written_tables import check_nothing_left, read_rows, written_table


class HeldUp:
    """Compacts the first `free` slices of a run, then waits until it is let go, or told to stop."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        inner = LocalRunner(1)
        done = inner(storage, tasks[: self.free], progress) if self.free else []
        self.reached.set()
        while not self.let_go.wait(0.02):
            progress(len(done), len(tasks))
        return done + inner(storage, tasks[self.free :], progress)


class Fails:
    """A runner whose error is given by a function of the instant; None: it works."""

    def __init__(self, error: Callable[[str], Exception | None]) -> None:
        self.error = error
        self.tried: list[str] = []

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        self.tried.append(tasks[0].instant)
        error = self.error(tasks[0].instant)
        if error is not None:
            raise error
        return LocalRunner(1)(storage, tasks, progress)


def pending(path: Path) -> list[str]:
    return [i.requested_time for i in open_table(path).load_timeline().pending_compactions]


def check_whole(path: Path, before: pa.Table) -> None:
    """Everything is compacted, the same rows are read, and nothing lies around."""
    assert not pending(path)
    assert_same_rows(read_table(open_table(path)), before)
    (path / RECORDS / "table-id").unlink(missing_ok=True)
    check_no_strays(path)


def buckets_table(path: Path, groups: int = 3) -> Path:
    """A version 9 table of so many file groups, each with logs under one pending plan."""
    rows = pa.table({"id": [str(i) for i in range(60)], "ts": [1] * 60, "fare": [1.0] * 60})
    writer(rows).table("rides").key("id").ordering("ts").buckets(groups).upsert(str(path))
    ask = writer(rows.slice(0, 30)).buckets(groups).schedule(strategy=TriggerStrategy.ALWAYS)
    assert ask.upsert(str(path)).after.scheduled is not None
    return path


def ask_for_plan(path: Path, number: int, zookeeper: ZooKeeper | None) -> None:
    """One more write, which requests a compaction and rings the fleet's doorbell."""
    rows = pa.table({"id": [str(number)], "ts": [number], "fare": [2.0]})
    hosts = zookeeper.hosts if zookeeper else None
    ask = writer(rows).buckets(3).schedule(strategy=TriggerStrategy.ALWAYS, fleet=hosts)
    assert ask.upsert(str(path)).after.scheduled is not None


@pytest.mark.parametrize("fleet", [True, False])
def test_a_daemon_compacts_all_its_tables(tmp_path: Path, zookeeper: ZooKeeper, fleet: bool) -> None:
    tables = [unzip_golden(name, tmp_path / name) for name in ("v9_two_pending", "v6_two_pending", "v8_pending")]
    before = [read_table(open_table(t)) for t in tables]
    with daemon_on(*tables, zookeeper=zookeeper if fleet else None) as daemon:
        summary = daemon.run()
    assert len(summary.done) == 5
    assert not summary.failed
    assert not summary.left
    for table, whole in zip(tables, before, strict=True):
        check_whole(table, whole)


def test_two_daemons_share_a_table_and_do_everything_once(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = unzip_golden("v9_two_pending", tmp_path)
    held = HeldUp()
    with (
        daemon_on(table, zookeeper=zookeeper, runner=held, once=False, who="one") as one,
        daemon_on(table, zookeeper=zookeeper, who="two") as two,
        at_work(one) as first,
    ):
        assert held.reached.wait(WAIT_S)
        summary = two.run()
        assert len(summary.done) == 1
        assert len(pending(table)) == 1
        held.let_go.set()
        wait_until(lambda: not pending(table), WAIT_S)
    assert [c.attempt for _, c in [*summary.done, *first[0].done]] == [1, 1]


@pytest.mark.parametrize("name", ["v9_two_pending", "v6_pending"])
def test_a_cut_off_daemon_loses_its_claim_and_publishes_nothing(
    tmp_path: Path, zookeeper: ZooKeeper, name: str
) -> None:
    """The instant is taken over; the first daemon, which comes back, finds its attempt dead."""
    table = unzip_golden(name, tmp_path)
    before = read_table(open_table(table))
    instant, held = pending(table)[0], HeldUp()
    with daemon_on(table, zookeeper=zookeeper, runner=held, once=False, who="one") as one:
        claims = one._served[str(table)].claims
        assert isinstance(claims, object)
        with at_work(one):
            assert held.reached.wait(WAIT_S)
            # A session that is lost unseen: its node goes, the daemon works on.
            client = claims.session.client  # type: ignore[attr-defined]
            client.delete(claims._path(instant))  # type: ignore[attr-defined]
            with daemon_on(table, zookeeper=zookeeper, who="two") as two:
                taken = two.run()
            assert instant in [c.instant for _, c in taken.done]
            held.let_go.set()
    storage = open_table(table).storage
    outcomes = [f.kind for n in attempts(storage, instant) if (f := read_outcome(storage, instant, n)) is not None]
    assert outcomes == [DEAD, COMMITTED]
    with daemon_on(table, zookeeper=zookeeper) as three:
        three.run()  # sweeps what the first one staged after it was retired
    check_whole(table, before)


def test_handing_over_leaves_finished_slices_to_the_next_daemon(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = buckets_table(tmp_path / "table")
    before = read_table(open_table(table))
    (instant,) = pending(table)
    held = HeldUp(free=2)
    with (
        daemon_on(table, zookeeper=zookeeper, runner=held, once=False) as one,
        at_work(one, Stop.HAND_OVER) as summaries,
    ):
        assert held.reached.wait(WAIT_S)
    assert not summaries[0].done
    assert len(done_slices(open_table(table).storage, instant, 1)) == 2
    counted = Fails(lambda _: None)
    with daemon_on(table, zookeeper=zookeeper, runner=counted) as two:
        (only,) = two.run().done
    assert only[1].attempt == 2
    assert only[1].file_groups == 3
    check_whole(table, before)


def test_an_idle_fleet_is_woken_by_a_writer(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Its poll would come in ten minutes."""
    table = buckets_table(tmp_path / "table")
    with daemon_on(table, zookeeper=zookeeper, once=False) as daemon, at_work(daemon):
        wait_until(lambda: not pending(table), WAIT_S)
        ask_for_plan(table, 1, zookeeper)
        wait_until(lambda: not pending(table), WAIT_S)


def test_plans_of_others_are_found_by_polling(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = buckets_table(tmp_path / "table")
    with daemon_on(table, zookeeper=zookeeper, once=False, poll_s=0.3) as daemon, at_work(daemon):
        wait_until(lambda: not pending(table), WAIT_S)
        ask_for_plan(table, 1, None)
        wait_until(lambda: not pending(table), WAIT_S)


def test_a_writer_does_not_wait_for_a_zookeeper_that_is_gone(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = buckets_table(tmp_path / "table")
    with daemon_on(table, zookeeper=zookeeper) as daemon:
        daemon.run()
    rows = pa.table({"id": ["1"], "ts": [9], "fare": [2.0]})
    ask = writer(rows).buckets(3).schedule(strategy=TriggerStrategy.ALWAYS, fleet="127.0.0.1:1")
    with ThreadPoolExecutor(1) as writers:
        assert writers.submit(ask.upsert, str(table)).result(WAIT_S).after.scheduled is not None


def test_the_schedule_command_wakes_the_fleet(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = buckets_table(tmp_path / "table")
    with daemon_on(table, zookeeper=zookeeper, once=False) as daemon, at_work(daemon):
        wait_until(lambda: not pending(table), WAIT_S)
        writer(pa.table({"id": ["1"], "ts": [7], "fare": [2.0]})).buckets(3).upsert(str(table))
        line = ["schedule", str(table), "--lock", f"file:{table}/.hoodie/.phantombase/table.lock"]
        done = CliRunner().invoke(app, [*line, "--zookeeper", zookeeper.hosts, "--json"])
        assert done.exit_code == 0, done.output
        wait_until(lambda: not pending(table), WAIT_S)


def test_a_daemon_that_schedules_needs_nobody_else(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = buckets_table(tmp_path / "table")
    due = ScheduleOptions(strategy=TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST, max_delta_commits=2)
    with daemon_on(table, zookeeper=zookeeper, once=False, poll_s=0.3, schedule=due) as daemon, at_work(daemon) as done:
        wait_until(lambda: not pending(table), WAIT_S)
        for number in range(2):
            rows = pa.table({"id": [str(number)], "ts": [9], "fare": [2.0]})
            writer(rows).buckets(3).upsert(str(table))
        wait_until(lambda: len(open_table(table).files.completed_commits()) == 2, WAIT_S)
    assert len(done[0].done) == 2


def test_failures_back_off_then_park_until_released(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = unzip_golden("v9_two_pending", tmp_path)
    bad, good = pending(table)
    full = Fails(lambda instant: StorageError("disk full") if instant == bad else None)
    with daemon_on(table, zookeeper=zookeeper, runner=full, once=False, poll_s=0.1) as daemon, at_work(daemon):
        wait_until(lambda: len(read_failures(open_table(table).storage, bad)) == 2, WAIT_S)
        wait_until(lambda: pending(table) == [bad], WAIT_S)
    assert full.tried.count(bad) == 2  # one retry, then parked
    assert full.tried.count(good) == 1
    with daemon_on(table, zookeeper=zookeeper) as other:
        assert other.run().left == {str(table): (bad,)}  # another daemon knows as well
    shown = CliRunner().invoke(app, ["status", str(table), "--retries", "1", "--backoff", "0.2", "--json"])
    (row,) = json.loads(shown.stdout)["pending"]
    assert row["state"] == "parked"
    assert "disk full" in row["why"]
    assert CliRunner().invoke(app, ["release", str(table), bad]).exit_code == 0
    with daemon_on(table, zookeeper=zookeeper) as other:
        assert [c.instant for _, c in other.run().done] == [bad]


def test_a_plan_of_hudi_for_a_clustering_backs_off_then_parks_until_released(tmp_path: Path) -> None:
    """It is work of any daemon that knows who writes, with or without services."""
    path = unzip("v6_0.15.0_cluster.scheduled", tmp_path)
    before = read_table(open_table(path)).drop_columns(["_hoodie_file_name"])
    (instant,) = (i.requested_time for i in open_table(path).load_timeline().pending("replacecommit"))
    with daemon_on(path, zookeeper=None) as other:
        assert other.run().done == deque()
    full = Fails(lambda _: StorageError("disk full"))
    on = partial(daemon_on, path, zookeeper=None, sole_writer=True)
    with on(runner=full, once=False, poll_s=0.1) as daemon, at_work(daemon):
        wait_until(lambda: len(read_failures(open_table(path).storage, instant)) == 2, WAIT_S)
        wait_until(lambda: not daemon._control.tables[str(path)].is_startable(0), WAIT_S)
    assert full.tried == [instant] * 2
    for services in (None, ServiceOptions.of(cluster=ClusterOptions(min_files=2))):
        with on(services=services) as other:
            assert other.run().left == {str(path): (instant,)}
    assert CliRunner().invoke(app, ["release", str(path), instant]).exit_code == 0
    with on() as other:
        ((_, done),) = other.run().done
    assert (done.instant, done.file_groups, done.resumed) == (instant, 2, False)
    assert done.rows == before.num_rows
    assert_same_rows(read_table(open_table(path)).drop_columns(["_hoodie_file_name"]), before)
    assert not open_table(path).load_timeline().pending("replacecommit")


def test_a_decided_clustering_of_a_dead_process_is_published_by_any_daemon(tmp_path: Path) -> None:
    path, dead = tmp_path / "trips", list[str]()
    rows_ = small_files(path, 9)

    def hook(call: Call) -> object:
        if dead:
            raise ProcessDied(call.path)
        done = call.do()
        if call.name == "put_if_absent" and call.path.endswith("/outcome"):
            dead.append(call.path)
            raise ProcessDied(call.path)
        return done

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    with daemon_on(path, zookeeper=None, sole_writer=True) as daemon:
        assert daemon.run().done == deque()  # its process lives, for all that is known
    forget_heartbeats(path)
    never = Fails(lambda _: LedgerError("nothing is merged again"))
    with daemon_on(path, zookeeper=None, sole_writer=True, runner=never) as daemon:
        ((_, done),) = daemon.run().done
    assert (done.resumed, never.tried, len(living(path))) == (True, [], 1)
    assert read_rows(path) == rows_


# Clusterings of a fleet: planned by phantombase, by real Hudi, or by the daemons themselves.


def requested_by_us(tmp_path: Path) -> Path:
    """Three groups of two files, none of them made: a dead process has left the plan only."""
    path = tmp_path / "trips"
    small_files(path, 9, 6)
    request(path, alive=False, options=in_pairs(path))
    shutil.rmtree(path / CLUSTERINGS)
    return path


def requested_by_hudi(tmp_path: Path) -> Path:
    """Two groups."""
    return unzip("v6_0.15.0_cluster.scheduled", tmp_path)


def in_pairs(path: Path) -> ClusterOptions:
    size = 3 * max(file.stat().st_size for file in path.glob("*/*.parquet")) // 2
    return ClusterOptions(min_files=2, target_size=size, small_size=size, wait_s=0)


PLANNED = pytest.mark.parametrize("planned_by", [requested_by_us, requested_by_hudi])
MakePath = Callable[[Path], Path]


def rows_of(path: Path) -> pa.Table:
    """But for the names of files, which change."""
    return read_table(open_table(path)).drop_columns(["_hoodie_file_name"])


def clustering_of(path: Path) -> str:
    (instant,) = (i.requested_time for i in open_table(path).load_timeline().instants if i.state is State.REQUESTED)
    return instant


def clusters(path: Path, zookeeper: ZooKeeper, who: str, **more: Any) -> AbstractContextManager[Daemon]:
    return daemon_on(path, zookeeper=zookeeper, who=who, sole_writer=True, **more)


def claims_of(daemon: Daemon, path: Path) -> ZooKeeperClaims:
    claims = daemon._served[str(path)].claims
    assert isinstance(claims, ZooKeeperClaims)
    return claims


def silence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is at work stalls: no heartbeat any more. Later ones beat."""
    put = heartbeat._put
    stalled = {thread for thread in threading.enumerate() if thread.name.startswith("heartbeat-")}

    def put_unless_stalled(*args: Any) -> None:
        if threading.current_thread() not in stalled:
            put(*args)

    monkeypatch.setattr(heartbeat, "_put", put_unless_stalled)
    forget_heartbeats(path)


def check_clustered_once(path: Path, before: pa.Table, groups: int, zookeeper: ZooKeeper) -> None:
    """After a sweep of what was staged late."""
    with clusters(path, zookeeper, "sweeper") as last:
        assert not last.run().done
    assert_same_rows(rows_of(path), before)
    assert len(living(path)) == groups
    check_nothing_left(path)
    done = [i for i in open_table(path).load_timeline().completed if i.family == "replacecommit"]
    assert len(done) == 1


def outcomes(path: Path, instant: str) -> list[str]:
    storage = open_table(path).storage
    found = (read_outcome(storage, instant, number) for number in attempts(storage, instant))
    return [one.kind for one in found if one is not None]


@PLANNED
def test_one_daemon_of_a_fleet_executes_a_clustering(
    planned_by: MakePath, tmp_path: Path, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim says so, also while its heartbeat is stale."""
    path = planned_by(tmp_path)
    before, instant, held, never = rows_of(path), clustering_of(path), HeldUp(), Fails(lambda _: None)
    with clusters(path, zookeeper, "one", runner=held, once=False) as one, at_work(one) as first:
        assert held.reached.wait(WAIT_S)
        silence(path, monkeypatch)
        with clusters(path, zookeeper, "two", runner=never) as two:
            summary = two.run()
        assert (list(summary.done), summary.left, never.tried) == ([], {str(path): (instant,)}, [])
        held.let_go.set()
        wait_until(lambda: not one._work, WAIT_S)
    ((_, done),) = first[0].done
    assert (done.instant, done.attempt, outcomes(path, instant)) == (instant, 1, [COMMITTED])
    check_clustered_once(path, before, done.file_groups, zookeeper)


@PLANNED
def test_a_clustering_whose_daemon_has_lost_its_session_is_adopted(
    planned_by: MakePath, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """It stops; the next one makes only what is missing."""
    path = planned_by(tmp_path)
    before, instant, held = rows_of(path), clustering_of(path), HeldUp(free=1)
    with clusters(path, zookeeper, "one", runner=held, once=False) as one:
        with at_work(one, Stop.HAND_OVER) as first:
            assert held.reached.wait(WAIT_S)
            assert len(done_slices(open_table(path).storage, instant, 1)) == 1
            expire(zookeeper, claims_of(one, path).session.client.client_id)
            wait_until(lambda: not one._work, WAIT_S)
        assert not first[0].done
    made: list[SliceTask] = []

    def counted(storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        made.extend(tasks)
        return LocalRunner(1)(storage, tasks, progress)

    with clusters(path, zookeeper, "two", runner=counted) as two:
        ((_, done),) = two.run().done
    assert (done.instant, len(made)) == (instant, done.file_groups - 1)
    check_clustered_once(path, before, done.file_groups, zookeeper)


@pytest.mark.parametrize("behind_the_decision", [False, True])
@PLANNED
def test_a_daemon_that_is_cut_off_from_a_clustering_publishes_nothing_late(
    planned_by: MakePath,
    behind_the_decision: bool,
    tmp_path: Path,
    zookeeper: ZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stalls while it stages, or before it publishes, and does not see that its session is gone."""
    path = planned_by(tmp_path)
    before, instant, held = rows_of(path), clustering_of(path), HeldUp(free=1)
    thread: list[int] = []

    def publish_late(*args: Any) -> None:
        if threading.get_ident() in thread:
            held.reached.set()
            assert held.let_go.wait(WAIT_S)
        publish(*args)

    def runs(storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        thread.append(threading.get_ident())
        return (LocalRunner(1) if behind_the_decision else held)(storage, tasks, progress)

    monkeypatch.setattr(f"{compact_instant.__module__}.publish", publish_late)
    with clusters(path, zookeeper, "one", runner=runs, once=False) as one:
        claims = claims_of(one, path)
        with at_work(one) as first:
            assert held.reached.wait(WAIT_S)
            silence(path, monkeypatch)
            claims.session.client.delete(claims._path(instant))
            with clusters(path, zookeeper, "two") as two:
                ((_, done),) = two.run().done
            assert (done.instant, done.resumed) == (instant, behind_the_decision)
            files = data_files(path)
            held.let_go.set()
            wait_until(lambda: not one._work, WAIT_S)
        assert not first[0].failed
    assert data_files(path) == files
    assert outcomes(path, instant) == ([COMMITTED] if behind_the_decision else [DEAD, COMMITTED])
    check_clustered_once(path, before, done.file_groups, zookeeper)


def test_a_fleet_plans_the_clusterings_of_a_table_one_at_a_time(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Another daemon leaves them alone; once the session of the first one is gone, it takes over what is made."""
    path = tmp_path / "trips"
    rows_, held = small_files(path, 9, 6), HeldUp(free=1)
    services = ServiceOptions.of(cluster=in_pairs(path))
    with clusters(path, zookeeper, "one", runner=held, services=services) as one:
        with at_work(one) as first:
            assert held.reached.wait(WAIT_S)
            with clusters(path, zookeeper, "two", services=services) as two:
                assert not two.run().services
            expire(zookeeper, claims_of(one, path).session.client.client_id)
        assert not first[0].services  # it was stopped, and has not failed
    assert len(list((path / CLUSTERINGS).glob("*/*.ok"))) == 1
    with clusters(path, zookeeper, "two", services=services) as two:
        ((_, ran),) = two.run().services
    assert (ran.failed, ran.instants, len(living(path))) == (False, 1, 3)
    assert read_rows(path) == rows_
    check_nothing_left(path)


def test_a_plan_that_is_unscheduled_under_a_daemon_is_no_failure(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table, held = buckets_table(tmp_path / "table"), HeldUp()
    (instant,) = pending(table)
    with daemon_on(table, zookeeper=zookeeper, runner=held, once=False) as daemon, at_work(daemon) as done:
        assert held.reached.wait(WAIT_S)
        unschedule(open_table(table), instant, table_lock(open_storage(str(table)), None))
        held.let_go.set()
        wait_until(lambda: not daemon._work, WAIT_S)
    assert not done[0].done
    assert not read_failures(open_table(table).storage, instant)


def test_books_that_do_not_balance_park_at_once(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    wrong = Fails(lambda _: LedgerError("the books do not balance"))
    with daemon_on(table, zookeeper=zookeeper, runner=wrong, once=False, poll_s=0.1) as daemon, at_work(daemon):
        wait_until(lambda: bool(read_failures(open_table(table).storage, pending(table)[0])), WAIT_S)
        wait_until(lambda: not daemon._control.tables[str(table)].is_startable(0), WAIT_S)
    assert len(wrong.tried) == 1
    assert pending(table) != []


def test_the_largest_instant_first(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table = unzip_golden("v9_two_pending", tmp_path)
    seen = Fails(lambda _: None)
    sizes = {
        i: sum(sum((table / o.partition_path / f).stat().st_size for f in o.delta_file_paths) for o in plan.operations)
        for i in pending(table)
        if (plan := open_table(table).compaction_plan(i))
    }
    with daemon_on(table, zookeeper=zookeeper, runner=seen, order=DaemonOrder.LARGEST) as daemon:
        daemon.run()
    assert seen.tried == sorted(sizes, key=lambda i: (-sizes[i], i))


def test_several_instants_at_a_time(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    table, held = unzip_golden("v9_two_pending", tmp_path), HeldUp()
    with (
        daemon_on(table, zookeeper=zookeeper, runner=held, once=False, max_concurrent=2) as daemon,
        at_work(daemon) as done,
    ):
        wait_until(lambda: len(daemon._work) == 2, WAIT_S)
        held.let_go.set()
        wait_until(lambda: not pending(table), WAIT_S)
    assert len(done[0].done) == 2


def test_a_table_upgraded_under_a_claim_is_compacted_by_the_next_attempt(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Nothing is published by the attempt that began before."""
    table, held = unzip_golden("v9_pending", tmp_path), HeldUp()
    opened = open_table(table)
    with daemon_on(table, zookeeper=zookeeper, runner=held, once=False, poll_s=0.1) as daemon, at_work(daemon) as done:
        assert held.reached.wait(WAIT_S)
        properties = {**opened.config.properties, "hoodie.table.version": "8"}
        save_table_config(opened.storage, type(opened.config)(properties=properties))
        held.let_go.set()
        wait_until(lambda: not pending(table), WAIT_S)
    assert done[0].done[0][1].attempt == 2


def test_an_idle_look_costs_one_listing(tmp_path: Path, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    listed: list[str] = []
    list_ = LocalStorage.list

    def counted(self: LocalStorage, folder: str) -> list[Entry]:
        listed.append(folder)
        return list_(self, folder)

    with daemon_on(table, zookeeper=zookeeper) as daemon:
        served = daemon._served[str(table)]
        served.snapshot()
        monkeypatch.setattr(LocalStorage, "list", counted)
        for _ in range(3):
            assert served.snapshot().pending == ()
    assert listed == [".hoodie/timeline"] * 3


def test_logs_say_table_instant_attempt_and_file_group(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """Each as JSON, from a daemon as users start it."""
    table = unzip_golden("v9_pending", tmp_path)
    command = [str(Path(sys.executable).with_name("compactor-daemon")), "run", str(table), "--once", "--json", "-v"]
    options = ["--executor", "local", "--zookeeper", zookeeper.hosts]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=True)
    logs = [json.loads(line) for line in done.stderr.splitlines()]
    (staging,) = [line for line in logs if line["event"] == "staging"]
    assert (staging["table"], staging["instant"], staging["attempt"]) == (str(table), staging["instant"], 1)
    slices = [line for line in logs if line["event"] == "slice_compacted"]
    assert len({line["file_group"] for line in slices}) == len(slices) == 2
    assert {(line["table"], line["attempt"]) for line in slices} == {(str(table), 1)}
    assert json.loads(done.stdout)["compacted"][0]["instant"] == staging["instant"]


def test_the_first_signal_stops_gracefully_the_second_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[Stop] = []

    def exit_(code: int) -> None:
        raise SystemExit(code)

    class Stopped:
        def stop(self, how: Stop) -> None:
            stopped.append(how)

    monkeypatch.setattr(os, "_exit", exit_)
    with _signals(Stopped(), Stop.HAND_OVER):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped == [Stop.HAND_OVER]
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGINT)
    assert ended.value.code == 128 + signal.SIGINT
    assert stopped == [Stop.HAND_OVER]


def test_a_table_that_cannot_be_served_leaves_the_others_and_is_refused_alone(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    good, bad = unzip_golden("v9_pending", tmp_path / "a"), unzip_golden("v9_with_metadata_table", tmp_path / "b")
    properties = bad / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.metadata.partitions=files,vector_index\n")
    with pytest.raises(UnsupportedError), daemon_on(bad, zookeeper=zookeeper):
        pass
    with daemon_on(good, bad, zookeeper=zookeeper) as daemon:
        summary = daemon.run()
    assert [table for table, _ in summary.done] == [str(good)]
    assert list(summary.problems) == [str(bad)]
    assert daemon.trouble is None, "it is ready: one table can be served"
    with pytest.raises(UsageError, match="twice"), daemon_on(good, good / "." / "..", good, zookeeper=zookeeper):
        pass
    assert not (bad / ".hoodie/.phantombase").exists()


def test_a_single_daemon_and_the_compact_command_take_turns(tmp_path: Path) -> None:
    table, held = unzip_golden("v9_pending", tmp_path), HeldUp()
    with daemon_on(table, zookeeper=None, runner=held, once=False) as daemon, at_work(daemon):
        assert held.reached.wait(WAIT_S)
        line = ["compact", str(table), "--executor", "local"]
        refused = CliRunner().invoke(app, line)
        assert refused.exit_code != 0
        assert "another compactor is at work" in str(refused.exception)
        held.let_go.set()
        wait_until(lambda: not pending(table), WAIT_S)
    assert CliRunner().invoke(app, line).exit_code == 0


# A daemon whose compaction waits for a pending write: no slot is held, no attempt is opened twice.


def new_table(path: Path) -> Path:
    """A table with one file slice to compact."""
    written_table(path, 9, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    return path


def planned(path: Path) -> str:
    """A compaction that pends."""
    instant = schedule(path).instant
    assert instant is not None
    return instant


def is_staged(path: Path, instant: str) -> bool:
    """Whether the first attempt has finished its file slice."""
    return bool(list((path / RECORDS / instant / "1").glob("*.ok")))


def until(holds: Callable[[], bool]) -> None:
    """Waits for it."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_done(path: Path, instant: str) -> bool:
    """Whether a compaction is completed."""
    return bool(open_table(path).files.completed_commits(instant))


def state_of(path: Path) -> str:
    """Of the pending compaction, as `status` shows it."""
    done = CliRunner().invoke(app, ["status", str(path), "--json"])
    (row,) = json.loads(done.stdout)["pending"]
    return str(row["state"])


def end(inflight: Path) -> None:
    """The write is rolled back."""
    inflight.unlink()
    inflight.with_name(inflight.name.replace("inflight", "requested")).unlink()


def test_a_pending_write_holds_up_its_own_table_only(tmp_path: Path) -> None:
    """With one slot other tables go on; when the write ends, the compaction that waited does, as the same attempt."""
    held, free = new_table(tmp_path / "held"), new_table(tmp_path / "free")
    first = planned(held)
    write = pending_write(held, 9, later(first, 1))
    storage = LocalStorage(str(held))
    with daemon_on(held, free, zookeeper=None, once=False, poll_s=0.1) as daemon, at_work(daemon):
        until(lambda: is_staged(held, first))
        second = planned(free)
        until(lambda: is_done(free, second))
        time.sleep(1.0)  # twice as long as `barrier_s`
        assert not is_done(held, first)
        assert attempts(storage, first) == (1,), "it waits in the attempt it opened"
        until(lambda: state_of(held) == "waiting")
        end(write)
        until(lambda: is_done(held, first))
        assert attempts(storage, first) == (1,)
    assert read_rows(held) == {"k0000": (2, 2.0), "k0003": (1, 1.0)}


def test_an_attempt_that_was_ended_by_others_waits_no_longer(tmp_path: Path) -> None:
    """Its plan may be gone: nobody would notice while the write pends."""
    path = new_table(tmp_path / "t")
    instant = planned(path)
    pending_write(path, 9, later(instant, 1))
    table, runner = open_table(path), LocalRunner(1)
    attempt = open_attempt(table, instant, OPTIONS)

    def check() -> None:
        if is_staged(path, instant):
            remove_staged(table.storage, instant)
            write_outcome(table.storage, instant, attempt.number, dead_record("n", "x"), "n")

    def run(tasks: list[SliceTask]) -> list[SliceDone]:
        return runner(table.storage, tasks, lambda done, total: None)

    with pytest.raises(AttemptDeadError):
        stage(table, attempt, OUTPUT, OPTIONS, run, check)
