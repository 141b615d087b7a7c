"""Archiving the metadata table: what the table has archived goes, and a process that died is followed by another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.metadata_services import retention
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions, clean_waits
from phantombase.compactor_daemon.metadata_services.retention import (
    archive_waits,
    clean_due,
    clean_instant,
    cutoffs,
    request_clean,
    shows_gone,
)
from phantombase.timeline.errors import ClockError, ConflictError
from phantombase.timeline.format.clean import CleanPlan
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.instants.archived_timeline import load_history
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.metadata_table.read import load_metadata_view
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.table.table import open_metadata_table
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import one_of, template
from tests.support.metadata_tables import (
    CASE,
    EVERY_3,
    FEW,
    entries,
    files_of,
    finished_behind_deaths,
    made,
    rows,
    serve,
    slices,
    to_clean,
    written,
    written_and_archived,
)
from tests.support.selection import ALL, deep

STEP = 1 if ALL else 9


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few instants do."""
    monkeypatch.setattr(retention, "OPTIONS", FEW)


def active(path: Path) -> Timeline:
    return open_metadata_table(open_table(path)).load_timeline()


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table whose metadata table has instants to archive."""

    def make(folder: Path) -> None:
        with monkeypatch.context() as none:
            none.setattr(retention, "OPTIONS", ArchiveOptions(min_instants=100, max_instants=101))
            written_and_archived(made(request.param, folder), 8)

    return template(("to archive", request.param), tmp_path / "with", make) / CASE


@pytest.mark.usefixtures("early")
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


@pytest.mark.usefixtures("early")
@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_dry_run_archives_nothing(path: Path) -> None:
    before = files_of(path)
    planned = serve(open_table(path), MetadataOptions(max_delta_commits=100), dry_run=True).archived
    assert files_of(path) == before
    assert serve(open_table(path), MetadataOptions(max_delta_commits=100)).archived == planned


@pytest.mark.usefixtures("early")
def test_from_another_zone_no_wrong_times_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On version 6 the archive has the times of files for completion times, in the zone of the process."""
    path = made("v6", tmp_path)
    with monkeypatch.context() as none:
        none.setattr(retention, "OPTIONS", ArchiveOptions(min_instants=100, max_instants=101))
        written_and_archived(path, 8)
    before = files_of(path)

    def elsewhere(*_: object) -> None:
        raise ClockError("another time zone")

    monkeypatch.setattr(TableClock, "check_zone", elsewhere)
    for dry_run in (True, False):
        with pytest.raises(ClockError):
            serve(open_table(path), MetadataOptions(max_delta_commits=100), dry_run=dry_run)
    assert files_of(path) == before


@pytest.mark.usefixtures("early")
def test_nothing_that_the_table_still_has(tmp_path: Path) -> None:
    path = made("v9", tmp_path)
    written_and_archived(path, 8, archived=False)
    done = serve(open_table(path), EVERY_3).archived
    first = open_table(path).load_timeline().instants[0].requested_time
    assert {i.requested_time for i in active(path).completed} >= {
        i.requested_time for i in open_table(path).load_timeline().completed
    }
    assert done.why == f"instant {first} is the first on the table's active timeline"


@pytest.mark.usefixtures("early")
def test_a_death_at_a_storage_call(path: Path, tmp_path: Path) -> None:
    planned = serve(open_table(path), MetadataOptions(max_delta_commits=100), dry_run=True).archived
    expected = set(planned.instants)
    for one in finished_behind_deaths(path, tmp_path, least=11, step=STEP):
        metadata = open_metadata_table(open_table(one))
        assert {i.requested_time for i in load_history(metadata.storage, metadata.config)} >= expected
        assert not {i.requested_time for i in metadata.load_timeline().instants} & expected


def completed(time: str, action: str = "deltacommit", done: str | None = None) -> Instant:
    return Instant(requested_time=time, action=action, state=State.COMPLETED, completion_time=done or time)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("path", ["v6", deep("v8"), "v9"], indirect=True)
def test_cutoffs_of_the_table_and_of_slices(path: Path) -> None:
    table = open_table(path)
    metadata = open_metadata_table(table)
    data, view = table.load_timeline(), load_metadata_view(metadata, table.config.built_metadata_partitions)
    found = [cutoff.time for cutoff in cutoffs(data, view)]
    assert found[0] == data.completed[0].requested_time
    logs = [log.name.instant for group in view.groups for slice_ in group.slices for log in slice_.logs]
    assert found[1:] == ([min(logs)] if table.layout.has_completion_times else [])


@pytest.mark.usefixtures("early")
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
    assert len(cutoffs(data, two)) == 1
    alone = replace(view, groups=(replace(group, slices=(first,)),))
    assert cutoffs(data, alone)[1].time == "00000000000000001"


@pytest.mark.usefixtures("early")
def test_its_newest_compaction_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what that does not hold, even if the table has archived it."""
    monkeypatch.setattr(retention, "cutoffs", lambda data, view: ())
    monkeypatch.setattr(retention, "archive_waits", lambda data, metadata: None)
    for number in range(5):
        writer(rows(range(6), 10**7 + number)).upsert(str(path))
    before = entries(open_table(path))
    last = max(i.requested_time for i in active(path).completed if i.action == "commit")
    serve(open_table(path), MetadataOptions(max_delta_commits=100))
    assert last in {i.requested_time for i in active(path).completed}
    assert entries(open_table(path)) == before


@pytest.mark.usefixtures("early")
def test_it_waits_for_the_table() -> None:
    layout = LAYOUT_2
    five = Timeline(layout=layout, instants=tuple(completed(f"2026010100000{n}000") for n in range(5)))
    later = Timeline(layout=layout, instants=(completed("20260101000001000"),))
    pending = Instant(requested_time="20260101000000000", action="clean", state=State.REQUESTED)
    assert archive_waits(later, five) is None
    assert archive_waits(Timeline(layout=layout, instants=(pending, *later.instants)), five) is not None
    assert archive_waits(Timeline(layout=layout, instants=()), five) is not None
    assert archive_waits(later, Timeline(layout=layout, instants=five.instants[:4])) is not None


@pytest.mark.usefixtures("early")
def test_what_filled_a_partition_stays_with_the_compactions_before_it() -> None:
    filled = completed("00000000000000001", done="20260103000000000")
    early, late = completed("20260102000000000", "commit"), completed("20260104000000000", "commit")
    timeline = Timeline(layout=LAYOUT_2, instants=(filled, early, late))
    assert shows_gone(timeline, {filled})
    assert not shows_gone(timeline, {filled, early})
    assert not shows_gone(timeline, {early})


# The metadata table's cleans: two slices of each file group stay, and a process that died is followed by another.


CLEAN_STEP = 1 if ALL else 3


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def clean_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """See `to_clean`."""
    return to_clean(request.param, tmp_path)


@pytest.mark.parametrize("clean_path", ["v6", deep("v8"), "v9"], indirect=True)
def test_two_slices_stay(clean_path: Path) -> None:
    before, count = entries(open_table(clean_path)), len(files_of(clean_path))
    done = serve(open_table(clean_path), MetadataOptions(max_delta_commits=100))
    (clean,) = done.cleans
    assert done.compactions == ()
    assert slices(clean_path) == {2}
    assert entries(open_table(clean_path)) == before
    assert len(files_of(clean_path)) <= count - clean.files + 3
    assert clean.files > 0 < clean.bytes
    table = open_metadata_table(open_table(clean_path))
    (instant,) = [i for i in table.load_timeline().instants if i.action == "clean"]
    assert (instant.requested_time, instant.completed) == (clean.instant, True)
    assert clean.instant.endswith("002") or table.layout.has_completion_times
    again = serve(open_table(clean_path), MetadataOptions(max_delta_commits=100))
    assert (again.cleans, again.why_clean) == ((), "nothing was compacted since the last clean")


def test_clean_it_stays_bounded(tmp_path: Path) -> None:
    clean_path = made("v6", tmp_path)
    written(clean_path, 20)
    assert slices(clean_path) <= {2, 3}
    assert len(list((clean_path / ".hoodie/metadata/files").glob("*.hfile"))) <= 3
    assert validate(open_table(clean_path)).differences == ()


def test_a_dry_run_cleans_nothing(clean_path: Path) -> None:
    before = files_of(clean_path)
    planned = serve(open_table(clean_path), EVERY_3, dry_run=True)
    assert files_of(clean_path) == before
    done = serve(open_table(clean_path), EVERY_3)
    assert [(c.files, c.bytes) for c in planned.cleans] == [(c.files, c.bytes) for c in done.cleans]
    assert len(done.compactions) == len(planned.compactions) == 1


@one_of("clean_path", "v6", "v9", "v8", indirect=True)
def test_it_waits_for_three_instants_behind_a_compaction(clean_path: Path) -> None:
    """A reader may still open what it has listed."""
    timeline = open_metadata_table(open_table(clean_path)).load_timeline()
    assert clean_waits(timeline) is None
    for left in (1, 2, 3):
        fewer = Timeline(layout=timeline.layout, instants=timeline.instants[:-left])
        assert clean_waits(fewer) == f"{3 - left} of 3 instants since the last compaction"


def test_on_version_6_its_instant_follows_the_last_delta_commit(tmp_path: Path) -> None:
    timeline = open_metadata_table(open_table(made("v6", tmp_path))).load_timeline()
    last = max(i.requested_time for i in timeline.completed if i.action == "deltacommit")
    assert clean_instant(timeline, lambda: "") == f"{last}002"
    clean = Instant(requested_time=f"{last}002", action="clean", state=State.COMPLETED)
    later = Timeline(layout=timeline.layout, instants=(*timeline.instants, clean))
    assert clean_instant(later, lambda: "") is None


def test_clean_a_death_at_a_storage_call(clean_path: Path, tmp_path: Path) -> None:
    for one in finished_behind_deaths(clean_path, tmp_path, least=4, step=CLEAN_STEP):
        assert slices(one) == {2}
        instants = open_metadata_table(open_table(one)).load_timeline().instants
        assert all(i.completed for i in instants)


def test_a_pending_clean_of_needed_files_is_refused(clean_path: Path) -> None:
    table = open_table(clean_path)
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    newest = view.groups[0].slices[-1]
    names = tuple(file.path.rpartition("/")[2] for file in newest.files)
    plan = CleanPlan(policy="KEEP_LATEST_FILE_VERSIONS", files={newest.partition: names})
    instant = clean_instant(view.timeline, lambda: table.with_timeline(view.timeline).next_time())
    assert instant is not None
    request_clean(metadata, instant, plan)
    before = files_of(clean_path)
    with pytest.raises(ConflictError, match="names files that readers need"):
        serve(table)
    assert files_of(clean_path) == before
    with pytest.raises(ConflictError, match="another process cleans the metadata table"):
        request_clean(metadata, instant, plan)


@one_of("clean_path", "v6", "v9", "v8", indirect=True)
def test_file_groups_that_a_replace_commit_names_are_left_alone(clean_path: Path) -> None:
    """Hudi gives the same names to an index that it builds anew."""
    metadata = open_metadata_table(open_table(clean_path))
    timeline = metadata.load_timeline()
    time = metadata.with_timeline(timeline).next_time()
    done = Instant(
        requested_time=time,
        action="replacecommit",
        state=State.COMPLETED,
        completion_time=metadata.with_timeline(timeline).completion_time(),
    )
    replaced = CommitMetadata(
        operation_type="DELETE_PARTITION", partition_to_replace_file_ids={"files": ("files-0000-0",)}
    )
    metadata.storage.put_if_absent(metadata.instant_path(done), encode(replaced, metadata.layout.encoding))
    found = clean_due(open_table(clean_path))
    assert found is None or "files" not in found.plan.files
