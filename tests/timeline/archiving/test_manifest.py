"""The manifest that counts, where a process sleeps right before it puts `_version_` and others archive meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.archiving.manifest import HistoryFile, newest_manifest, put_manifest, set_version
from phantombase.timeline.errors import ConflictError, LockError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import FOLDER, held
from tests.support.failing_storage import Call, HookedStorage


def lost() -> None:
    raise LockError("the lock was lost")


def put(storage: Storage, check: Callable[[], None] = held) -> int:
    """The next manifest, by a process of its own; its number."""
    before = newest_manifest(storage, FOLDER)
    file = HistoryFile(name=f"f{before.number}", size=1)
    return put_manifest(storage, FOLDER, before, (*before.files, file), check).number


def counts(path: Path) -> int:
    """What Hudi's readers take."""
    version = path / FOLDER / "_version_"
    if version.exists():
        return int(version.read_text())
    return max(int(f.name.partition("_")[2]) for f in (path / FOLDER).glob("manifest_*"))


def asleep(path: Path, meanwhile: Callable[[], object]) -> Storage:
    """The storage of a process that sleeps before its first put of `_version_`."""
    slept = False

    def hook(call: Call) -> Any:
        nonlocal slept
        if call.name == "put_if_absent" and call.path.endswith("_version_") and not slept:
            slept = True
            meanwhile()
        return call.do()

    return HookedStorage(LocalStorage(str(path)), hook)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with two manifests."""
    storage = LocalStorage(str(tmp_path))
    assert (put(storage), put(storage)) == (1, 2)
    return tmp_path


@pytest.mark.parametrize("removed", [True, False], ids=["while it is missing", "while it is there"])
def test_a_number_that_comes_too_late_does_not_count(path: Path, removed: bool) -> None:
    """Another one archived; a third slept before it removed `_version_`, so that the late number finds none."""
    is_lost = False

    def meanwhile() -> None:
        nonlocal is_lost
        assert put(LocalStorage(str(path))) == 4
        if removed:
            (path / FOLDER / "_version_").unlink()
        is_lost = True

    with pytest.raises(LockError):
        put(asleep(path, meanwhile), lambda: lost() if is_lost else None)
    assert counts(path) == 4
    assert put(LocalStorage(str(path))) == 5
    assert counts(path) == 5


def test_a_late_number_is_replaced(path: Path) -> None:
    """By the process that has the lock, whose put finds it."""
    late = path / FOLDER / "_version_"
    assert put(asleep(path, lambda: late.write_text("1"))) == 3
    assert counts(path) == 3


def test_a_newer_number_stays(path: Path) -> None:
    """It is of a process that has not got the same lock."""
    storage = asleep(path, lambda: put(LocalStorage(str(path))))
    with pytest.raises(ConflictError, match="archives this table"):
        put(storage)
    assert counts(path) == 4


def test_what_counts_already_is_not_touched(path: Path) -> None:
    set_version(LocalStorage(str(path)), FOLDER, 2, lost)
    assert counts(path) == 2
