"""A table on storage as the loop of a daemon knows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from phantombase.compactor_daemon.daemon import served_table
from phantombase.compactor_daemon.daemon.served_table import TableOnStorage
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.daemons import served_on

FIRST, SECOND, THIRD = (f"2026010100000000{n}" for n in range(3))


@pytest.mark.parametrize(("left", "is_done"), [("commit", True), ("compaction.requested", False), (None, True)])
def test_what_others_have_done_is_known_by_names(tmp_path: Path, left: str | None, is_done: bool) -> None:
    """A rollback by Hudi makes an instant pending again. An instant without a name is archived, or moved by an upgrade:
    a fresh timeline shows it."""
    table = create_table(LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",)))
    served = served_on(table)
    served.snapshot()
    for instant in (FIRST, SECOND):
        table.storage.put_if_absent(audit_path(instant), b"{}")
    if left is not None:
        done = "_20260101000000009" if left == "commit" else ""
        table.storage.put_if_absent(f".hoodie/timeline/{FIRST}{done}.{left}", b"")
    table.storage.put_if_absent(f".hoodie/timeline/{SECOND}.compaction.requested", b"")
    found = served.done_among(FIRST, [SECOND, THIRD])
    assert found == (frozenset({FIRST}) if is_done else frozenset())
    assert served.done_among(THIRD, [FIRST]) == frozenset()


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The last one is the time of a served table."""
    found = [0.0]
    monkeypatch.setattr(served_table, "time", SimpleNamespace(monotonic=lambda: found[-1]))
    return found


def idle(tmp_path: Path, **settings: object) -> TableOnStorage:
    """A table with one write, at rest."""
    table = create_table(LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",)))
    table.storage.put_if_absent(f".hoodie/timeline/{FIRST}_{SECOND}.deltacommit", b"{}")
    served = served_on(table)
    served._given = replace(served._given, **settings)  # type: ignore[arg-type]
    return served


def test_of_a_table_at_rest_only_the_timeline_is_listed(tmp_path: Path, moments: list[float]) -> None:
    """Its settings are read again after five minutes, and as soon as its timeline changes."""
    served = idle(tmp_path)
    seen = served.snapshot()
    (tmp_path / ".hoodie/hoodie.properties").unlink()
    (tmp_path / ".hoodie/hoodie.properties.backup").unlink(missing_ok=True)
    assert served.snapshot() is seen
    moments.append(301.0)
    with pytest.raises(PhantombaseError, match="not a Hudi table"):
        served.snapshot()
    with pytest.raises(PhantombaseError, match="not a Hudi table"):
        served.snapshot()


@pytest.mark.parametrize(("goal_s", "rests"), [(None, True), (900.0, True), (60.0, False)])
def test_a_table_with_a_short_goal_does_not_rest(goal_s: float | None, *, rests: bool, tmp_path: Path) -> None:
    """Of a goal of a minute, a rest of a minute leaves nothing to plan and compact in."""
    table = create_table(LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",)))
    served = served_on(table)
    served._given = replace(served._given, schedule=ScheduleOptions(freshness_s=goal_s))
    table.storage.put_if_absent(f".hoodie/timeline/{FIRST}_{SECOND}.clean", b"{}")
    assert served.snapshot().rests == rests


@pytest.mark.parametrize("name", [f"{SECOND}.compaction.requested", f"{SECOND}.deltacommit.requested"])
def test_a_table_with_something_new_is_looked_at(name: str, tmp_path: Path, moments: list[float]) -> None:
    served = idle(tmp_path)
    served.snapshot()
    LocalStorage(str(tmp_path)).put_if_absent(f".hoodie/timeline/{name}", b"")
    assert len(served.snapshot().pending) == ("compaction" in name)
    assert served.timeline is not None
    assert len(served.timeline.instants) == 2


def test_a_plan_that_time_alone_makes_due_is_seen(
    tmp_path: Path, moments: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = idle(tmp_path, schedule=ScheduleOptions(strategy=TriggerStrategy.TIME_ELAPSED, max_delta_seconds=1 << 40))
    assert not served.snapshot().due
    assert served._calm is not None
    asked = replace(
        served._settings, schedule=ScheduleOptions(strategy=TriggerStrategy.TIME_ELAPSED, max_delta_seconds=1)
    )
    served._settings, served._calm = asked, replace(served._calm, settings=asked)
    assert served.snapshot().due


def test_a_table_at_rest_is_not_searched_for_leftovers_again(
    tmp_path: Path, moments: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an hour, if there were none, and unless its timeline changes."""
    served, searched = idle(tmp_path), list[int]()

    def search(*_: object) -> bool:
        searched.append(1)
        return len(searched) > 1

    monkeypatch.setattr(served_table, "sweep_table", search)
    for _ in range(3):
        served.snapshot()
        served.sweep()
    assert len(searched) == 2
    LocalStorage(str(tmp_path)).put_if_absent(f".hoodie/timeline/{THIRD}_{THIRD}.deltacommit", b"{}")
    served.snapshot()
    served.sweep()
    served.sweep()
    assert len(searched) == 3
    moments.append(3601.0)
    served.snapshot()
    served.sweep()
    assert len(searched) == 4
