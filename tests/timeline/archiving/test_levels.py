"""What is removed from the history when its files were merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.archiving.levels import _forget_old
from phantombase.timeline.archiving.manifest import HistoryFile, newest_manifest, put_manifest
from phantombase.timeline.errors import LockError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import FOLDER, held
from tests.support.failing_storage import Call, HookedStorage

LEFT = "20260101000000000_20260102000000000_0.parquet"
"""A dead archiver placed it, and died before a manifest named it."""


def named(storage: Storage, *names: str) -> None:
    """The next manifest: of these files."""
    files = tuple(HistoryFile(name=name, size=4) for name in names)
    put_manifest(storage, FOLDER, newest_manifest(storage, FOLDER), files, held)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage = LocalStorage(str(tmp_path))
    for number in range(1, 7):
        name = f"2025010{number}000000000_2025010{number}000000000_0.parquet"
        named(storage, name)
        storage.put_if_absent(f"{FOLDER}/{name}", b"rows")
    storage.put_if_absent(f"{FOLDER}/{LEFT}", b"left")
    return tmp_path


def test_what_no_manifest_left_names_goes(path: Path) -> None:
    storage = LocalStorage(str(path))
    _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1, held)
    assert sorted(f.name[:8] for f in (path / FOLDER).glob("*.parquet")) == [f"2025010{n}" for n in range(3, 7)]
    assert len(list((path / FOLDER).glob("manifest_*"))) == 4
    assert not [f for f in (path / ".hoodie").rglob("*.parquet") if f.parent != path / FOLDER]


def test_a_torn_manifest_that_a_writer_passed_over_is_no_error(path: Path) -> None:
    """Or archiving fails once behind its work, and says that the history cannot be read."""
    storage = LocalStorage(str(path))
    (path / FOLDER / "manifest_7").write_text('{"fil')
    named(storage, "20250106000000000_20250106000000000_0.parquet")
    assert newest_manifest(storage, FOLDER).number == 8
    _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1, held)
    assert sorted(f.name[:8] for f in (path / FOLDER).glob("*.parquet")) == [f"2025010{n}" for n in (5, 6)]


def test_a_leftover_that_another_archiver_named_meanwhile_stays(path: Path) -> None:
    """It archived the same instants while this process slept right before it removed the file."""
    slept = False

    def hook(call: Call) -> Any:
        nonlocal slept
        if call.name.startswith("delete") and LEFT in str(call.path) and not slept:
            slept = True
            named(LocalStorage(str(path)), LEFT)
        return call.do()

    def check() -> None:
        if slept:
            raise LockError("the lock was lost")

    storage = HookedStorage(LocalStorage(str(path)), hook)
    with pytest.raises(LockError):
        _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1, check)
    assert slept
    assert (path / FOLDER / LEFT).read_bytes() == b"left"


def test_a_leftover_that_is_gone_is_no_error(path: Path) -> None:
    def hook(call: Call) -> Any:
        if call.name == "place":
            (path / FOLDER / LEFT).unlink()
        return call.do()

    storage = HookedStorage(LocalStorage(str(path)), hook)
    _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1, held)
    assert not (path / FOLDER / LEFT).exists()
