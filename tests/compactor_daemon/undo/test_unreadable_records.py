"""A record of ours that cannot be read stops the compaction it belongs to, and nothing else; a command ends that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import Failure, record_failure
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, is_revoked
from phantombase.compactor_daemon.attempt.publish import place, publish
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.status.status import table_status, work_rows
from phantombase.compactor_daemon.undo.repair import cancel_unreadable_attempt as take_back
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.audit.audit import audit
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.instants.reserved_times import attempt_folder, attempts, outcome_path, reserve
from phantombase.timeline.locks.heartbeat import heartbeat
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OUTPUT, base_files, decided, open_table, run_one, staged
from tests.support.failing_storage import Call, Hook, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK, one_of
from tests.support.moved_tables import schedule, upsert
from tests.support.selection import deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

ROWS = {"k0000": (2, 2.0), "k0003": (1, 1.0)}


@pytest.fixture(params=[9, deep(6)])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with one file slice to compact."""
    path = tmp_path / "t"
    written_table(path, request.param, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    return path


def planned(path: Path) -> str:
    """A compaction that pends."""
    instant = schedule(path).instant
    assert instant is not None
    return instant


def damage(path: Path, instant: str, attempt: int = 1) -> None:
    """The outcome of an attempt, cut to nothing."""
    file = path / outcome_path(instant, attempt)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")


def compact(path: Path) -> list[str]:
    """As the command; the instants done."""
    options = ExecuteOptions(executor=Executor.LOCAL, threads=1)
    attempt = AttemptOptions(barrier_s=0.3, barrier_poll_s=0.05)
    done = run_compactions(str(path), output=OUTPUT, execute=options, attempt=attempt)
    return [one.instant for one in done.done]


def test_an_unreadable_outcome_stops_its_own_instant_only(path: Path) -> None:
    """Writes, plans, other compactions and status go on; the command ends it, and no row is lost."""
    stuck = planned(path)
    damage(path, stuck)
    upsert(LocalStorage(str(path)), rows((1, 5, 5.0)))
    upsert(LocalStorage(str(path)), rows((1, 6, 6.0)))
    other = planned(path)
    expected = {**ROWS, "k0001": (6, 6.0)}
    with pytest.raises(MalformedError, match="release TABLE INSTANT --unreadable") as error:
        compact(path)
    assert error.value.path == outcome_path(stuck, 1)
    assert pending_instants(open_table(path)) == (stuck,), "the other one was compacted"
    assert other > stuck
    with pytest.raises(MalformedError):
        unschedule(open_table(path), stuck, LOCK)
    found = table_status(open_table(path).snapshot(cached=False))
    (row,) = found.pending
    assert row.state == "unknown"
    assert "release TABLE INSTANT --unreadable" in str(row.problem)
    assert work_rows(found) == []

    words = ["release", str(path), stuck, "--unreadable", "--sole-writer", "--json"]
    released = json.loads(CliRunner().invoke(app, words).stdout)
    assert released["attempt"] == 1
    assert compact(path) == [stuck]
    assert read_rows(path) == expected
    assert json.loads(CliRunner().invoke(app, words).stdout)["attempt"] is None


@one_of("path", 9, 6, indirect=True)
def test_a_compaction_is_released_whatever_the_plans_of_clusterings_say(path: Path) -> None:
    stuck = planned(path)
    damage(path, stuck)
    table = open_table(path)
    time, action = table.snapshot().next_time(), table.layout.pending_clustering
    (path / table.config.timeline_folder / f"{time}.{action}.requested").write_bytes(b"no plan")
    record_failure(table.storage, stuck, Failure(at_ms=0, error="e", what="w", who="me", park=True))
    released = CliRunner().invoke(app, ["release", str(path), stuck, "--json"], catch_exceptions=False)
    assert json.loads(released.stdout)["failures"] == 1
    words = ["release", str(path), stuck, "--unreadable", "--sole-writer", "--json"]
    assert json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)["attempt"] == 1


@one_of("path", 6, 9, indirect=True)
def test_the_plan_of_another_instant_is_taken_back_beside_it(path: Path) -> None:
    """Unscheduling looks at the records of its own instant."""
    damage(path, planned(path))
    upsert(LocalStorage(str(path)), rows((1, 5, 5.0)))
    upsert(LocalStorage(str(path)), rows((1, 6, 6.0)))
    other = planned(path)
    assert unschedule(open_table(path), other, LOCK).instant == other


def placed(table: Table, instant: str) -> CommitDecision:
    """A decision whose files have their final names."""
    decision = decided(table, instant)
    for one in decision.placements:
        place(table, decision, one)
    return decision


def test_what_the_next_attempt_has_staged_stays(path: Path) -> None:
    """It opens as soon as the decision is revoked, and takes no lock."""
    instant, opened = planned(path), list[Path]()
    damage(path, instant)

    def opens(call: Call) -> object:
        done = call.do()
        if call.name == "put_if_absent" and call.path.endswith("/revoked"):
            attempt, _, _ = staged(open_table(path), instant)
            opened.extend((path / attempt_folder(instant, attempt.number)).iterdir())
        return done

    take_back(open_table(path, HookedStorage(LocalStorage(str(path)), opens)), instant, LOCK)
    assert len(opened) > 2
    assert all(file.exists() for file in opened)
    assert compact(path) == [instant]
    assert read_rows(path) == ROWS


def test_files_that_a_lost_decision_placed_lose_their_names(path: Path) -> None:
    """Before the next attempt's get theirs: a reader never finds two base files of an instant."""
    instant = planned(path)
    placed(open_table(path), instant)
    damage(path, instant)
    taken = take_back(open_table(path), instant, LOCK)
    assert taken.attempt == 1
    assert len(taken.files) == 1
    assert base_files(path, instant) == []
    assert is_revoked(LocalStorage(str(path)), instant, 1)
    assert compact(path) == [instant]
    assert read_rows(path) == ROWS
    assert len(base_files(path, instant)) == 1
    assert all(audit(open_table(path), one).good for one in [instant])


def test_a_publisher_that_slept_through_it_publishes_nothing(path: Path) -> None:
    """It finds, in the lock, that its decision stands no more, and takes the names of its files away again."""
    instant = planned(path)
    decision = placed(open_table(path), instant)
    damage(path, instant)
    take_back(open_table(path), instant, LOCK)
    with pytest.raises(ConflictError, match="revoked"):
        publish(open_table(path), decision, LOCK)
    assert base_files(path, instant) == []
    run_one(open_table(path), instant)
    assert read_rows(path) == ROWS


@one_of("path", 6, 9, indirect=True)
def test_a_publisher_whose_record_is_damaged_meanwhile_publishes(path: Path) -> None:
    """It knows what was decided; damage takes nothing back. Afterwards the commit tells what is to be cleaned up."""
    instant = planned(path)
    decision = decided(open_table(path), instant)
    damage(path, instant)
    publish(open_table(path), decision, LOCK)
    with pytest.raises(ConflictError, match="completed"):
        take_back(open_table(path), instant, LOCK)
    (file,) = base_files(path, instant)
    stray = file.with_name(file.name.replace("990000000", "7"))
    stray.write_bytes(file.read_bytes())
    file.unlink()  # placed again from what was staged
    finish_completed(open_table(path), LOCK)
    assert file.exists()
    assert not stray.exists()
    assert read_rows(path) == ROWS
    assert audit(open_table(path), instant).good
    assert not list((path / attempt_folder(instant, 1)).glob("*.parquet"))


def test_nothing_is_taken_back_while_a_compactor_lives(path: Path) -> None:
    """Its heartbeat says so; nothing is changed."""
    instant = planned(path)
    placed(open_table(path), instant)
    damage(path, instant)
    with heartbeat(LocalStorage(str(path)), instant, 30.0), pytest.raises(ConflictError, match="at work"):
        take_back(open_table(path), instant, LOCK)
    assert len(base_files(path, instant)) == 1
    assert (path / outcome_path(instant, 1)).read_bytes() == b""


def dies_at_change(number: int) -> Hook:
    """Dies at the n-th call that changes something."""
    changes = count()

    def hook(call: Call) -> object:
        if call.name in ("put_if_absent", "delete") and next(changes) >= number:
            raise ProcessDied(call.name)
        return call.do()

    return hook


def test_taking_back_that_dies_at_any_call_is_repeated(path: Path) -> None:
    """Whatever was done, running it again, and then the compaction, ends well: one base file, every row."""
    instant = planned(path)
    placed(open_table(path), instant)
    damage(path, instant)
    for at in count():
        try:
            take_back(Table.on(HookedStorage(LocalStorage(str(path)), dies_at_change(at))), instant, LOCK)
        except ProcessDied:
            continue
        break
    assert at >= 3
    assert compact(path) == [instant]
    assert read_rows(path) == ROWS
    assert len(base_files(path, instant)) == 1


@one_of("path", 6, 9, indirect=True)
def test_an_audit_goes_on_behind_an_unreadable_entry(path: Path) -> None:
    """The entry is reported; the commit has the ledger all the same."""
    instant = planned(path)
    run_one(open_table(path), instant)
    (path / audit_path(instant)).write_bytes(b"")
    found = audit(open_table(path), instant)
    assert not found.good
    assert [g.verdict.value for g in found.groups] == ["proved"]
    assert "unreadable entry of the audit log" in found.problems[0]
    ran = CliRunner().invoke(app, ["status", str(path)])
    assert ran.exit_code == 0


@contextmanager
def counted(path: Path) -> Iterator[tuple[Table, list[str]]]:
    """A table, and the paths that were read of it."""
    read: list[str] = []

    def note(call: Call) -> object:
        if call.name == "read":
            read.append(call.path)
        return call.do()

    yield Table.on(HookedStorage(LocalStorage(str(path)), note)), read


def _compacted(path: Path, number: int) -> str:
    upsert(LocalStorage(str(path)), rows((0, 10 + number, 2.0)))
    instant = planned(path)
    run_one(open_table(path), instant)
    return instant


def test_a_lock_section_reads_no_record_of_a_decision(tmp_path: Path) -> None:
    """However many there are: a completed compaction is on the timeline, of a pending one the name tells the time."""
    path = tmp_path / "t"
    written_table(path, 9, rows((0, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    for number in range(3):
        _compacted(path, number)
    upsert(LocalStorage(str(path)), rows((0, 90, 2.0)))
    pending = planned(path)
    decision = decided(open_table(path), pending)
    with counted(path) as (table, read):
        timeline = table.load_timeline()
        read.clear()
        found = list(table.times.reserved(timeline))
        assert read == []
    assert decision.completion_time in found
    assert {i.requested_time for i in timeline.instants if i.action in ("commit", "compaction")} <= set(found)


def test_a_decision_of_an_earlier_release_is_read_until_it_is_completed(tmp_path: Path) -> None:
    """It left no name that tells its completion time."""
    path = tmp_path / "t"
    written_table(path, 9, rows((0, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    pending = planned(path)
    decision = decided(open_table(path), pending)
    for name in (path / ".hoodie/.phantombase" / pending).glob("reserved-*"):
        name.unlink()
    with counted(path) as (table, read):
        timeline = table.load_timeline()
        read.clear()
        assert decision.completion_time in list(table.times.reserved(timeline))
        assert read == [outcome_path(pending, 1)]
        publish(table, decision, LOCK)
        timeline = table.load_timeline()
        read.clear()
        assert list(table.times.reserved(timeline)) == [pending]
        assert read == []


@pytest.mark.parametrize("named", [True, False])
def test_times_stay_above_what_an_unreadable_decision_may_have_chosen(named: bool, tmp_path: Path) -> None:
    """By its name, or, of an earlier release, by the moment at which the storage took it in; also once taken back."""
    path = tmp_path / "t"
    written_table(path, 9, rows((0, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    pending = planned(path)
    table = open_table(path)
    attempt, _, _ = staged(table, pending)
    future = "20990101000000000"
    damage(path, pending)
    if named:
        reserve(table.storage, pending, attempt.number, future)
        least = future
    else:
        entry = table.storage.find(outcome_path(pending, 1))
        assert entry is not None
        least = table.times.moment(entry.modified_ms)
    assert max(table.times.reserved(table.load_timeline())) == least
    take_back(table, pending, LOCK)
    assert max(table.times.reserved(table.load_timeline())) == least
    assert attempts(table.storage, pending) == (1,)
