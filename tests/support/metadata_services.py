"""The metadata table's services on tables of real Hudi."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.commit import commit_records, newest_schema
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.metadata_view import load_metadata_view
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.metadata_table.records.encode import encoder
from phantombase.timeline.metadata_table.records.files import files_records
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.services.serve import MetadataServed, serve_metadata
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, Failure, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep
from tests.support.tables import template

AT_ONCE = MetadataOptions(max_delta_commits=1)


def rows(ids: range, ts: int) -> pa.Table:
    """Some of the table's columns."""
    return pa.table({"id": [f"k{i:03d}" for i in ids], "p": ["north"] * len(ids), "ts": [ts] * len(ids)})


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A golden table with the metadata table on, and no compaction pending: on version 6 it would have to wait."""
    found = unzip_golden(f"{request.param}_with_metadata_table", tmp_path)
    run_all(open_table(found))
    return found


def serve(table: Table, options: MetadataOptions = AT_ONCE, *, dry_run: bool = False) -> MetadataServed:
    return serve_metadata(table, options, ProcessLock("x"), dry_run=dry_run)


def entries(table: Table) -> dict[str, list[str]]:
    """Everything that the metadata table says."""
    return {p: sorted(map(repr, read_entries(table, p))) for p in table.config.built_metadata_partitions}


def files_of(path: Path) -> set[str]:
    return {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}


CASE = "with_metadata_table"
EVERY_3 = MetadataOptions(max_delta_commits=3)


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


FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


def left_behind(path: Path, puts: int, instant: str = "") -> str:
    """A process that lost the lock has put the first files of an instant, one that the table does not know."""
    table = open_table(path)
    instant = instant or table.next_time(table.load_timeline(), open_metadata_table(table).load_timeline().used_times())
    held = True

    def hook(call: Call) -> object:
        nonlocal held, puts
        if call.name == "put_if_absent":
            puts -= 1
            held = puts > 0
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    schema = newest_schema(open_metadata_table(table))
    records = {"files": [encoder(schema)(one) for one in files_records({"north": {"never.parquet": 1}})]}
    section = Section(purpose="write", lock="lost", is_held=lambda: held)
    with suppress(PhantombaseError):
        commit_records(table, instant, records, schema, section)
    return instant


def written_and_archived(path: Path, count: int, *, archived: bool = True) -> None:
    """`count` more writes; the metadata table is compacted and cleaned, and the table is archived."""
    for number in range(count):
        writer(rows(range(6), 10**6 + number)).upsert(str(path))
        serve(open_table(path), EVERY_3)
        if archived:
            archive_table(open_table(path), FEW, ProcessLock("x"))
