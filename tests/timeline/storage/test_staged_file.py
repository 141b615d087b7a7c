"""Staged files: whole or not there, durable, and placed only as what they were staged as."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.errors import MissingFileError, StorageError
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import place_staged, staged_output
from tests.support.failing_storage import Call, HookedStorage

FINAL = "day=1/final.parquet"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A table with one staged file of five bytes."""
    storage = LocalStorage(str(tmp_path))
    with staged_output(storage, "staged") as file:
        file.write(b"bytes")
    return storage


def at_place(storage: LocalStorage, instead: Callable[[Call], Any]) -> HookedStorage:
    """A storage whose `place` does something else."""
    return HookedStorage(storage, lambda call: instead(call) if call.name == "place" else call.do())


def test_it_is_durable_before_it_is_closed(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut behind the decision must not leave a final name without its bytes."""
    synced: list[int] = []

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", note)
    with staged_output(storage, "another") as file:
        file.write(b"twelve bytes")
        assert synced == []
    assert synced[0] == 12
    assert len(synced) == 2  # the folder too


@pytest.mark.parametrize("error", [KeyError("books"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_half_written_one(storage: LocalStorage, error: BaseException) -> None:
    """Whatever ends it; a full disk is an error of the storage."""
    kind = StorageError if isinstance(error, OSError) else type(error)

    def write() -> None:
        with staged_output(storage, "half") as file:
            file.write(b"half")
            raise error

    with pytest.raises(kind):
        write()
    assert storage.find("half") is None


def test_it_gets_its_final_name_once(storage: LocalStorage) -> None:
    """Found there, the staged copy is not asked for: it may be gone, and making it again costs a merge."""
    calls: list[tuple[str, str]] = []

    def note(call: Call) -> Any:
        calls.append((call.name, call.path))
        return call.do()

    place_staged(storage, "staged", FINAL, 5)
    storage.delete("staged")
    place_staged(HookedStorage(storage, note), "nowhere", FINAL, 5, lambda: pytest.fail("made anew"))
    assert storage.read(FINAL) == b"bytes"
    assert set(calls) == {("find", FINAL)}


def test_a_staged_file_that_another_process_placed_meanwhile_is_not_made_anew(storage: LocalStorage) -> None:
    """Placing may take it away: between the looks at its two names."""

    def hook(call: Call) -> Any:
        if (call.name, call.path) == ("find", "staged"):
            storage.place("staged", FINAL)
            storage.delete("staged")
        return call.do()

    place_staged(HookedStorage(storage, hook), "staged", FINAL, 5, lambda: pytest.fail("made anew"))
    assert storage.read(FINAL) == b"bytes"


def test_a_file_that_is_lost_under_both_names_is_made_anew(storage: LocalStorage) -> None:
    place_staged(storage, "nowhere", FINAL, 5, lambda: "staged")
    assert storage.read(FINAL) == b"bytes"


def test_what_took_effect_and_failed_is_done(storage: LocalStorage) -> None:
    def fail(call: Call) -> None:
        call.do()
        raise StorageError("injected")

    place_staged(at_place(storage, fail), "staged", FINAL, 5)
    assert storage.read(FINAL) == b"bytes"


def test_what_took_no_effect_is_the_error_it_was(storage: LocalStorage) -> None:
    """A staged copy that is gone is not a full disk."""
    with pytest.raises(MissingFileError):
        place_staged(storage, "nowhere", FINAL, 5)


@pytest.mark.parametrize("done", [True, False])
def test_a_call_that_lied_is_an_error(storage: LocalStorage, done: bool) -> None:
    """Nothing is there, whatever the call answered."""
    with pytest.raises(StorageError, match=r"differs from the staged one.*nothing"):
        place_staged(at_place(storage, lambda call: done), "staged", FINAL, 5)


@pytest.mark.parametrize("there", [b"", b"byte", b"bytes and more"])
def test_another_file_under_the_final_name_is_an_error(storage: LocalStorage, there: bytes) -> None:
    """Half of it, or somebody else's: never taken for the staged one, never replaced."""
    storage.put_if_absent(FINAL, there)
    with pytest.raises(StorageError, match="differs from the staged one"):
        place_staged(storage, "staged", FINAL, 5)
    assert storage.read(FINAL) == there
