"""The metadata table's cleans: two slices of each file group stay, and a process that died is followed by another."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from phantombase import writer
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
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Failure, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import unzip_golden
from tests.support.selection import ALL, deep
from tests.support.tables import one_of, template
from tests.timeline.metadata_table.services.test_serve import entries, files_of, rows, serve

CASE = "with_metadata_table"
STEP = 1 if ALL else 3
EVERY_3 = MetadataOptions(max_delta_commits=3)
HELD = Section(purpose="test", lock="", is_held=lambda: True)


def written(path: Path, count: int) -> None:
    """`count` more delta commits, with the services behind each."""
    for number in range(count):
        writer(rows(range(6), 10**6 + number)).upsert(str(path))
        serve(open_table(path), EVERY_3)


def slices(path: Path) -> set[int]:
    """How many slices file groups of the metadata table have."""
    table = open_table(path)
    view = load_metadata_view(open_metadata_table(table), table.config.built_metadata_partitions)
    return {len(group.slices) for group in view.groups}


def made(version: str, into: Path) -> Path:
    path = unzip_golden(f"{version}_{CASE}", into)
    run_all(open_table(path))
    return path


def to_clean(version: str, into: Path) -> Path:
    """A table whose file groups of the metadata table have three slices, and a clean of them is due."""

    def make(folder: Path) -> None:
        path = made(version, folder)
        serve(open_table(path))
        written(path, 3)
        for number in range(3):
            writer(rows(range(6), 10 + number)).upsert(str(path))
        assert slices(path) == {3}

    return template(("to clean", version), into / "with", make) / CASE


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


def finished_behind_deaths(path: Path, tmp_path: Path, *, least: int, step: int) -> Iterator[Path]:
    """Copies of a table whose services died at a storage call, of which there are so many at least, and ran again.

    One at once, one behind a write. Readers see the same all the time.
    """
    before, options = entries(open_table(path)), MetadataOptions(max_delta_commits=100)
    calls = HookedStorage(LocalStorage(str(shutil.copytree(path, tmp_path / "whole"))), lambda call: call.do())
    serve(open_table(tmp_path / "whole", calls), options)
    changing = [n for n, name in enumerate(calls.calls) if Failure.AFTER.can_hit(name) or name == "delete_all"]
    assert len(changing) >= least
    for number in changing[::step] + changing[-1:]:
        copied = shutil.copytree(path, tmp_path / "died")
        with pytest.raises(ProcessDied):
            serve(open_table(copied, HookedStorage(LocalStorage(str(copied)), die_at(number))), options)
        assert entries(open_table(copied)) == before, calls.calls[number]
        between = shutil.copytree(copied, tmp_path / "between")
        serve(open_table(copied), options)
        assert entries(open_table(copied)) == before
        writer(rows(range(6), 10**7)).upsert(str(between))
        serve(open_table(between), options)
        for one in (copied, between):
            assert validate(open_table(one)).differences == ()
            yield one
            shutil.rmtree(one)


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
