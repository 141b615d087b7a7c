"""The metadata table's cleans: two slices of each file group stay, and a process that died is followed by another."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.clean import CleanPlan
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.section import Section
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.metadata_view import load_metadata_view
from phantombase.timeline.metadata_table.services.clean import clean_due, clean_instant, clean_waits, request_clean
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.validate import validate
from tests.support.compaction_steps import open_table
from tests.support.metadata_services import (
    EVERY_3,
    entries,
    files_of,
    finished_behind_deaths,
    made,
    serve,
    slices,
    to_clean,
    written,
)
from tests.support.selection import ALL, deep
from tests.support.tables import one_of

STEP = 1 if ALL else 3
HELD = Section(purpose="test", lock="", is_held=lambda: True)


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """See `to_clean`."""
    return to_clean(request.param, tmp_path)


@pytest.mark.parametrize("path", ["v6", deep("v8"), "v9"], indirect=True)
def test_two_slices_stay(path: Path) -> None:
    before, count = entries(open_table(path)), len(files_of(path))
    done = serve(open_table(path), MetadataOptions(max_delta_commits=100))
    (clean,) = done.cleans
    assert done.compactions == ()
    assert slices(path) == {2}
    assert entries(open_table(path)) == before
    assert len(files_of(path)) <= count - clean.files + 3
    assert clean.files > 0 < clean.bytes
    table = open_metadata_table(open_table(path))
    (instant,) = [i for i in table.load_timeline().instants if i.action == "clean"]
    assert (instant.requested_time, instant.completed) == (clean.instant, True)
    assert clean.instant.endswith("002") or table.layout.has_completion_times
    again = serve(open_table(path), MetadataOptions(max_delta_commits=100))
    assert (again.cleans, again.why_clean) == ((), "nothing was compacted since the last clean")


def test_it_stays_bounded(tmp_path: Path) -> None:
    path = made("v6", tmp_path)
    written(path, 20)
    assert slices(path) <= {2, 3}
    assert len(list((path / ".hoodie/metadata/files").glob("*.hfile"))) <= 3
    assert validate(open_table(path)).differences == ()


def test_a_dry_run_cleans_nothing(path: Path) -> None:
    before = files_of(path)
    planned = serve(open_table(path), EVERY_3, dry_run=True)
    assert files_of(path) == before
    done = serve(open_table(path), EVERY_3)
    assert [(c.files, c.bytes) for c in planned.cleans] == [(c.files, c.bytes) for c in done.cleans]
    assert len(done.compactions) == len(planned.compactions) == 1


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_it_waits_for_three_instants_behind_a_compaction(path: Path) -> None:
    """A reader may still open what it has listed."""
    timeline = open_metadata_table(open_table(path)).load_timeline()
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


def test_a_death_at_a_storage_call(path: Path, tmp_path: Path) -> None:
    for one in finished_behind_deaths(path, tmp_path, least=4, step=STEP):
        assert slices(one) == {2}
        instants = open_metadata_table(open_table(one)).load_timeline().instants
        assert all(i.completed for i in instants)


def test_a_pending_clean_of_needed_files_is_refused(path: Path) -> None:
    table = open_table(path)
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    newest = view.groups[0].slices[-1]
    names = tuple(file.path.rpartition("/")[2] for file in newest.files)
    plan = CleanPlan(policy="KEEP_LATEST_FILE_VERSIONS", files={newest.partition: names})
    instant = clean_instant(view.timeline, lambda: table.next_time(view.timeline))
    assert instant is not None
    request_clean(metadata, instant, plan, HELD)
    before = files_of(path)
    with pytest.raises(ConflictError, match="names files that readers need"):
        serve(table)
    assert files_of(path) == before
    with pytest.raises(ConflictError, match="another process cleans the metadata table"):
        request_clean(metadata, instant, plan, HELD)


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_file_groups_that_a_replace_commit_names_are_left_alone(path: Path) -> None:
    """Hudi gives the same names to an index that it builds anew."""
    metadata = open_metadata_table(open_table(path))
    timeline = metadata.load_timeline()
    time = metadata.next_time(timeline)
    done = Instant(
        requested_time=time,
        action="replacecommit",
        state=State.COMPLETED,
        completion_time=metadata.completion_time(timeline),
    )
    replaced = CommitMetadata(
        operation_type="DELETE_PARTITION", partition_to_replace_file_ids={"files": ("files-0000-0",)}
    )
    metadata.storage.put_if_absent(metadata.instant_path(done), encode(replaced, metadata.layout.encoding))
    found = clean_due(open_table(path))
    assert found is None or "files" not in found.plan.files
