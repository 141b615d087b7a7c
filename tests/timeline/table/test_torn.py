"""Plans of any kind that a killed Hudi left empty or torn: one rule says when such a plan goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import ConflictError, MalformedError, PhantombaseError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RestorePlan, encode_restore_plan
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.reserved_times import has_tombstone
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.torn import remove_torn, torn_plans
from tests.support.compaction_steps import open_table
from tests.support.faults import died_or_ended, make_old
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.selection import deep, for_each
from tests.support.written_tables import read_rows

CUT = b"Obj\x01 cut"
KINDS = [
    ("v9_plain", "clean", b""),
    deep("v9_plain", "clean", CUT),
    ("v6_plain", "clean", CUT),
    ("v9_plain", "clustering", b""),
    ("v9_plain", "clustering", CUT),
    ("v6_plain", "replacecommit", CUT),
    ("v9_plain", "restore", CUT),
    deep("v6_plain", "restore", b""),
    ("v6_plain", "rollback", b""),
    deep("v9_plain", "rollback", CUT),
]


def left(name: str, action: str, data: bytes, tmp_path: Path) -> tuple[Table, Path]:
    """A table, and the plan that was left in it just now."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    instant = Instant(requested_time=table.snapshot().next_time(), action=action, state=State.REQUESTED)
    file = path / table.instant_path(instant)
    file.write_bytes(data)
    return table, file


@pytest.mark.parametrize(("name", "action", "data"), KINDS)
def test_it_stays_while_a_process_may_work_by_it(name: str, action: str, data: bytes, tmp_path: Path) -> None:
    table, plan = left(name, action, data, tmp_path)
    path, time = Path(table.storage.base_path), plan.name.partition(".")[0]

    def stays(error: type[PhantombaseError], why: str) -> None:
        with pytest.raises(error, match=why):
            remove_torn(open_table(path), LOCK, action, strict=True)
        assert remove_torn(open_table(path), LOCK, action) == ()
        assert plan.exists()
        assert not has_tombstone(table.storage, time)

    stays(ConflictError, "may still be writing")
    make_old({plan}, 3600)
    beat = path / heartbeat_path(time)
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    stays(ConflictError, "no fresh heartbeat")
    beat.unlink()
    inflight = plan.with_name(plan.name.replace(".requested", ".inflight"))
    inflight.touch()
    make_old({inflight}, 3600)
    stays(MalformedError, "has begun cannot be read")
    inflight.unlink()
    made = path / table.partitions()[0] / f"11111111-1111-1111-1111-111111111111-0_0-1-2_{time}.parquet"
    made.touch()
    if moves_rows := action in ("clustering", "replacecommit"):
        stays(MalformedError, f"has begun.*{made.name}")
        made.unlink()
    assert remove_torn(open_table(path), LOCK, action, strict=True) == (time,)
    assert not plan.exists()
    assert has_tombstone(table.storage, time) == moves_rows
    assert remove_torn(open_table(path), LOCK, action, strict=True) == ()


@pytest.mark.parametrize(("name", "action", "data"), KINDS)
def test_a_death_at_a_storage_call(name: str, action: str, data: bytes, tmp_path: Path) -> None:
    """The next run finishes it."""
    table, plan = left(name, action, data, tmp_path)
    make_old({plan}, 3600)
    path = Path(table.storage.base_path)
    rows = read_rows(path)

    def remove(storage: Storage) -> object:
        return remove_torn(open_table(Path(storage.base_path), storage), LOCK, action, strict=True)

    for copy in died_or_ended(path, remove):
        remove_torn(open_table(copy), LOCK, action, strict=True)
        assert not list((copy / ".hoodie").rglob(plan.name))
        assert read_rows(copy) == rows


@pytest.mark.parametrize(("name", "action", "data"), KINDS)
def test_while_a_restore_is_pending(name: str, action: str, data: bytes, tmp_path: Path) -> None:
    """Only what may block it goes."""
    table, plan = left(name, action, data, tmp_path)
    undone = RestorePlan(target="20260101000000000", undone=())
    restore = Instant(requested_time=table.snapshot().next_time(), action="restore", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(restore), encode_restore_plan(undone))
    make_old({plan}, 3600)
    if action in ("restore", "rollback"):
        assert remove_torn(table, LOCK, action)
        return
    with pytest.raises(ConflictError, match="a restore of the table is in progress"):
        remove_torn(table, LOCK, action)
    assert plan.exists()


@pytest.mark.parametrize("action", ["replacecommit", "clustering"])
def test_one_that_is_gone_or_is_an_overwrite_is_not_torn(action: str, tmp_path: Path) -> None:
    """On version 6 an empty plan is that of an overwrite."""
    table, plan = left("v6_plain" if action == "replacecommit" else "v9_plain", action, b"", tmp_path)
    timeline = table.load_timeline()
    assert len(torn_plans(table.with_timeline(timeline), action)) == (action == "clustering")
    plan.rename(plan.with_name(plan.name.replace(".requested", ".inflight")))
    assert torn_plans(table.with_timeline(timeline), action) == ()
    assert torn_plans(table.snapshot(), action) == ()


@for_each(["clean", "rollback", "clustering", "compaction"])
def test_the_plan_of_what_is_completed_comes_from_a_copy(action: str) -> None:
    """Nothing may be removed: a completed clean says which states are no more."""
    done = Instant(requested_time="20260101000000000", action=action, state=State.COMPLETED)
    error = Torn(instant=done, path=f"20260101000000000.{action}.requested", reason="cut", size=0).error()
    assert "is completed cannot be read" in error.what
    assert error.todo is not None
    assert error.todo.startswith("If you have a copy, restore the file")


@pytest.mark.parametrize(("name", "data"), [("v9_plain", b""), ("v9_plain", CUT), deep("v6_plain", b"")])
def test_only_a_plan_that_has_not_begun_is_for_unschedule(name: str, data: bytes, tmp_path: Path) -> None:
    table, plan = left(name, "compaction", data, tmp_path)
    time = plan.name.partition(".")[0]
    states = [
        ("is pending", "If you have a copy" if data else "unschedule"),
        ("has begun", "If you have a copy"),
        ("is completed", "If you have a copy"),
    ]
    for state, way in states:
        with pytest.raises(MalformedError, match=f"{state} cannot be read.*{way}"):
            table.compaction_plan(time)
        if state == "has begun":
            with pytest.raises(MalformedError, match="has begun cannot be read"):
                unschedule(table, time, LOCK)
        done = plan.with_name(f"{time}_{time}.commit" if name == "v9_plain" else f"{time}.commit")
        (done if state == "has begun" else plan.with_name(f"{time}.compaction.inflight")).touch()
