"""What every storage must keep (`StorageContract`), and the local one's own promises.

Another storage is put under the contract by a subclass with its own `storage` fixture; `opener` makes a second
handle on the same place, also from another process."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from phantombase.timeline.errors import StorageError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.storage_contract import BetweenProcesses, OnFileSystems, Opener, StorageContract


class TestLocalStorage(StorageContract, BetweenProcesses, OnFileSystems):
    """The local file system."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(str(tmp_path))

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Reopen(str(tmp_path))

    def test_pickled(self, storage: Storage) -> None:
        """Spark tasks get a copy that sees the same files."""
        copy = pickle.loads(pickle.dumps(storage))
        assert copy == storage
        assert copy.put_if_absent("x", b"1")
        assert storage.read("x") == b"1"

    def test_overwrite_removes_the_checksum_side_file(self, storage: Storage, tmp_path: Path) -> None:
        """Hadoop's .crc of the old bytes would fail every Hudi reader; other files' stay."""
        storage.overwrite("d/x", b"old")
        for name in (".x.crc", ".y.crc"):
            (tmp_path / "d" / name).write_bytes(b"crc")
        storage.overwrite("d/x", b"new")
        assert sorted(os.listdir(tmp_path / "d")) == [".y.crc", "x"]

    def test_delete_removes_the_checksum_side_file(self, storage: Storage, tmp_path: Path) -> None:
        """Nothing is left that describes a file which is gone."""
        storage.put_if_absent("d/x", b"")
        (tmp_path / "d" / ".x.crc").write_bytes(b"crc")
        storage.delete("d/x")
        assert os.listdir(tmp_path / "d") == []

    @pytest.mark.parametrize("call", ["fsync", "link"])
    def test_a_failed_put_leaves_nothing(self, storage: Storage, tmp_path: Path, call: str) -> None:
        """A full or broken disk is a StorageError; neither the object nor its temporary file stay."""
        (tmp_path / "d").mkdir()
        with (
            mock.patch.object(os, call, side_effect=OSError(28, "No space left on device")),
            pytest.raises(StorageError),
        ):
            storage.put_if_absent("d/x", b"data")
        assert os.listdir(tmp_path / "d") == []

    def test_no_hard_links(self, storage: Storage) -> None:
        """A file system without them is refused by name, not imitated."""
        with (
            mock.patch.object(os, "link", side_effect=PermissionError(1, "Operation not permitted")),
            pytest.raises(StorageError, match="hard links"),
        ):
            storage.put_if_absent("x", b"data")

    def test_bytes_are_synced_before_they_are_named(self, storage: Storage) -> None:
        """fsync of the file, then the link, then fsync of the folder: a power cut leaves all or nothing."""
        calls: list[str] = []

        def noted(name: str) -> Any:
            real = getattr(os, name)

            def call(*arguments: Any) -> Any:
                calls.append(name)
                return real(*arguments)

            return mock.patch.object(os, name, call)

        with noted("fsync"), noted("link"), noted("replace"):
            storage.put_if_absent("x", b"data")
            assert calls == ["fsync", "link", "fsync"]
            calls.clear()
            storage.overwrite("x", b"new")
            assert calls == ["fsync", "replace", "fsync"]

    def test_a_file_gone_while_listing(self, storage: Storage, tmp_path: Path) -> None:
        """A name that vanishes between the listing and the look at it is as if listed a moment later."""
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "dangling").symlink_to(tmp_path / "missing")
        storage.put_if_absent("d/x", b"")
        assert [e.name for e in storage.list("d")] == ["x"]


class Reopen:
    """Opens a local storage; a class, so that it can be sent to another process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self) -> Storage:
        return LocalStorage(self._path)
