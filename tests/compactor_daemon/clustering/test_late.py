"""A clustering whose process sleeps right before its commit: no row comes back, and none is lost.

Meanwhile its inputs change, or its plan is taken back."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.attempt.pending_clusterings import pending_clusterings
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.cancel import (
    _orphans,
    cancel_clustering,
    cancel_pending_clusterings,
    retract_stale,
)
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.services.options import ServiceOptions
from phantombase.compactor_daemon.services.serve import serve_table
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import has_tombstone
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import Operation
from tests.support.archived_tables import (
    OUTPUT,
    TWO,
    around_the_commit,
    begin,
    built_upon,
    cluster,
    clustered,
    forget_heartbeats,
    of_clustering,
    one_row,
    overwrite,
    request,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import make_old
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.written_tables import check_nothing_left, read_rows


def taken_back(path: Path) -> None:
    """Takes the pending clustering back, under a lock that its sleeping process has lost."""
    (pending,) = pending_clusterings(open_table(path).snapshot())
    lock = type(LOCK)("another: the lock of the sleeper was lost")
    assert cancel_clustering(open_table(path), pending, lock, "test", decided_too=True)


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT_OVERWRITE])
def test_inputs_that_another_write_changed(version: int, operation: Operation, tmp_path: Path) -> None:
    """The write, as some of Hudi's, asks for no pending plan. The commit goes again, and with it all that was made."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    do = upsert if operation is Operation.UPSERT else overwrite
    storage = around_the_commit(path, lambda: do(path, one_row("k1", 100)))
    with pytest.raises(ConflictError, match="cannot be published"):
        cluster(path, storage)
    expected = {**rows, "k1": (100, 100.0)} if operation is Operation.UPSERT else {"k1": (100, 100.0)}
    assert read_rows(path) == expected
    check_nothing_left(path)
    upsert(path, one_row("k2", 200))
    assert read_rows(path) == {**expected, "k2": (200, 200.0)}


@one_of("version", 6, 9, 8)
def test_an_input_that_was_rolled_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    storage = around_the_commit(path, lambda: roll_back_newest(open_table(path), type(LOCK)("another"), newest))
    with pytest.raises(ConflictError, match=f"write {newest}, which it merged, was rolled back"):
        cluster(path, storage)
    assert read_rows(path) == {key: row for key, row in rows.items() if key != "k3"}
    check_nothing_left(path)


@one_of("version", 9, 8, 6)
def test_what_others_have_built_upon_stays(version: int, tmp_path: Path) -> None:
    """A row of a later write lies on the new file group: without the commit it would be lost."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    error = built_upon(path, lambda: overwrite(path, one_row("new", 100)), lambda: upsert(path, one_row("k3", 300)))
    assert "compactor-daemon restore" in error
    assert read_rows(path) == {**rows, "new": (100, 100.0), "k3": (300, 300.0)}  # the error says that some came back


@one_of("version", 9, 8, 6)
def test_a_service_fails_where_the_commit_stays(version: int, tmp_path: Path) -> None:
    """It is not put off: a person must look."""
    path = tmp_path / "trips"
    small_files(path, version)
    storage = around_the_commit(
        path, lambda: overwrite(path, one_row("new", 100)), lambda: upsert(path, one_row("k3", 300))
    )
    (done,) = serve_table(open_table(path, storage), ServiceOptions.of(cluster=TWO), LOCK)
    assert done.failed
    assert "so the commit stays" in done.what
    assert "compactor-daemon restore" in done.what


@one_of("version", 6, 9, 8)
def test_what_is_replaced_again_stays(version: int, tmp_path: Path) -> None:
    """Without the commit the rows of its inputs would come back."""
    path = tmp_path / "trips"
    small_files(path, version)
    built_upon(path, lambda: upsert(path, one_row("k1", 100)), lambda: overwrite(path, one_row("only", 100)))
    assert read_rows(path) == {"only": (100, 100.0)}


@one_of("version", 9, 8, 6)
def test_a_write_that_may_build_upon_it(version: int, tmp_path: Path) -> None:
    """A pending write may have looked for its keys while the commit was there."""
    path = tmp_path / "trips"
    small_files(path, version)
    storage = around_the_commit(path, lambda: overwrite(path, one_row("new", 100)), lambda: begin(path, "deltacommit"))
    with pytest.raises(ConflictError, match="is pending, which may write to its files"):
        cluster(path, storage)


@one_of("version", 9, 6)
def test_a_process_that_commits_late(version: int, tmp_path: Path) -> None:
    """It sleeps right before it puts the completed file; meanwhile its plan is taken back, and its files are gone."""
    path = tmp_path / "trips"
    rows = small_files(path, version)

    def meanwhile(call: Call) -> object:
        completes = call.name == "put_if_absent" and call.path.endswith(".replacecommit")
        if completes:
            taken_back(path)
        done = call.do()
        if completes:
            with pytest.raises(MissingFileError, match="a completed write names a base file"):  # never fewer rows
                read_rows(path)
        return done

    with pytest.raises(ConflictError, match="cannot be published"):
        cluster(path, HookedStorage(open_table(path).storage, meanwhile))
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 50))
    check_nothing_left(path)
    assert read_rows(path) == {**rows, "k1": (50, 50.0)}


@pytest.mark.parametrize("then", ["upsert", "cluster", "write of Hudi"])
@one_of("version", 6, 9)
def test_a_process_that_commits_late_and_dies(version: int, then: str, tmp_path: Path) -> None:
    """Before it looks back. The next write or run withdraws its commit, unless a write has completed behind it."""
    path = tmp_path / "trips"
    rows = small_files(path, version)

    def dies_late(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".replacecommit"):
            taken_back(path)
            call.do()
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, dies_late))
    with pytest.raises(MissingFileError, match="a completed write names a base file"):
        read_rows(path)
    if then == "cluster":
        assert cluster(path).done is not None
        assert read_rows(path) == rows
        return
    if then == "write of Hudi":
        table = open_table(path)
        (*_, newest) = (i for i in table.load_timeline().completed if i.action == "deltacommit")
        (path / table.instant_path(newest)).touch()
        with pytest.raises(MissingFileError, match="a completed write names a base file"):
            upsert(path, one_row("k1", 50))
        return
    upsert(path, one_row("k1", 50))
    assert read_rows(path) == {**rows, "k1": (50, 50.0)}


def test_a_late_commit_whose_inputs_were_cleaned(tmp_path: Path) -> None:
    """Meanwhile its plan was cancelled, another clustering replaced the inputs, and a clean removed them."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    inputs = sorted(path.glob("*/*.parquet"))

    def dies_late(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".replacecommit"):
            taken_back(path)
            lock = type(LOCK)("another: the lock of the sleeper was lost")
            assert cluster_table(open_table(path), TWO, lock, output=OUTPUT).done is not None
            for file in inputs:
                file.unlink()
            call.do()
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, dies_late))
    with pytest.raises(MissingFileError, match="a completed write names a base file"):
        read_rows(path)
    upsert(path, one_row("k1", 50))
    assert read_rows(path) == {**rows, "k1": (50, 50.0)}


@pytest.mark.parametrize("gone", ["the plan", "the plan and an input", "the new files"])
def test_a_commit_that_is_not_late_stays(gone: str, tmp_path: Path) -> None:
    """An archiver, or a loss, has removed the plan, inputs or new files."""
    path = tmp_path / "trips"
    small_files(path, 9)
    inputs = sorted(path.glob("*/*.parquet"))
    assert cluster(path).done is not None
    (done,) = (i for i in open_table(path).load_timeline().completed if i.action == "replacecommit")
    if gone == "the new files":
        for new in {*path.glob("*/*.parquet")} - {*inputs}:
            new.unlink()
    else:
        for state in (".clustering.requested", ".clustering.inflight"):
            (path / f".hoodie/timeline/{done.requested_time}{state}").unlink()
    if gone.endswith("input"):
        for file in {*path.glob("*/*.parquet")} - {*inputs[1:]}:
            file.unlink()
    retract_stale(open_table(path).snapshot(), LOCK)
    assert done in open_table(path).load_timeline().completed


def test_a_commit_that_is_archived_meanwhile_is_not_late(tmp_path: Path) -> None:
    """A writer that loaded the timeline before goes on."""
    path = tmp_path / "trips"
    small_files(path, 9)
    assert cluster(path).done is not None
    timeline = open_table(path).load_timeline()
    (done,) = (i for i in timeline.completed if i.action == "replacecommit")
    for file in (path / ".hoodie/timeline").glob(f"{done.requested_time}*"):
        file.unlink()
    retract_stale(open_table(path).with_timeline(timeline), LOCK)


@one_of("version", 9, 8, 6)
def test_a_take_back_that_slept_deletes_no_file_that_another_completed(version: int, tmp_path: Path) -> None:
    """All tries give a file the same name. So a take-back says first that it has begun, and nobody completes it."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dead: list[str] = []

    def dies(call: Call) -> object:
        if dead:
            raise ProcessDied(call.path)
        done = call.do()
        if call.name == "place" and of_clustering(call.path):
            dead.append(call.path)
            raise ProcessDied(call.path)
        return done

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, dies))
    forget_heartbeats(path)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    slept: list[str] = []

    def sleeps(call: Call) -> object:
        deletes = call.name in ("delete", "delete_all") and not of_clustering(call.path)
        if deletes and call.path.endswith(".parquet") and not slept:
            slept.append(call.path)
            result = cluster(path)
            assert (result.finished, result.cancelled) == ((), (pending.time,))
        return call.do()

    asleep = open_table(path, HookedStorage(open_table(path).storage, sleeps))
    with suppress(PhantombaseError):
        lock = type(LOCK)("another: the lock of the sleeper was lost")
        cancel_clustering(asleep, pending, lock, "test", decided_too=True)
    assert slept
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_an_inflight_file_that_is_put_while_the_plan_is_cancelled_goes(version: int, tmp_path: Path) -> None:
    """Its process stalled before the put, and lost its lock."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path, alive=False)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    inflight = path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))

    def puts(call: Call) -> object:
        if call.name == "delete_folder" and pending.time in call.path and "writes/" in call.path:
            inflight.touch()
        return call.do()

    table = open_table(path, HookedStorage(open_table(path).storage, puts))
    assert cancel_clustering(table, pending, LOCK, "a test")
    assert not inflight.exists()
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_a_late_inflight_file_of_a_plan_taken_back_goes(version: int, tmp_path: Path) -> None:
    """Its process slept before it put the file, and died behind it."""
    path = tmp_path / "trips"
    rows = small_files(path, version)

    def hook(call: Call) -> object:
        if call.name != "put_if_absent" or not call.path.endswith((".clustering.inflight", ".replacecommit.inflight")):
            return call.do()
        taken_back(path)
        call.do()
        raise ProcessDied(call.path)

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    forget_heartbeats(path)
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    assert all(i.completed for i in open_table(path).load_timeline().instants if i.family == "replacecommit")


def test_pending_replacing_writes_are_looked_up_in_one_listing(tmp_path: Path) -> None:
    """A write looks for what is left of clusterings: an inflight file without its plan."""
    path = unzip_golden("v9_plain", tmp_path)
    for _ in range(3):
        table = open_table(path)
        time = table.snapshot().next_time()
        for state in (State.REQUESTED, State.INFLIGHT):
            begun = Instant(requested_time=time, action="replacecommit", state=state)
            table.storage.put_if_absent(table.instant_path(begun), b"")
    calls = HookedStorage(LocalStorage(str(path)), lambda call: call.do())
    table = open_table(path, calls)
    timeline = table.load_timeline()
    before = len(calls.calls)
    assert _orphans(table.with_timeline(timeline)) == ()
    assert calls.calls[before:] == ["list"]


# Plans of clusterings that cannot be read: a command takes them back, where no process can have worked by them.


TORN = b"Obj\x01 cut"
CASES = [("v6_plain", TORN), ("v9_plain", TORN), ("v9_plain", b"")]
"""On version 6 an empty file is of a write, which the next write rolls back."""


def write(path: Path) -> None:
    writer(pa.table({"id": ["k001"], "p": ["north"], "ts": [10**6]})).upsert(str(path))


def left(name: str, data: bytes, tmp_path: Path, *, old: bool = True) -> Path:
    """The plan that a process left, in a table."""
    table = open_table(unzip_golden(name, tmp_path))
    time = table.snapshot().next_time()
    action = "clustering" if table.layout.has_completion_times else "replacecommit"
    plan = Instant(requested_time=time, action=action, state=State.REQUESTED)
    file = Path(table.storage.base_path) / table.instant_path(plan)
    file.write_bytes(data)
    if old:
        make_old({file}, 3600)
    return file


def table_of(plan: Path) -> Table:
    folder = plan.parent
    while folder.name != ".hoodie":
        folder = folder.parent
    return open_table(folder.parent)


@pytest.mark.parametrize(("name", "data"), CASES)
def test_it_is_taken_back_by_command(name: str, data: bytes, tmp_path: Path) -> None:
    plan = left(name, data, tmp_path)
    table = table_of(plan)
    path, rows = Path(table.storage.base_path), read_rows(Path(table.storage.base_path))
    done = CliRunner().invoke(app, ["cluster", str(path), "--cancel", "--sole-writer"])
    assert done.exit_code == 0, done.output
    assert plan.name.partition(".")[0] in done.output
    assert not plan.exists()
    assert has_tombstone(table.storage, plan.name.partition(".")[0])
    assert cancel_pending_clusterings(open_table(path), LOCK) == ()
    assert read_rows(path) == rows
    write(path)
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
    restore_table(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))


@one_of("name", "v9_plain", "v6_plain")
def test_what_it_keeps_out_names_the_way_out(name: str, tmp_path: Path) -> None:
    path = Path(table_of(left(name, TORN, tmp_path)).storage.base_path)
    with pytest.raises(MalformedError, match="cluster TABLE --cancel"):
        write(path)
    with pytest.raises(MalformedError, match="cluster TABLE --cancel"):
        schedule_compaction(open_table(path), LOCK)
    with pytest.raises(MalformedError, match="cluster TABLE --cancel"):
        clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
    with pytest.raises(MalformedError, match="cluster TABLE --cancel"):
        load_state(open_table(path), None)


@one_of("version", 9, 6)
def test_a_torn_plan_that_was_executed_is_not_for_cancel(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    before, instant = max(open_table(path).load_timeline().completed_writes), clustered(path)
    (plan,) = (path / ".hoodie").rglob(f"{instant}.*.requested")
    plan.write_bytes(TORN)
    with pytest.raises(MalformedError, match=r"is completed cannot be read.*restore the table to an instant before"):
        roll_back_newest(open_table(path), LOCK, instant)
    pending = shutil.copytree(path, tmp_path / "pending")
    for done in (pending / ".hoodie").rglob(f"{instant}*.replacecommit"):
        done.unlink()
    with pytest.raises(MalformedError, match=r"has begun cannot be read.*restore the table to an instant before it"):
        upsert(pending, one_row("k1", 50))
    for copy in (path, pending):
        restore_table(open_table(copy), LOCK, before)
        assert read_rows(copy) == rows
        upsert(copy, one_row("k1", 50))
        assert read_rows(copy) == rows | {"k1": (50, 50.0)}


@one_of("version", 6, 9)
def test_an_inflight_file_that_cannot_be_read_names_the_way_out(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path, alive=False)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    (path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))).write_bytes(TORN)
    with pytest.raises(MalformedError, match="restore TABLE --to INSTANT`, of the newest completed write"):
        upsert(path, one_row("k1", 50))
    restore_table(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 50))
    assert read_rows(path) == rows | {"k1": (50, 50.0)}
