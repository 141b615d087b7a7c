"""The metadata table as a table of its own: a folder of a storage keeps the storage's promises."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest

from phantombase.timeline.errors import NotATableError, TableChangedError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.drop import drop_metadata_table
from phantombase.timeline.metadata_table.location import METADATA_FOLDER, Below, open_metadata_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.storage_contract import BetweenProcesses, OnFileSystems, Opener, StorageContract


def below(path: Path) -> Storage:
    """A folder two levels down."""
    return Below(LocalStorage(str(path)), "some/folder")


class TestBelow(StorageContract, BetweenProcesses, OnFileSystems):
    """The whole contract, one folder down."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """An empty storage."""
        (tmp_path / "some/folder").mkdir(parents=True)
        return below(tmp_path)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        """Makes further handles on the same place."""
        return partial(below, tmp_path)

    def test_nothing_outside_the_folder(self, storage: Storage, tmp_path: Path) -> None:
        """Paths are below the folder, which is its base."""
        storage.put_if_absent("d/x", b"1")
        assert (tmp_path / "some/folder/d/x").read_bytes() == b"1"
        assert storage.base_path == f"{tmp_path}/some/folder"
        assert pickle.loads(pickle.dumps(storage)) == storage


@pytest.mark.parametrize("version", ["v6", "v8", "v9"])
def test_open(version: str, tmp_path: Path) -> None:
    """Its settings are its own."""
    table = Table.open(str(unzip_golden(f"{version}_with_metadata_table", tmp_path)))
    metadata = open_metadata_table(table)
    assert metadata.config.name == f"{table.config.name}_metadata"
    assert metadata.config.version == table.config.version
    assert metadata.config.record_key_fields == ("key",)
    assert metadata.storage.base_path == f"{table.storage.base_path}/{METADATA_FOLDER}"
    assert metadata.load_timeline().completed_writes.keys() >= table.load_timeline().completed_writes.keys()


def test_a_table_without_one(tmp_path: Path) -> None:
    """It is said where it was looked for."""
    table = Table.open(str(unzip_golden("v9_plain", tmp_path)))
    with pytest.raises(NotATableError, match=METADATA_FOLDER):
        open_metadata_table(table)


def test_one_that_is_taken_out_meanwhile(tmp_path: Path) -> None:
    """The reader, which knows older settings, begins again."""
    table = Table.open(str(unzip_golden("v9_with_metadata_table", tmp_path)))
    drop_metadata_table(table, ProcessLock("drop"))
    with pytest.raises(TableChangedError):
        open_metadata_table(table)
