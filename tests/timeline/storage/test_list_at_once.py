"""Long listings: two that agree, or an error."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from phantombase.timeline.errors import StorageError
from phantombase.timeline.storage import contract, local
from phantombase.timeline.storage.contract import Entry, list_at_once, list_of_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.look import Kept, Look


@dataclass(frozen=True, slots=True)
class Listed(LocalStorage):
    """Gives the listings it is made with, one after the other, the last one again and again."""

    left: list[str]

    @property
    def names_at_once(self) -> int | None:
        return 2

    @staticmethod
    def of(path: Path, *listings: str) -> Listed:
        return Listed(str(path), [*listings])

    def list(self, folder: str) -> list[Entry]:
        names = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return [Entry(name=name, is_folder=False) for name in names]


def _names(entries: list[Entry]) -> str:
    return "".join(e.name for e in entries)


def test_a_short_folder_is_listed_once(tmp_path: Path) -> None:
    assert _names(list_at_once(Listed.of(tmp_path, "ab", "xyz"), "")) == "ab"


def test_a_long_one_until_two_listings_agree(tmp_path: Path) -> None:
    """The first has a hole: `b` and `a` went, and `a` had been seen. Each timeline is listed so."""
    storage = Listed.of(tmp_path, "acd", "cdf", "cdef", "cdef", "xyz")
    assert _names(list_of_table(storage, "")) == "cdef"
    assert storage.left == ["xyz"]


def test_what_comes_behind_all_others_came_later(tmp_path: Path) -> None:
    """A timeline that is written all the time: the first listing was whole when its last part was made."""
    storage = Listed.of(tmp_path, "abc", "abce", "abcef")
    assert _names(list_at_once(storage, "")) == "abc"
    assert storage.left == ["abcef"]


def test_what_comes_before_another_may_have_been_there(tmp_path: Path) -> None:
    assert _names(list_at_once(Listed.of(tmp_path, "abd", "abcd", "abcd"), "")) == "abcd"


def test_not_two_that_are_apart(tmp_path: Path) -> None:
    assert _names(list_at_once(Listed.of(tmp_path, "acd", "cde", "acd", "xyz", "xyz"), "")) == "xyz"


def test_none_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_LISTINGS_MAX_S", -1.0)
    with pytest.raises(StorageError, match="changed whenever it was listed"):
        list_at_once(Listed.of(tmp_path, "abc", "abd", "abe", "abf", "abf"), "")


def test_the_names_of_a_large_local_folder_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come in pieces, too: the first two answers differ."""
    for name in "acde":
        (tmp_path / name).touch()
    answers = [["e", "d", "c", "a"], ["d", "c", "e"], ["c", "d", "e"], ["a", "c", "d", "e"]]
    monkeypatch.setattr(local, "_NAMES_AT_ONCE", 2)
    monkeypatch.setattr("os.listdir", lambda _: answers.pop(0))
    assert _names(LocalStorage(str(tmp_path)).list("")) == "cde"
    assert len(answers) == 1


def test_a_local_folder_that_never_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name has gone before it is looked at."""
    numbers = count()
    monkeypatch.setattr(local, "_LISTINGS_MAX_S", 0.05)
    monkeypatch.setattr("os.listdir", lambda _: [str(next(numbers))])
    with pytest.raises(StorageError, match="changed whenever it was listed"):
        LocalStorage(str(tmp_path)).list("")


def test_a_look_lists_so_too(tmp_path: Path) -> None:
    """What a step asks for later is answered by its first listing."""
    look = Look(Listed.of(tmp_path, "acd", "cde", "cde"), {"timeline"}, Kept())
    assert _names(look.list("timeline")) == "cde"
