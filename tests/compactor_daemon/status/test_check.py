"""What `check` finds on sick tables, each with a way out, and that it finds nothing on well ones."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import schedule, writer
from phantombase.compactor_daemon.attempt.failures import CLUSTERING, Failure, RetryOptions, record_failure
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.http_service import Reports
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.fleet.catalog import FolderListing
from phantombase.compactor_daemon.fleet.pools import Pool, Pools
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.services.maintain import pause_table, resume_table
from phantombase.compactor_daemon.services.options import Service, ServiceOptions
from phantombase.compactor_daemon.services.serve import PATH as SERVICES_RECORD
from phantombase.compactor_daemon.services.serve import ServiceDone, note_runs
from phantombase.compactor_daemon.status import check
from phantombase.compactor_daemon.status.catalog import StoredInfo, check_tables
from phantombase.compactor_daemon.status.check import CheckMeans, check_table, of_status, unfinished_of
from phantombase.compactor_daemon.status.pending import PendingCompaction, Work
from phantombase.compactor_daemon.status.snapshot import ServiceRun
from phantombase.compactor_daemon.status.status import InProgress, PendingWrite, TableStatus
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard import overview
from phantombase.timeline.dashboard.compactions import table_debt
from phantombase.timeline.dashboard.look import look
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.dashboard.verdict import (
    CheckOptions,
    DuePlan,
    Freshness,
    Health,
    Severity,
    TableFacts,
    TablePause,
    TableVerdict,
    care_of,
    is_silenced,
)
from phantombase.timeline.errors import (
    MalformedError,
    MissingFileError,
    NotATableError,
    StorageError,
    TableChangedError,
    UsageError,
)
from phantombase.timeline.format.instant import format_time
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks import pause
from phantombase.timeline.locks.pause import held_by
from phantombase.timeline.locks.table_lock import POLICIES
from phantombase.timeline.metadata_table import column_range
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.pins import PINS
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupDebt
from tests.support.archived_tables import cluster, unzip
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.selection import deep
from tests.support.service_client import ServiceClient

STATUS = TableStatus(
    table="t",
    claims="not asked",
    claims_problem=None,
    slo_s=60.0,
    overdue=0,
    pending=(),
    clusterings=(),
    writes=(),
    in_progress=(),
    services=(),
    recent=(),
    last_success=None,
)
DEBT = table_debt(
    1,
    [
        GroupDebt(
            partition="p",
            file_id="f",
            base_instant="1",
            base_bytes=9,
            log_files=3,
            log_bytes=9,
            pending_compaction=None,
        )
    ],
)
WELL = TableFacts(kind="MERGE_ON_READ", has_logs=True, completed=40, debt=DEBT, deepest=("p", "f"), slices=4)
LATE = PendingCompaction(action="compaction", instant="7", age_s=99.0, overdue=True, state="waiting")
WRITE = PendingWrite(
    instant="8", state="inflight", age_s=99.0, alive=True, heartbeat_s=1.0, host="h", pid=1, holds=("7",)
)
RUN = ServiceRun(service=Service.CLEAN, ago_s=5.0, by="d", what="no space", failed=True, failing_s=9.0)
BEHIND = Freshness(lag_s=601.0, goal_s=600.0, why="too few slots")
DUE = DuePlan(why="6 of 5", for_s=60.0, times=1.2)


def status(**fields: object) -> TableStatus:
    return replace(STATUS, **fields)  # type: ignore[arg-type]


def facts(**fields: object) -> TableFacts:
    return replace(WELL, **fields)  # type: ignore[arg-type]


SICK: dict[str, tuple[TableFacts | TableStatus, TableFacts | TableStatus]] = {
    "files": (facts(flaws={("p", "f"): MissingFileError("lost")}), WELL),
    "cannot-be-merged": (facts(unmergeable={("p", "f"): MalformedError("damaged", todo="Restore it.")}), WELL),
    "pending-unknown": (
        status(pending=(replace(LATE, problem=MalformedError("torn")),)),
        status(pending=(replace(LATE, age_s=59.0),)),
    ),
    "parked": (
        status(clusterings=(replace(LATE, state="parked", age_s=None),)),
        status(clusterings=(replace(LATE, state="backing off", age_s=None),)),
    ),
    "no-process": (status(pending=(LATE,)), status(pending=(replace(LATE, work=Work(source="heartbeat")),))),
    "dead-writer": (status(writes=(replace(WRITE, alive=False),)), status(writes=(WRITE, replace(WRITE, alive=None)))),
    "left-off": (
        status(in_progress=(InProgress(instant="5", action="clean", age_s=61.0, todo="clean TABLE"),)),
        status(in_progress=(InProgress(instant="5", action="clean", age_s=59.0, todo="clean TABLE"),)),
    ),
    "service-failed": (status(services=(RUN,)), status(services=(replace(RUN, failed=False),))),
    "not-scheduled": (facts(due=DUE), facts(due=replace(DUE, for_s=59.0))),
    "behind-goal": (facts(freshness=BEHIND, due=DUE), facts(freshness=replace(BEHIND, lag_s=600.0))),
    "log-depth": (facts(debt=replace(DEBT, log_files_max=9)), facts(debt=replace(DEBT, log_files_max=8))),
    "small-files": (facts(small={"p": 20}), facts(small={"p": 19, "q": 19})),
    "not-cleaned": (facts(slices=5), facts(slices=4)),
    "not-archived": (facts(completed=50), facts(completed=49)),
    "metadata-table-grows": (facts(metadata_commits=100), facts(metadata_commits=99)),
    "metadata-files": (facts(metadata_problem=MissingFileError("lost")), WELL),
}


def test_each_sickness() -> None:
    """It is found with a way out that names the table, and its well twin has no finding. A backlog that is due many
    times over needs care at once; a COPY_ON_WRITE table needs none."""
    options = CheckOptions(patience_s=60, log_files=9, instants=50, file_slices=5, small_files=20)

    def verdict(seen: TableFacts | TableStatus) -> TableVerdict:
        if isinstance(seen, TableStatus):
            known = [*care_of(facts(pending=tuple(unfinished_of(seen))), options), *of_status(seen)]
        else:
            known = [*care_of(seen, options)]
        return TableVerdict.of(known, "/lake/t")

    for name, (sick, well) in SICK.items():
        (found,) = verdict(sick).findings
        assert (found.name, bool(found.found), "TABLE" in found.todo) == (name, True, False)
        assert "/lake/t" in found.todo or name == "dead-writer"
        assert verdict(well) == TableVerdict(health=Health.WELL, reason="nothing needs care"), name
    assert [f.name for f in verdict(facts(due=replace(DUE, for_s=1.0, times=4.0))).findings] == ["not-scheduled"]
    kept = Freshness(lag_s=60.0, goal_s=600.0)  # what no plan took in is in base files, but for a write of a minute ago
    assert verdict(facts(due=replace(DUE, times=6.0), freshness=kept)).health is Health.WELL
    asleep = TablePause(what="paused by ann: moves", since_s=70.0, ends_s=9.0)
    paused = verdict(facts(due=DUE, paused=(asleep,)))
    assert (paused.health, paused.reason) == (Health.WELL, "paused by ann: moves (since 1 min 10 s)")
    assert verdict(facts(due=DUE, paused=(replace(asleep, ends_s=None),))).health is Health.CARE
    assert verdict(facts(freshness=BEHIND, paused=(asleep,))).health is Health.WELL
    cow = verdict(facts(has_logs=False, kind="COPY_ON_WRITE", completed=999, due=DUE, slices=999))
    assert (cow.health, cow.reason[:14], len(cow.findings)) == (Health.WELL, "read only here", 1)


@pytest.mark.parametrize(
    "name", [n if n in {"v6_plain", "v9_plain", "v6_complex_key", "v9_pending"} else deep(n) for n in GOLDEN]
)
def test_golden_tables(name: str, tmp_path: Path) -> None:
    """Those with a pending plan of long ago need care; the others are well. None is broken, or changed."""
    path = unzip_golden(name, tmp_path)
    before = sorted(path.rglob("*"))
    found = check_table(name, str(path))
    assert {f.name for f in found.verdict.findings if f.severity is not Severity.INFO} <= {"no-process"}
    assert found.verdict.health is (Health.WELL if name.endswith(("_plain", "_virtual_keys")) else Health.CARE)
    assert sorted(path.rglob("*")) == before


def test_a_missed_goal_of_freshness(tmp_path: Path) -> None:
    """By the goal of the command, the pool or the table, in `check` and on the daemon's pages."""
    path = unzip_golden("v9_pending", tmp_path)
    goal = ScheduleOptions(freshness_s=600.0)

    def behind(means: CheckMeans, pools: Pools) -> list[str]:
        (row,) = check_tables({"rides": str(path)}, CheckOptions(), means, pools)
        return [one.found for one in row.verdict.findings if one.name == "behind-goal"]

    assert behind(CheckMeans(), Pools()) == []
    (found,) = behind(CheckMeans(trigger=goal), Pools())
    assert re.search(r"old, the goal is 10 min: no process works on compaction \d+: there is no daemon", found)
    assert len(behind(CheckMeans(), Pools(others=Pool(schedule=goal)))) == 1
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[pool]]\nmatch = '*'\nweight = 2\n")
    for more in ((), ("--config", str(fleet))):  # the pool says nothing of it
        said = CliRunner().invoke(app, ["check", str(path), "--freshness", "10m", *more])
        assert (said.exit_code, "the goal of freshness is missed" in " ".join(said.stdout.split())) == (1, True)
    settings = DaemonSettings(
        who="d", output=OutputOptions(), attempt=AttemptOptions(), retry=RetryOptions(), order=DaemonOrder.EARLIEST
    )
    report = Reports(settings).report(str(path), Table.open(str(path)).load_timeline(), Pool(schedule=goal))
    assert "behind-goal" in {one["name"] for one in report["findings"]}
    _keeps(path, "phantombase.freshness=10m\n")
    assert len(behind(CheckMeans(), Pools())) == 1


def test_a_goal_that_a_clustering_holds(tmp_path: Path) -> None:
    """What is said ends it: no plan can be requested before, with a goal or without."""
    path = unzip("v6_0.15.0_cluster.scheduled", tmp_path)
    for goal_s in (600.0, None):
        trigger = ScheduleOptions(freshness_s=goal_s, max_delta_commits=1)
        found = {
            one.name: one for one in check_table("t", str(path), means=CheckMeans(trigger=trigger)).verdict.findings
        }
        assert "not-scheduled" not in found
        if goal_s is not None:
            assert found["behind-goal"].found.endswith(": in a pending clustering")
            assert f"cluster {path} --lock LOCK" in found["behind-goal"].todo
    cluster(path)
    assert all(instant.completed for instant in Table.open(path).load_timeline().instants)


@pytest.mark.parametrize("name", ["v9_plain", deep("v6_plain")])
def test_a_savepoint_that_was_not_made(name: str, tmp_path: Path) -> None:
    """Its age is that of its file: it has the time of an old write. Both ways out end it."""
    path = unzip_golden(name, tmp_path)
    table = Table.open(path)
    write = table.load_timeline().completed[-1].requested_time

    def found() -> list[str]:
        return [f.name for f in check_table("t", str(path)).verdict.findings if f.name.startswith("savepoint")]

    for way_out in (["create", str(path), "--instant", write], ["delete", str(path), write]):
        file = path / table.config.timeline_folder / f"{write}.savepoint.inflight"
        file.touch()
        assert found() == []
        os.utime(file, (1, 1))
        assert found() == ["savepoint-left-off"]
        done = CliRunner().invoke(app, ["savepoint", *way_out, "--sole-writer"])
        assert (done.exit_code, found()) == (0, [])
        if way_out[0] == "create":
            (made,) = (path / table.config.timeline_folder).glob(f"{write}*.savepoint")
            kept = made.read_bytes()
            made.write_bytes(kept[:40])
            assert found() == ["savepoint-unreadable"]
            made.unlink()
            file.unlink()


def test_a_writer_lives_by_the_moment_of_its_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by that at which all files of the table were looked into."""
    table = Table.open(unzip_golden("v9_plain", tmp_path))
    pending = table.snapshot().next_time()
    for path in (f"{table.config.timeline_folder}/{pending}.deltacommit.requested", f".hoodie/.heartbeat/{pending}"):
        assert table.storage.put_if_absent(path, b"")
    late = round(time.time() * 1000) + 300_000

    def slow(*asked: Any) -> Any:
        monkeypatch.setattr(overview, "clock_ms", lambda: late)
        return look(*asked)

    monkeypatch.setattr(check, "look", slow)
    found = check.examine(table).status
    assert found is not None
    assert [one.alive for one in found.writes] == [True]


def test_a_table_that_is_known_to_be_bad_is_silenced_until_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown, by who and why, and left out of exit codes; a pause of the work alone silences nothing."""
    path = unzip_golden("v9_pending", tmp_path)
    for log in path.rglob("*.log.*"):
        log.write_bytes(b"x" * log.stat().st_size)
    storage = Table.open(str(path), reading=True).storage
    pause_table(storage, "an audit")
    bad = check_table("rides", str(path)).verdict
    assert bad.health is Health.BROKEN
    with pytest.raises(UsageError, match="needs an end"):
        pause_table(storage, "known", services=("alerts",))
    end = datetime.now(UTC) + timedelta(days=2)
    pause_table(storage, "the disk is replaced", until=end, services=("alerts",))
    silent = check_table("rides", str(path)).verdict
    assert (silent.health, silent.reason[:12]) == (Health.WELL, "silenced by ")
    assert "the disk is replaced; " in silent.reason
    assert bad.reason in silent.reason
    assert {one.name for one in silent.findings} == {one.name for one in bad.findings} | {"silenced"}
    assert held_by(storage, "clean") is not None  # by the audit
    said = CliRunner().invoke(app, ["check", str(path)])
    assert (said.exit_code, "1 table: 1 silenced" in said.stdout, "an audit" in said.stdout) == (0, True, True)
    service = ServiceClient.of(path)
    assert f'phantombase_silenced{{table="{path}"}} 1.0' in service.ask("/metrics").text
    assert ("● silenced" in service.ask("/").text, "1 silenced" in service.ask("/").text) == (True, True)
    monkeypatch.setattr(pause, "clock_ms", lambda: round(end.timestamp() * 1000))
    assert check_table("rides", str(path)).verdict.health is Health.BROKEN
    (path / ".hoodie" / "hoodie.properties").write_text("hoodie.table.version=99")
    assert check_table("rides", str(path)).verdict.health is Health.BROKEN
    monkeypatch.undo()
    assert is_silenced(as_json(check_table("rides", str(path))))
    assert ServiceClient.of(path).ask("/api/tables").json()["tables"][0]["health"] == "well"


def test_a_metadata_table_that_hudi_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the files of the last write, or cannot be read. A table that changes all the time is not broken."""
    path, kept = tmp_path / "t", tmp_path / "kept"
    metadata = path / ".hoodie/metadata"
    for ts in (1, 2):
        rows = pa.table({"id": ["a"], "ts": [ts]})
        writer(rows).table("t").key("id").ordering("ts").conf({"hoodie.metadata.enable": "true"}).upsert(str(path))
        assert check_table("t", str(path)).verdict.health is Health.WELL
        if ts == 1:
            shutil.copytree(metadata, kept)
    shutil.rmtree(metadata)
    shutil.copytree(kept, metadata)
    (less,) = check_table("t", str(path)).verdict.findings
    for log in (metadata / "files").glob(".*.log.*"):
        log.write_bytes(b"x")
    (unreadable,) = check_table("t", str(path)).verdict.findings
    assert [one.name for one in (less, unreadable)] == ["metadata-files"] * 2
    assert "1 difference" in less.found
    pages = ServiceClient.of(path)
    assert [pages.ask(f"/api/tables{name}").json().get("health") for name in ("/t",)] == ["broken"]
    assert pages.ask("/api/tables").json()["tables"][0]["health"] == "broken"  # as the table's own page has found
    todo = less.todo.partition("off: `compactor-daemon ")[2].partition("`")[0]
    assert CliRunner().invoke(app, todo.split()).exit_code == 0
    assert check_table("t", str(path)).verdict.findings == ()

    def busy(*_: object) -> None:
        raise TableChangedError("the table changed at every try")

    monkeypatch.setattr(check, "examine", busy)
    assert check_table("t", str(path)).verdict.health is Health.CARE


def test_column_statistics_that_leave_out_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hudi writes them: its queries skip the files. One with zeros alone has the same bounds, and is well."""
    path = str(tmp_path / "t")
    for part, values in {"a": [1.0, math.nan], "b": [0.0, -0.0], "c": [math.nan, None]}.items():
        rows = pa.table({"id": [f"{part}1", f"{part}2"], "ts": [1, 1], "part": [part] * 2, "x": values})
        writer(rows).table("t").key("id").ordering("ts").partition("part").bulk_insert(path)
    monkeypatch.setattr(column_range, "_float_ends", lambda _: (0.0, 0.0))
    made = ["--create", "--indexes", "files,column_stats,partition_stats", "--sole-writer"]
    assert CliRunner().invoke(app, ["metadata", path, *made]).exit_code == 0
    monkeypatch.undo()
    (found,) = check_table("t", path).verdict.findings
    assert (found.name, found.found.partition(",")[0]) == ("float-bounds", "2 files")
    words = found.todo.partition("`compactor-daemon ")[2].partition(" --lock LOCK`")[0].split()
    assert CliRunner().invoke(app, [*words, "--sole-writer"]).exit_code == 0
    assert check_table("t", path).verdict.findings == ()


def test_a_catalog_that_nobody_syncs_any_more(tmp_path: Path) -> None:
    """Not where each writer syncs, or the sync is paused. A command that succeeds ends what daemons failed at."""
    path = unzip_golden("v9_plain", tmp_path)
    storage = Table.open(str(path)).storage
    run = {"at_ms": 1, "who": "me", "what": "done"}
    storage.overwrite(SERVICES_RECORD, json.dumps({"sync": run}).encode())
    (found,) = check_table("t", str(path)).verdict.findings
    assert (found.name, found.severity, "by me" in found.found) == ("catalog-behind", Severity.WARNING, True)
    pause_table(storage, "another catalog comes", services=("sync",))
    assert check_table("t", str(path)).verdict.health is Health.WELL
    resume_table(storage)
    note_runs(storage, "a writer", [ServiceDone(service=Service.SYNC, what="done")], inline=True)
    assert check_table("t", str(path)).verdict.findings == ()
    storage.overwrite(SERVICES_RECORD, json.dumps({"clean": run | {"failed": True}}).encode())
    (failed,) = check_table("t", str(path)).verdict.findings
    command = failed.todo.partition("`compactor-daemon ")[2].partition(" --lock LOCK`")[0].split()
    assert (failed.name, CliRunner().invoke(app, [*command, "--sole-writer"]).exit_code) == ("service-failed", 0)
    assert check_table("t", str(path)).verdict.findings == ()


def test_the_status_of_a_table_that_cannot_be_read_is_its_verdict(tmp_path: Path) -> None:
    """A path without a table is an error of the command."""
    path = unzip_golden("v9_plain", tmp_path)
    _no_settings(path)
    shown = CliRunner().invoke(app, ["status", str(path), "--json"])
    said = json.loads(shown.stdout)
    assert (shown.exit_code, said["health"], said["findings"][0]["name"]) == (1, "broken", "unreadable")
    assert "broken" in CliRunner().invoke(app, ["status", str(path)]).stdout
    assert isinstance(CliRunner().invoke(app, ["status", str(tmp_path)]).exception, NotATableError)


def test_the_way_out_of_a_torn_delta_commit_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _write(path, 2)
    _torn_commit(path)
    (found,) = check_table("t", str(path)).verdict.findings
    words = found.todo.partition("`compactor-daemon ")[2].partition(" --lock LOCK`")[0].split()
    assert CliRunner().invoke(app, [*words, "--sole-writer"]).exit_code == 0
    assert check_table("t", str(path)).verdict.findings == ()


# A lake with a table for each sickness. Each function makes a well table of two writes sick.


def _write(path: Path, number: int) -> None:
    for ts in range(number):
        rows = pa.table({"id": ["a", "b"], "ts": [ts, ts]})
        writer(rows).table(path.name).key("id").ordering("ts").upsert(str(path))


def _well(path: Path) -> None:
    pass


def _damaged_log(path: Path) -> None:
    log = next(path.rglob(".*.log.*"))
    log.write_bytes(b"x" * log.stat().st_size)


def _other_log(path: Path) -> None:
    next(path.rglob(".*.log.*")).write_bytes(b"x" * 100)


def _lost_base(path: Path) -> None:
    next(path.rglob("*.parquet")).unlink()


def _no_settings(path: Path) -> None:
    (path / ".hoodie" / "hoodie.properties").write_bytes(b"hoodie.table.version=99")


def _copy_on_write(path: Path) -> None:
    properties = path / ".hoodie" / "hoodie.properties"
    properties.write_bytes(properties.read_bytes().replace(b"MERGE_ON_READ", b"COPY_ON_WRITE"))


def _not_compacted(path: Path) -> None:
    _write(path, 38)


def _keeps(path: Path, text: str) -> None:
    (path / POLICIES).parent.mkdir(parents=True, exist_ok=True)
    (path / POLICIES).write_text(text)


def _policies(path: Path) -> None:
    _keeps(path, "phantombase.max-plans=none\n")


def _kept(path: Path) -> None:
    """By the defaults, a compaction is due many times over."""
    _write(path, 28)
    _keeps(path, "phantombase.max-delta-commits=100\nphantombase.foreign-grace=60\n")


def _fresh(path: Path) -> None:
    _write(path, 28)
    _keeps(path, "phantombase.freshness=1h\n")


def _behind(path: Path) -> None:
    _keeps(path, "phantombase.freshness=1s\n")


def _parked(path: Path) -> None:
    instant = str(schedule(str(path), sole_writer=True).instant)
    storage = Table.open(str(path)).storage
    for number in range(9):
        failure = Failure(at_ms=number, error="StorageError", what="no space", who="me")
        record_failure(storage, instant, failure)


def _torn_plan(path: Path) -> None:
    instant = schedule(str(path), sole_writer=True).instant
    plan = path / f".hoodie/timeline/{instant}.compaction.requested"
    plan.write_bytes(b"Obj")
    os.utime(plan, (1, 1))


def _blocked_cleaner(path: Path) -> None:
    (path / ".hoodie/timeline/20260101000000000.clean.requested").touch()


def _sync_fails(path: Path) -> None:
    done = ServiceDone(service=Service.SYNC, what="no answer", failed=True)
    note_runs(Table.open(str(path)).storage, "me", [done])


def _torn_services(path: Path) -> None:
    (path / SERVICES_RECORD).parent.mkdir(parents=True, exist_ok=True)
    (path / SERVICES_RECORD).write_bytes(b"{")


def _indexing(path: Path) -> None:
    (path / ".hoodie/timeline/20260101000000000.indexing.requested").touch()


def _torn_commit(path: Path) -> None:
    max((path / ".hoodie/timeline").glob("*.deltacommit")).write_bytes(b"Obj")


def _torn_older_commit(path: Path) -> None:
    """Nothing fails but archiving, for ever."""
    min((path / ".hoodie/timeline").glob("*.deltacommit")).write_bytes(b"Obj")


def _torn_clean(path: Path) -> None:
    write = max((path / ".hoodie/timeline").glob("*.deltacommit"))
    time, end = (str(int(one) + 1) for one in write.stem.split("_"))
    for name in (f"{time}.clean.requested", f"{time}.clean.inflight", f"{time}_{end}.clean"):
        write.with_name(name).write_bytes(b"Obj")


def _dead_writer(path: Path) -> None:
    begun = format_time(Table.open(str(path)).now())
    (path / f".hoodie/timeline/{begun}.deltacommit.requested").touch()
    beat = path / ".hoodie/.heartbeat" / begun
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    os.utime(beat, (time.time() - 500,) * 2)


def _future(path: Path) -> None:
    newest = max((path / ".hoodie/timeline").glob("*.deltacommit"))
    shutil.copy(newest, newest.with_name("20990101000000000_20990101000000001.deltacommit"))


def _stray(path: Path) -> None:
    first = min((path / ".hoodie/timeline").glob("*.deltacommit")).name[:17]
    file = path / f"11111111-1111-1111-1111-111111111111-0_0-1-1_{int(first) + 1}.parquet"
    file.write_bytes(b"PAR1")
    os.utime(file, (1, 1))


def _small_files(path: Path) -> None:
    for ts in range(3):
        writer(pa.table({"id": [f"new {ts}"], "ts": [ts]})).bulk_insert(str(path))


def _parked_clusterings(path: Path) -> None:
    for number in range(9):
        failure = Failure(at_ms=number, error="StorageError", what="no space", who="me")
        record_failure(Table.open(str(path)).storage, CLUSTERING, failure)


def _torn_pin(path: Path) -> None:
    (path / PINS / "copy").mkdir(parents=True)
    (path / PINS / "copy/x.json").write_bytes(b"{")


def _torn_savepoint(path: Path) -> None:
    write = min((path / ".hoodie/timeline").glob("*.deltacommit"))
    for state in ("savepoint.inflight", "savepoint"):
        name = write.name.replace("deltacommit", state)
        write.with_name(name if state == "savepoint" else f"{name[:17]}.{state}").write_bytes(b"Obj")


def _torn_archive(path: Path) -> None:
    history = path / ".hoodie/timeline/history"
    history.mkdir(exist_ok=True)
    (history / "_version_").write_text("1")
    (history / "manifest_1").write_text('{"files": [{"fileName": "1_2_0.parquet", "fileLen": 9}]}')


def _completed_twice(path: Path) -> None:
    write = max((path / ".hoodie/timeline").glob("*.deltacommit"))
    shutil.copy2(write, write.with_name(f"{write.name[:34]}{(int(write.name[34]) + 1) % 10}.deltacommit"))


def _unmarked(path: Path) -> None:
    shutil.rmtree(path)
    rows = pa.table({"id": ["a"], "ts": [1], "p": ["n"]})
    writer(rows).table("t").key("id").ordering("ts").partition("p").upsert(str(path))
    (path / "n/.hoodie_partition_metadata").unlink()


LAKE: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "behind": (_behind, {"behind-goal"}),
    "damaged-log": (_damaged_log, {"cannot-be-merged"}),
    "other-log": (_other_log, {"files"}),
    "lost-base": (_lost_base, {"files"}),
    "no-settings": (_no_settings, {"unreadable"}),
    "torn-plan": (_torn_plan, {"unreadable", "pending-unknown"}),
    "future": (_future, {"future-instant", "cannot-be-merged"}),
    "not-compacted": (_not_compacted, {"not-scheduled", "not-archived", "log-depth"}),
    "policies": (_policies, {"policies"}),
    "kept": (_kept, set()),
    "fresh": (_fresh, set()),
    "parked": (_parked, {"parked"}),
    "blocked-cleaner": (_blocked_cleaner, {"left-off"}),
    "sync-fails": (_sync_fails, {"service-failed"}),
    "torn-services": (_torn_services, {"services-unreadable"}),
    "indexing": (_indexing, {"left-off"}),
    "torn-older-commit": (_torn_older_commit, {"commit-unreadable"}),
    "torn-clean": (_torn_clean, {"clean-unreadable"}),
    "torn-commit": (_torn_commit, {"cannot-be-merged"}),
    "dead-writer": (_dead_writer, {"dead-writer"}),
    "stray": (_stray, {"stray-files"}),
    "small-files": (_small_files, {"small-files"}),
    "parked-clusterings": (_parked_clusterings, {"parked"}),
    "torn-pin": (_torn_pin, {"pin-unreadable"}),
    "torn-savepoint": (_torn_savepoint, {"savepoint-unreadable"}),
    "torn-archive": (_torn_archive, {"archive-unreadable"}),
    "completed-twice": (_completed_twice, {"completed-twice"}),
    "unmarked": (_unmarked, {"partition-metadata"}),
    "well": (_well, set()),
    "dim": (_copy_on_write, {"not-compacted"}),
}
"""What makes a table sick, and what is found."""
CHECK_ALONE = {"stray", "small-files", "unmarked"}
SERVICES = ServiceOptions.of(clean=CleanOptions())
"""Found by `check` only: it searches all files, and is given a smaller limit here."""


def _knows_the_writers(command: str) -> None:
    """No command of a finding stops at the question who else writes. Some then name an INSTANT, which is none."""
    done = CliRunner().invoke(app, command.replace("--lock LOCK", "--sole-writer").split())
    said = f"{done.output} {done.exception}"
    assert "needs to know which other processes write" not in said, command
    assert "Missing argument" not in said, command


def test_a_lake_with_a_table_for_each_sickness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` finds it, gives a way out, and the exit code of the worst. `status`, the pages and the metrics of a
    daemon have the same verdict. A root whose tables cannot be listed is broken, too."""
    none = CliRunner().invoke(app, ["check", "--root", str(tmp_path)])
    assert (none.exit_code, none.stdout.splitlines()[-1]) == (0, "0 tables")
    for name, (sicken, _) in LAKE.items():
        _write(tmp_path / name, 1 if sicken is _copy_on_write else 2)
        sicken(tmp_path / name)
    root = ["--root", str(tmp_path), "--json"]
    least = ["--instants", "40", "--log-files", "39", "--small-files", "3"]
    shown = CliRunner().invoke(app, ["check", *root, *least])
    rows = {row["name"]: row for row in json.loads(shown.stdout)["tables"]}
    assert {name: {f["name"] for f in row["findings"]} for name, row in rows.items()} == {
        name: found for name, (_, found) in LAKE.items()
    }
    assert shown.exit_code == 2
    assert list(rows)[-4:] == ["dim", "fresh", "kept", "well"]
    commands = dict[str, str]()
    for row in rows.values():
        for finding in row["findings"]:
            assert (finding["name"], re.search(r"\bTABLE\b", finding["todo"])) == (finding["name"], None)
            commands |= {one.split()[0]: one for one in re.findall(r"`compactor-daemon ([^`]*)`", finding["todo"])}
    assert {row["health"] for name, row in rows.items() if name in ("dim", "fresh", "kept", "well")} == {"well"}
    health = {name: row["health"] for name, row in rows.items() if name not in CHECK_ALONE}
    status = json.loads(CliRunner().invoke(app, ["status", *root]).stdout)["tables"]
    assert {row["name"]: row["health"] for row in status if row["name"] not in CHECK_ALONE} == health
    client = ServiceClient.of(*(tmp_path / name for name in health), stored=StoredInfo(ClockOptions()))
    pages = client.ask("/api/tables").json()["tables"]
    assert {one["served_as"]: one["health"] for one in pages} == health
    whole = {name: client.ask(f"/api/tables/{name}").json()["health"] for name in health}
    assert whole == health
    options = {"attempt": AttemptOptions(), "retry": RetryOptions(), "order": next(iter(DaemonOrder))}
    settings = DaemonSettings(who="me", output=OutputOptions(), services=SERVICES, **options)  # type: ignore[arg-type]
    for name in health.keys() - {"no-settings"}:
        path = str(tmp_path / name)
        timeline = Table.open(path, reading=True).load_timeline()
        assert (name, Reports(settings).report(path, timeline, Pool())["health"]) == (name, health[name])
    well = CliRunner().invoke(app, ["check", str(tmp_path / "well"), str(tmp_path / "dim")])
    assert (well.exit_code, well.stdout.splitlines()[-1]) == (0, "2 tables: 2 well")
    for name, command in commands.items():  # last: they mend tables
        if name not in ("run", "sync"):
            _knows_the_writers(command)

    def denied(_: FolderListing) -> dict[str, str]:
        raise StorageError("storage failed", found="denied")

    monkeypatch.setattr(FolderListing, "tables", denied)
    lost = CliRunner().invoke(app, ["check", *root])
    assert (lost.exit_code, json.loads(lost.stdout)["tables"][0]["findings"][0]["name"]) == (2, "not-listed")
