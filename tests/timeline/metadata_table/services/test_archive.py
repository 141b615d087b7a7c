"""Archiving the metadata table: what the table has archived goes, and a process that died is followed by another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantombase import writer
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.errors import ClockError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.instants.archived_timeline import load_history
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.metadata_view import load_metadata_view
from phantombase.timeline.metadata_table.services import archive
from phantombase.timeline.metadata_table.services.archive import archive_waits, borders, shows_gone
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.validate import validate
from tests.support.compaction_steps import open_table
from tests.support.metadata_services import (
    CASE,
    EVERY_3,
    FEW,
    entries,
    files_of,
    finished_behind_deaths,
    made,
    rows,
    serve,
    written_and_archived,
)
from tests.support.selection import ALL, deep
from tests.support.tables import one_of, template

STEP = 1 if ALL else 4


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few instants do."""
    monkeypatch.setattr(archive, "OPTIONS", FEW)


def active(path: Path) -> Timeline:
    return open_metadata_table(open_table(path)).load_timeline()


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table whose metadata table has instants to archive."""

    def make(folder: Path) -> None:
        with monkeypatch.context() as none:
            none.setattr(archive, "OPTIONS", ArchiveOptions(min_instants=100, max_instants=101))
            written_and_archived(made(request.param, folder), 8)

    return template(("to archive", request.param), tmp_path / "with", make) / CASE


def test_it_stays_bounded(path: Path) -> None:
    """The older instants are in its archive, and say there what they said."""
    before, there = entries(open_table(path)), active(path)
    gone = serve(open_table(path), MetadataOptions(max_delta_commits=100)).archived
    assert len(gone.instants) > 4
    assert entries(open_table(path)) == before
    assert {i.requested_time for i in there.instants} - {i.requested_time for i in active(path).instants} == set(
        gone.instants
    )
    metadata = open_metadata_table(open_table(path))
    held = load_history(metadata.storage, metadata.config)
    assert {i.requested_time for i in held} == set(gone.instants)
    written_and_archived(path, 9)
    assert len(active(path).instants) < len(there.instants)
    assert validate(open_table(path)).differences == ()
    last = [serve(open_table(path), MetadataOptions(max_delta_commits=100)).archived for _ in range(2)]
    assert last[1].instants == ()


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_dry_run_archives_nothing(path: Path) -> None:
    before = files_of(path)
    planned = serve(open_table(path), MetadataOptions(max_delta_commits=100), dry_run=True).archived
    assert files_of(path) == before
    assert serve(open_table(path), MetadataOptions(max_delta_commits=100)).archived == planned


def test_from_another_zone_no_wrong_times_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On version 6 the archive has the times of files for completion times, in the zone of the process."""
    path = made("v6", tmp_path)
    with monkeypatch.context() as none:
        none.setattr(archive, "OPTIONS", ArchiveOptions(min_instants=100, max_instants=101))
        written_and_archived(path, 8)
    before = files_of(path)

    def elsewhere(*_: object) -> None:
        raise ClockError("another time zone")

    monkeypatch.setattr(TableClock, "check_zone", elsewhere)
    for dry_run in (True, False):
        with pytest.raises(ClockError):
            serve(open_table(path), MetadataOptions(max_delta_commits=100), dry_run=dry_run)
    assert files_of(path) == before


def test_nothing_that_the_table_still_has(tmp_path: Path) -> None:
    path = made("v9", tmp_path)
    written_and_archived(path, 8, archived=False)
    done = serve(open_table(path), EVERY_3).archived
    first = open_table(path).load_timeline().instants[0].requested_time
    assert {i.requested_time for i in active(path).completed} >= {
        i.requested_time for i in open_table(path).load_timeline().completed
    }
    assert done.why == f"instant {first} is the first on the table's active timeline"


def test_a_death_at_a_storage_call(path: Path, tmp_path: Path) -> None:
    planned = serve(open_table(path), MetadataOptions(max_delta_commits=100), dry_run=True).archived
    expected = set(planned.instants)
    for one in finished_behind_deaths(path, tmp_path, least=11, step=STEP):
        metadata = open_metadata_table(open_table(one))
        assert {i.requested_time for i in load_history(metadata.storage, metadata.config)} >= expected
        assert not {i.requested_time for i in metadata.load_timeline().instants} & expected


def completed(time: str, action: str = "deltacommit", done: str | None = None) -> Instant:
    return Instant(requested_time=time, action=action, state=State.COMPLETED, completion_time=done or time)


@pytest.mark.parametrize("path", ["v6", deep("v8"), "v9"], indirect=True)
def test_borders_of_the_table_and_of_slices(path: Path) -> None:
    table = open_table(path)
    metadata = open_metadata_table(table)
    data, view = table.load_timeline(), load_metadata_view(metadata, table.config.built_metadata_partitions)
    found = [border.time for border in borders(data, view)]
    assert found[0] == data.completed[0].requested_time
    logs = [log.name.instant for group in view.groups for slice_ in group.slices for log in slice_.logs]
    assert found[1:] == ([min(logs)] if table.layout.has_completion_times else [])


def test_a_file_group_that_no_write_touches_does_not_stop_it(tmp_path: Path) -> None:
    """Its first slice stays for ever; a slice that is still to be compacted does stop it."""
    path = made("v9", tmp_path)
    written_and_archived(path, 4, archived=False)
    table = open_table(path)
    view = load_metadata_view(open_metadata_table(table), table.config.built_metadata_partitions)
    group = next(g for g in view.groups if len(g.slices) > 1 and g.slices[-1].base and g.slices[0].logs)
    log = group.slices[0].logs[0]
    filled = replace(log, name=replace(log.name, instant="00000000000000001"))
    first, newest = replace(group.slices[0], base=None, logs=(filled,)), replace(group.slices[-1], logs=())
    data = table.load_timeline()
    two = replace(view, groups=(replace(group, slices=(first, newest)),))
    assert len(borders(data, two)) == 1
    alone = replace(view, groups=(replace(group, slices=(first,)),))
    assert borders(data, alone)[1].time == "00000000000000001"


def test_its_newest_compaction_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what that does not hold, even if the table has archived it."""
    monkeypatch.setattr(archive, "borders", lambda data, view: ())
    monkeypatch.setattr(archive, "archive_waits", lambda data, metadata: None)
    for number in range(5):
        writer(rows(range(6), 10**7 + number)).upsert(str(path))
    before = entries(open_table(path))
    last = max(i.requested_time for i in active(path).completed if i.action == "commit")
    serve(open_table(path), MetadataOptions(max_delta_commits=100))
    assert last in {i.requested_time for i in active(path).completed}
    assert entries(open_table(path)) == before


def test_it_waits_for_the_table() -> None:
    layout = LAYOUT_2
    five = Timeline(layout=layout, instants=tuple(completed(f"2026010100000{n}000") for n in range(5)))
    later = Timeline(layout=layout, instants=(completed("20260101000001000"),))
    pending = Instant(requested_time="20260101000000000", action="clean", state=State.REQUESTED)
    assert archive_waits(later, five) is None
    assert archive_waits(Timeline(layout=layout, instants=(pending, *later.instants)), five) is not None
    assert archive_waits(Timeline(layout=layout, instants=()), five) is not None
    assert archive_waits(later, Timeline(layout=layout, instants=five.instants[:4])) is not None


def test_what_filled_a_partition_stays_with_the_compactions_before_it() -> None:
    filled = completed("00000000000000001", done="20260103000000000")
    early, late = completed("20260102000000000", "commit"), completed("20260104000000000", "commit")
    timeline = Timeline(layout=LAYOUT_2, instants=(filled, early, late))
    assert shows_gone(timeline, {filled})
    assert not shows_gone(timeline, {filled, early})
    assert not shows_gone(timeline, {early})
