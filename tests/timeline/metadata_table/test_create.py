"""A new table with a metadata table: as Hudi would have made it, kept by our writes, and made anew behind a death."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phantombase import writer
from phantombase.timeline.format.table_config import load_table_config
from phantombase.timeline.metadata_table.create import make_metadata_table, metadata_config
from phantombase.timeline.metadata_table.listing import MetadataListing
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.read import read_files
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.new_table.create import create_table
from tests.support.failing_storage import Failure, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import unzip_golden
from tests.support.metadata_services import AT_ONCE, files_of, rows, serve
from tests.support.metadata_tables import spec
from tests.support.selection import deep

VERSIONS = (6, deep(8), 9)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_settings_are_those_that_hudi_writes(version: int, tmp_path: Path) -> None:
    table = Table.open(str(unzip_golden(f"v{version}_with_metadata_table", tmp_path)))
    of_hudi = load_table_config(open_metadata_table(table).storage)
    assert metadata_config(table.config).properties == of_hudi.properties


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_kept_from_the_first_write_on(version: int, tmp_path: Path) -> None:
    conf = {"hoodie.metadata.enable": "true", "hoodie.write.table.version": str(version)}
    first = writer(rows(range(6), 1)).table("t").key("id").partition("p").ordering("ts").conf(conf)
    first.upsert(str(tmp_path))
    table = Table.open(str(tmp_path))
    assert table.config.built_metadata_partitions == ("files",)
    for ts in range(2, 5):
        writer(rows(range(ts, 6 + ts), ts)).upsert(str(tmp_path))
        assert validate(table.reload()).differences == ()
        through = Table(table.storage, table.config, MetadataListing())
        assert read_table(through).sort_by("id") == read_table(table.reload()).sort_by("id")
    assert len(serve(table.reload(), AT_ONCE).compactions) == 1
    writer(rows(range(20, 30), 9)).upsert(str(tmp_path))
    assert validate(table.reload()).differences == ()
    assert list(read_files(table.reload()).partitions) == ["north"]


def test_without_the_option_there_is_none(tmp_path: Path) -> None:
    for conf in ({}, {"hoodie.metadata.enable": "false"}):
        path = tmp_path / str(len(conf))
        writer(rows(range(6), 1)).table("t").key("id").partition("p").conf(conf).upsert(str(path))
        assert Table.open(str(path)).config.metadata_partitions == ()
        assert not (path / ".hoodie/metadata").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_death_at_a_storage_call(version: int, tmp_path: Path) -> None:
    """The next process makes the same table, byte for byte."""
    whole = tmp_path / "whole"
    calls = HookedStorage(LocalStorage(str(whole)), lambda call: call.do())
    create_table(calls, spec(version))
    expected = {name: (whole / name).read_bytes() for name in files_of(whole)}
    changing = [n for n, name in enumerate(calls.calls) if Failure.AFTER.can_hit(name)]
    assert len(changing) == 7
    for number in changing:
        died = tmp_path / "died"
        with pytest.raises(ProcessDied):
            create_table(HookedStorage(LocalStorage(str(died)), die_at(number)), spec(version))
        table = create_table(LocalStorage(str(died)), spec(version))
        assert {name: (died / name).read_bytes() for name in files_of(died)} == expected
        assert read_files(table).partitions == {}
        shutil.rmtree(died)


def test_two_at_once_make_the_same(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    config = spec(9).config()
    assert make_metadata_table(storage, config).properties == make_metadata_table(storage, config).properties
    before = files_of(tmp_path)
    create_table(storage, spec(9))
    assert files_of(tmp_path) - before == {".hoodie/hoodie.properties"}
