"""The services of a table as the daemon and writers run them: what is due is done, and no row changes."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.failures import (
    CLUSTERING,
    Failure,
    RetryOptions,
    WorkNote,
    read_failures,
    record_failure,
    release_failures,
)
from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cli.main import COMMANDS, app
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder, TableState
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.budget import Budget
from phantombase.compactor_daemon.fleet.claims import TableClaims
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.services.options import Service, ServiceOptions, parse_services
from phantombase.compactor_daemon.services.serve import LastRun, ServiceDone, due, last_runs, note_runs, serve_table
from phantombase.compactor_daemon.unit_of_work import Limit
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import BarrierError, StorageError, UsageError
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.read.pins import PinOptions, hold
from phantombase.timeline.storage.folders import CLUSTERINGS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.history import WorkDone, put_work
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import TWO, data_files, living, old_table, one_row, request, small_files
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import make_old
from tests.support.golden_tables import LOCK, one_of
from tests.support.places import capture_logs
from tests.support.written_tables import check_nothing_left, read_rows

ALL_OF = ServiceOptions.of(
    metadata=MetadataOptions(),
    clean=CleanOptions(retain=1, floor_s=0),
    archive=ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1),
)


def run(path: Path, *options: str) -> Any:
    """`compactor-daemon run --once`, its exit code and JSON."""
    done = CliRunner().invoke(app, ["run", str(path), "--once", "--executor", "local", "--json", *options])
    return done.exit_code, json.loads(done.stdout) if done.exit_code in (0, 1) and done.stdout else done.output


@one_of("version", 9, 6)
def test_the_daemon_cleans_and_archives(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = old_table(path, version)
    before = data_files(path)
    small = ["--clean-retain", "1", "--clean-floor", "0", "--archive-min-instants", "3", "--archive-max-instants", "4"]
    code, data = run(path, "--services", "metadata,clean,archive", "--sole-writer", *small)
    assert code == 0
    did = {one["service"]: one for one in data["services"]}
    assert did["clean"]["files"] == len(before - data_files(path)) > 0
    assert did["archive"]["instants"] > 0
    assert "metadata" not in did  # it has none
    assert read_rows(path) == rows
    known = last_runs(open_table(path).storage)
    assert list(known) == [Service.METADATA, Service.CLEAN, Service.ARCHIVE]
    shown = " ".join(CliRunner().invoke(app, ["status", str(path)]).stdout.split())
    for service in ("clean", "archive"):
        assert re.search(rf"service: {service}, \S+ s ago: {re.escape(did[service]['what'])}", shown)
    code, data = run(path, "--services", "clean", "--sole-writer", "--clean-retain", "1", "--clean-floor", "0")
    assert (code, data["services"]) == (0, [])


@pytest.mark.parametrize("typed", [True, False])
def test_a_daemon_that_requests_nothing_keeps_the_commits_that_a_trigger_elsewhere_counts(
    typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trips"
    for number in range(6):
        writer(one_row("k0", number)).table("trips").key("id").ordering("ts").upsert(str(path))
    small = ["--services", "archive", "--sole-writer", "--archive-min-instants", "2", "--archive-max-instants", "3"]
    counted = ["--archive-compaction-commits", "50"] if typed else []
    with monkeypatch.context() as environment:
        if not typed:
            environment.setenv("PHANTOMBASE_ARCHIVE_COMPACTION_COMMITS", "50")
        code, data = run(path, *small, "--archive-commits-retained", "1", *counted)
        assert (code, data["services"]) == (0, [])
    code, data = run(path, *small, "--archive-commits-retained", "1", "--archive-compaction-commits", "1")
    assert (code, [one["service"] for one in data["services"]]) == (0, ["archive"])


def test_services_need_to_know_the_writers_and_their_options_a_service(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9, 1)
    before = sorted(p.name for p in path.rglob("*"))
    for options, text in (
        (["--services", "clean"], "--services needs to know"),
        (["--services", "clean,tidy", "--sole-writer"], "not a service"),
        (["--services", "archive", "--sole-writer", "--clean-retain", "3"], "--services clean,archive"),
        (["--clean-retain", "3"], "--services clean"),
        (["--services", "", "--sole-writer"], "not a service"),
        (["--services-interval", "60"], "--services-interval without --services has no effect"),
        (["--serve-host", "127.0.0.1", "--serve-hudi-clients", "10.0.0.0/8"], "Add --serve PORT"),
        (["--zookeeper-session", "20"], "Add --zookeeper HOSTS"),
        (["--metrics-host", "127.0.0.1"], "Add --metrics-port PORT"),
    ):
        done = CliRunner().invoke(app, ["run", str(path), "--once", *options])
        assert isinstance(done.exception, UsageError), done.output
        assert text in str(done.exception)
    assert sorted(p.name for p in path.rglob("*")) == before


def test_archiving_keeps_what_the_cleaner_and_the_trigger_count() -> None:
    options = ServiceOptions.of(archive=ArchiveOptions(), clean=CleanOptions(retain=40), counted_commits=7)
    assert (options.archiving.commits_retained, options.archiving.compaction_commits) == (40, 7)
    assert (options.archiving.min_instants, options.archiving.max_instants) == (42, 52)  # else 40 are never there
    hours = ServiceOptions.of(archive=ArchiveOptions(), clean=CleanOptions(policy=Policy.HOURS, retain=40))
    assert (hours.archiving.commits_retained, hours.archiving.compaction_commits) == (10, 5)
    assert hours.services == (Service.CLEAN, Service.ARCHIVE)
    assert parse_services("archive, clean") == {Service.CLEAN, Service.ARCHIVE}


def test_a_fleet_runs_the_services_once_an_interval() -> None:
    """A record of the future is of a clock that was off."""
    both = (Service.CLEAN, Service.ARCHIVE)
    ran = {Service.CLEAN: LastRun(at_ms=100_000, who="a", what="")}
    for now, clean_is_due in ((99_999, True), (100_000, False), (144_999, False), (145_000, True)):
        assert due(both, ran, 50, now) == both[0 if clean_is_due else 1 :]
    assert due(both, {}, 50, 0) == both
    assert due(both, ran, 0, 100_000) == both


def test_a_service_may_be_due_less_often_than_the_others() -> None:
    """It lists all files; a daemon that runs once runs it all the same."""
    hour_ms = 3_600_000
    ran = {one: LastRun(at_ms=0, who="a", what="") for one in (Service.CLEAN, Service.ORPHANS)}
    both = tuple(ran)
    assert due(both, ran, 3600, 2 * hour_ms) == (Service.CLEAN,)
    assert due(both, ran, 3600, 23 * hour_ms) == both
    assert due(both, ran, 0, 2 * hour_ms) == both


def test_each_service_is_a_command() -> None:
    assert {service.value for service in Service} <= COMMANDS.keys()


def test_each_service_runs_with_its_defaults(tmp_path: Path) -> None:
    """All that is said of a service is in its line of `Service`."""
    path = tmp_path / "trips"
    rows = old_table(path, 9)
    options = ServiceOptions.of(**{service.value: service.kind() for service in Service})
    done = serve_table(open_table(path), options, LOCK)
    assert [one.service for one in done] == list(Service)
    assert [one.service for one in done if one.failed] == [Service.SYNC]  # no catalog is named
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_the_daemon_removes_orphan_files_where_it_is_asked_to(version: int, tmp_path: Path) -> None:
    """After them archiving goes on in the same run."""
    path = tmp_path / "trips"
    old_table(path, version)
    undone = str(int(min(open_table(path).load_timeline().completed_writes)) + 1)
    left = path / "a" / f"x-0_0-7-7_{undone}.parquet"
    left.write_bytes(b"left")
    make_old({left}, 4 * 86_400)
    small = ["--clean-retain", "1", "--clean-floor", "0", "--archive-min-instants", "3", "--archive-max-instants", "4"]
    code, data = run(path, "--services", "clean,archive", "--sole-writer", *small)
    assert (code, left.exists(), {one["service"] for one in data["services"]}) == (0, True, {"clean"})
    code, data = run(path, "--services", "clean,orphans,archive", "--sole-writer", *small, "--orphans-older-than", "3d")
    assert (code, left.exists()) == (0, False)
    did = {one["service"]: one for one in data["services"]}
    assert (did["orphans"]["files"], did["orphans"]["bytes"], did["archive"]["instants"] > 0) == (1, 4, True)


def test_records_of_last_runs_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    """One entry leaves the others; the second record is of a release with one entry for all services."""
    path = tmp_path / "trips"
    old_table(path, 9, 1)
    storage = open_table(path).storage
    assert last_runs(storage) == {}
    good = {"at_ms": 7, "who": "a", "what": "nothing"}
    bad = {**good, "failed": True}
    one = {Service.CLUSTER: LastRun(**good)}  # type: ignore[arg-type]
    two = {**one, Service.CLEAN: LastRun(**bad)}  # type: ignore[arg-type]
    for record, found in (
        (b"{", {}),
        ({"at_ms": 1, "did": ["clean: 3 files"], "who": "a"}, {}),
        ({"clean": {"at_ms": "x"}, "archive": 3, "cluster": good, "later": {}}, one),
        ({"clean": bad, "cluster": good}, two),
    ):
        data = record if isinstance(record, bytes) else json.dumps(record).encode()
        storage.overwrite(".hoodie/.phantombase/services", data)
        assert last_runs(storage) == found


def test_status_says_which_service_failed(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    storage = open_table(path).storage
    done = [
        ServiceDone(service=Service.CLEAN, what="no", failed=True),
        ServiceDone(service=Service.CLUSTER, what="yes"),
    ]
    note_runs(storage, "a", done)
    shown = CliRunner().invoke(app, ["status", str(path), "--brief"]).stdout
    assert re.search(r"service failed: *clean, \S+ s ago, failing for \S+ s: no", shown)
    assert re.search(r"service: *cluster, \S+ s ago: yes", shown)
    data = json.loads(CliRunner().invoke(app, ["status", str(path), "--brief", "--json"]).stdout)
    assert {one["service"]: one["failed"] for one in data["services"]} == {"clean": True, "cluster": False}
    first = last_runs(storage)[Service.CLEAN]
    note_runs(storage, "b", done, inline=True)
    again = last_runs(storage)[Service.CLEAN]
    assert (again.who, again.since_ms) == ("b", first.at_ms)
    assert Service.CLEAN in due(tuple(Service), last_runs(storage), 1e6, again.at_ms), "no daemon waits for a writer"
    note_runs(storage, "b", [replace(done[0], failed=False)], inline=True)
    assert last_runs(storage)[Service.CLEAN].since_ms is None


def test_daemons_with_different_services_do_not_keep_each_other_from_their_turn(tmp_path: Path) -> None:
    """Each service has its own interval: that of one daemon has run, that of the other has not."""
    path = tmp_path / "trips"
    old_table(path, 9)
    small = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
    cleans = ServiceOptions.of(clean=CleanOptions(retain=1, floor_s=0))
    both = ServiceOptions.of(clean=CleanOptions(retain=1, floor_s=0), archive=small)
    ran = [
        [one.service for one in served(path, options).serve(3600, lambda: False)]
        for options in (cleans, cleans, both, both)
    ]
    assert ran == [[Service.CLEAN], [], [Service.ARCHIVE], []]
    assert list(last_runs(open_table(path).storage)) == [Service.CLEAN, Service.ARCHIVE]


def served(path: Path, services: ServiceOptions) -> TableOnStorage:
    """The table as a daemon with these services has it."""
    table = open_table(path)
    settings = DaemonSettings(
        who="a daemon",
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=DaemonOrder.EARLIEST,
        services=services,
    )
    return TableOnStorage(str(path), TableClaims(table, "a daemon"), LOCK, LocalRunner(1), settings)


def test_one_daemon_at_a_time_plans_clusterings(tmp_path: Path) -> None:
    """Another one passes over, and tries again soon. One that has lost its claim stops."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    two = served(path, ServiceOptions.of(cluster=TWO))
    other = TableClaims(open_table(path), "another").take(CLUSTERING)
    assert other is not None
    assert two.serve(3600, lambda: False) == ()
    assert not last_runs(open_table(path).storage)
    assert TableClaims(open_table(path), "a compactor").take("20200101000000000") is not None
    other.release()
    record_failure(open_table(path).storage, CLUSTERING, Failure(at_ms=0, error="e", what="w", who="me"))
    (done,) = _losing_its_claim(two).serve(3600, lambda: False)
    assert (done.failed, done.what) == (False, "the work was stopped by the loss of its claim")
    assert len(read_failures(open_table(path).storage, CLUSTERING)) == 1
    release_failures(open_table(path).storage, CLUSTERING)
    (done,) = two.serve(0, lambda: False)
    assert (done.instants, len(living(path))) == (1, 1)
    check_nothing_left(path)
    assert read_rows(path) == rows
    held = two.claims.take(CLUSTERING)
    assert held is not None  # it was released
    held.release()


def test_a_daemon_hands_its_clustering_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `--on-term hand-over`, as on Kubernetes: the next one takes over what is made."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    two = served(path, ServiceOptions.of(cluster=TWO))
    (done,) = two.serve(0, lambda: False, lambda: True)
    assert (done.failed, done.what) == (False, "the work was stopped by the end of its daemon")
    assert not last_runs(open_table(path).storage)
    assert not read_failures(open_table(path).storage, CLUSTERING)
    assert len(list((path / CLUSTERINGS).glob("*/*.ok"))) == 1
    monkeypatch.setattr(LocalRunner, "__call__", None)  # nothing is left to be made
    (done,) = two.serve(3600, lambda: False)  # at once
    assert (done.instants, read_rows(path)) == (1, rows)
    check_nothing_left(path)


def test_a_torn_plan_of_a_clustering_is_said_once(tmp_path: Path) -> None:
    """Not at each snapshot; whole again, it is pending."""
    path = tmp_path / "trips"
    small_files(path, 9)
    time, two = request(path, alive=False), served(path, ServiceOptions())
    settings = replace(two._settings, clusters=True)
    two = TableOnStorage(two.path, two.claims, LOCK, LocalRunner(1), settings)
    (plan,) = (path / ".hoodie").rglob(f"{time}.*.requested")
    whole = plan.read_bytes()
    plan.write_bytes(whole[:20])
    with capture_logs() as logs:
        assert [two.snapshot().pending for _ in range(3)] == [()] * 3
        plan.write_bytes(whole)
        assert [one.instant for one in two.snapshot().pending] == [time]
    assert [one["event"] for one in logs] == ["clusterings_unknown"]


def test_what_a_budget_is_told_of_a_pending_clustering(tmp_path: Path) -> None:
    """By its plan; by the pins of its readers; and, once, by the work of the hour before the daemon began."""
    path = tmp_path / "trips"
    small_files(path, 9)
    request(path, alive=False)
    storage = LocalStorage(str(path))
    settings = replace(served(path, ServiceOptions())._settings, clusters=True, gains=True)
    two = TableOnStorage(str(path), TableClaims(open_table(path), "a"), LOCK, LocalRunner(1), settings)
    hours = {"a": 0.5, "b": 2.0, "c": -0.1}
    for name, before in hours.items():
        ended = settings.began_ms - round(before * 3_600_000)
        work = WorkDone(
            id=name * 16, kind="compaction", outcome="done", who="", started_ms=0, ended_ms=ended, bytes_read=7
        )
        put_work(storage, replace(work, core_seconds=3.0))
    with hold(storage, PinOptions.of("x", "1h"), ""), hold(storage, PinOptions.of("y", "1h"), ""):
        seen = two.snapshot()
    (one,) = seen.pending
    assert one.gain is not None
    files = len(list(path.glob("*/*.parquet")))
    assert (one.gain.joined > 0, one.gain.joined < files, one.gain.log_files, one.gain.sorts) == (True, True, 0, False)
    assert (seen.costs.reads, seen.before) == (2.0, (3.0, 7.0))
    seen = two.snapshot()
    assert (seen.costs.reads, seen.before) == (1.0, (0.0, 0.0))
    waiting = TableState(costs=seen.costs).work("t", one, 0, 0)
    assert waiting.score(Budget.parse("1g")) > 0
    small_files(tmp_path / "calm", 9)
    put_work(LocalStorage(str(tmp_path / "calm")), replace(work, ended_ms=settings.began_ms - 1))
    calm = served(tmp_path / "calm", ServiceOptions())
    calm = TableOnStorage(calm.path, calm.claims, LOCK, LocalRunner(1), settings)
    assert [calm.snapshot().before for _ in range(3)] == [(0.0, 7.0), (0.0, 0.0), (0.0, 0.0)]
    put_work(LocalStorage(calm.path), replace(work, id="d" * 16, ended_ms=settings.began_ms - 7_200_001))
    late = replace(settings, began_ms=settings.began_ms - 7_200_000)  # its table comes from another daemon
    assert TableOnStorage(calm.path, calm.claims, LOCK, LocalRunner(1), late).snapshot().before == (0.0, 0.0)


def _losing_its_claim(two: TableOnStorage) -> TableOnStorage:
    claims = TableClaims(open_table(Path(two.path)), "a daemon")
    claims.take = lambda instant: Lost()  # type: ignore[assignment, return-value, method-assign]
    return TableOnStorage(two.path, claims, LOCK, LocalRunner(1), two._settings)


class Lost:
    """A claim that another daemon has since."""

    lost = True

    def report(self, note: WorkNote) -> None:
        """Nobody reads it."""

    def release(self) -> None:
        """Nothing is there."""


def test_clusterings_back_off_and_are_parked_by_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other services run on. Released, they are tried again; a success forgets what failed."""
    path = tmp_path / "trips"
    small_files(path, 9)
    two = served(path, ServiceOptions.of(cluster=TWO, clean=CleanOptions(retain=1, floor_s=0)))
    run_them = LocalRunner.__call__

    def full(*_: Any) -> Any:
        raise StorageError("disk full")

    with capture_logs() as logs:
        for number in range(1, 10):
            monkeypatch.setattr(LocalRunner, "__call__", full)
            assert [one.failed for one in two.serve(0, lambda: False)] == [True, False]
            failures = read_failures(open_table(path).storage, CLUSTERING)
            assert (len(failures), failures[-1].what) == (number, "disk full")
            assert [one.service for one in two.serve(0, lambda: False)] == [Service.CLEAN]  # it waits
            monkeypatch.setattr(LocalRunner, "__call__", run_them)
            monkeypatch.setattr(f"{TableOnStorage.__module__}.clock_ms", lambda at=failures[-1].at_ms: at + 3_600_001)
        assert [one.service for one in two.serve(0, lambda: False)] == [Service.CLEAN]  # it is parked
    assert two.snapshot().parked  # for the gauge
    *_, said = waits = [one for one in logs if one["event"] == "clusterings_wait"]
    assert len(waits) == 9  # once a failure
    assert (said["last"], said["todo"]) == ("disk full", f"compactor-daemon release {path} {CLUSTERING}")
    released = CliRunner().invoke(app, ["release", str(path), CLUSTERING])
    assert "9 failures removed" in released.stdout
    record_failure(open_table(path).storage, CLUSTERING, Failure(at_ms=0, error="e", what="w", who="me"))
    assert [one.instants for one in two.serve(0, lambda: False)] == [1, 0]
    assert not read_failures(open_table(path).storage, CLUSTERING)
    assert not two.snapshot().parked


def test_failures_of_clusterings_are_kept_where_none_ran(tmp_path: Path) -> None:
    """A daemon that stops has not tried again."""
    path = tmp_path / "trips"
    small_files(path, 9)
    record_failure(open_table(path).storage, CLUSTERING, Failure(at_ms=0, error="e", what="w", who="me"))
    assert served(path, ServiceOptions.of(cluster=TWO)).serve(0, lambda: True) == ()
    assert len(read_failures(open_table(path).storage, CLUSTERING)) == 1


@one_of("version", 9, 6)
def test_a_resumed_clustering_waits_no_longer_than_one_of_its_own(version: int, tmp_path: Path) -> None:
    """Daemons wait for writes without limit, but until a clustering ends, updates of its files are refused."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    table = open_table(path)
    began = table.snapshot().next_time()
    time = request(path, alive=False)
    for state in ("requested", "inflight"):
        (path / table.config.timeline_folder / f"{began}.deltacommit.{state}").write_bytes(b"")
    two = served(path, ServiceOptions.of(cluster=TWO))
    held = two.claims.take(time)
    assert held is not None
    with pytest.raises(BarrierError, match="pending write"):
        two.execute(time, held, Limit(5), lambda: nullcontext(True))
    assert not pending_clusterings(open_table(path).snapshot())
    assert read_rows(path) == rows


@pytest.mark.parametrize(
    ("error", "what"), [(StorageError("no answer"), "no answer"), (KeyError("bug"), "internal error: KeyError: 'bug'")]
)
def test_an_error_of_one_service_keeps_none_of_the_others(
    error: Exception, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)

    def failing(table: Table, options: CleanOptions, lock: TableLock, *, dry_run: bool) -> None:
        raise error

    monkeypatch.setattr("phantombase.compactor_daemon.cleaning.clean.clean_table", failing)
    done = {one.service: one for one in serve_table(open_table(path), ALL_OF, LOCK)}
    assert (done[Service.CLEAN].failed, done[Service.CLEAN].what) == (True, what)
    assert done[Service.ARCHIVE].instants > 0


def test_what_services_did_is_known_where_it_cannot_be_noted(tmp_path: Path) -> None:
    """As with a full disk, or without permission: metrics and log must say what ran, and what failed."""
    path = tmp_path / "trips"
    old_table(path, 9)
    (path / ".hoodie/.phantombase/services").mkdir(parents=True)
    (done,) = served(path, ServiceOptions.of(clean=CleanOptions(retain=1, floor_s=0))).serve(3600, lambda: False)
    assert (done.service, done.failed, done.files > 0) == (Service.CLEAN, False, True)


def test_no_service_begins_once_its_daemon_stops(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    answers = iter([False, True, True])
    (done,) = serve_table(open_table(path), ALL_OF, LOCK, stopping=lambda: next(answers))
    assert done.service is Service.METADATA


def test_a_write_that_is_complete_raises_no_error_of_its_services(tmp_path: Path) -> None:
    """Its caller would write the rows twice. Here the settings of the table cannot be read once."""
    origin, reads = tmp_path / "origin", 0
    old_table(origin, 9)
    after: dict[str, Any] = {s.value: ALL_OF.options_of(s) for s in (Service.CLEAN, Service.ARCHIVE)}
    how = Write(operation=Operation.INSERT, options=WriteOptions(slots=1, **after))
    for number in count(1):
        path, reads = shutil.copytree(origin, tmp_path / f"t{number}"), 0

        def hook(call: Call, number: int) -> Any:
            nonlocal reads
            reads += (call.name, call.path) == ("read", PROPERTIES)
            if reads == number and call.path == PROPERTIES:
                raise StorageError("no answer")
            return call.do()

        failed = False
        try:
            table = Table.on(HookedStorage(LocalStorage(str(path)), partial(hook, number=number)))
            write(table, LocalEngine(one_row("new", 300), slots=1), how)
        except StorageError:
            failed = True
        assert failed == ("new" not in read_rows(path)), number
        if reads < number:
            break
    assert number > 5


@one_of("version", 6, 9)
def test_a_writer_cleans_after_its_commits(version: int, tmp_path: Path) -> None:
    """The number of files stays bounded, also under Hudi's names."""
    path = tmp_path / "trips"
    old_table(path, version, 1)
    ours = writer(one_row("k0", 200)).key("id").compact_inline(max_delta_commits=1, gate_s=0)
    named = ours.conf({"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": "1"})
    assert named.options.clean == CleanOptions(policy=Policy.VERSIONS, retain=1)
    own = ours.clean(policy="versions", retain=1, floor_s=0)
    counts, cleaned = [], 0
    for one in (own, named.option(clean=own.options.clean)) * 4:
        cleaned += one.upsert(str(path)).after.cleaned
        counts.append(len(data_files(path)))
    assert cleaned > 0
    assert max(counts[2:]) == counts[2]
    assert read_rows(path)["k0"] == (200, 200.0)


@one_of("version", 9, 6)
@pytest.mark.parametrize("how", ["ours", "Hudi's names"])
def test_a_writer_clusters_after_its_commits(version: int, how: str, tmp_path: Path) -> None:
    """Appended files are joined whenever enough commits have completed since; no row changes."""
    path, clustered = tmp_path / "trips", []
    for number in range(9):
        one = writer(one_row(f"k{number}", number)).table("trips", version=version).key("id").partition("day")
        one = one.ordering("ts").option(small_file_bytes=0)
        if how == "ours":
            one = one.cluster(after_commits=3, min_files=2)
        else:
            one = one.conf({"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "3"})
        done = one.upsert(str(path)).after
        assert done.error is None
        clustered.append(done.clustered)
    assert clustered == [0, 0, 1] * 3
    assert len(living(path)) == 1
    assert read_rows(path) == {f"k{number}": (number, float(number)) for number in range(9)}


def test_hudis_names_of_clustering() -> None:
    rows = writer(one_row("k0", 1))
    assert rows.conf({"hoodie.clustering.inline": "false"}).options.cluster is None
    plan = "hoodie.clustering.plan.strategy."
    named = rows.conf(
        {"hoodie.datasource.clustering.inline.enable": True, f"{plan}sort.columns": "ts", f"{plan}max.num.groups": 3}
    )
    assert named.options.cluster == ClusterOptions(
        grouping=Grouping.SIZE, target_size=1 << 30, small_size=300 << 20, after_commits=4, wait_s=0.0,
        sort_by=("ts",), max_groups=3,
    )  # fmt: skip
    assert rows.cluster(min_files=3).options.cluster == ClusterOptions(min_files=3, after_commits=4, wait_s=0.0)
    assert rows.conf({f"{plan}max.num.groups": 3}).options.cluster is None
    with pytest.raises(UsageError, match="small-size must not be above target-size"):
        rows.conf({"hoodie.clustering.inline": True, f"{plan}target.file.max.bytes": 1 << 20})


def test_hudis_names_of_cleaning() -> None:
    rows = writer(one_row("k0", 1))
    assert rows.options.clean is None
    named = {
        "hoodie.clean.automatic": "true",
        "hoodie.cleaner.policy": "KEEP_LATEST_BY_HOURS",
        "hoodie.clean.hours.retained": "72",
        "hoodie.cleaner.commits.retained": "5",
    }
    assert rows.conf(named).options.clean == CleanOptions(policy=Policy.HOURS, retain=72)
    assert rows.conf({"hoodie.cleaner.commits.retained": "5"}).options.clean == CleanOptions(retain=5)
    assert rows.clean(retain=9).conf({"hoodie.clean.automatic": "true"}).options.clean == CleanOptions(retain=9)
    by_hours = {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS"}
    with pytest.raises(UsageError, match=r"contradict each other.*clean\.retain=9"):
        rows.clean(retain=9).conf(by_hours)
    assert rows.conf(by_hours).options.clean == CleanOptions(policy=Policy.HOURS)
    with pytest.raises(UsageError, match=r"contradict each other.*clean=on"):
        rows.clean().conf({"hoodie.clean.automatic": "false"})
    assert rows.conf({"hoodie.clean.automatic": "false"}).options == WriteOptions()
    assert rows.conf({"hoodie.clean.failed.writes.policy": "LAZY"}).options.lazy_rollback is True
    with pytest.raises(UsageError, match=r"not a value of hoodie\.clean\.policy"):
        rows.conf({"hoodie.clean.policy": "KEEP_ALL"})
    with pytest.raises(UsageError, match="commits, hours or versions"):
        rows.clean(policy="days")
