"""A look at a storage: what it asks for, what it remembers, and what it forgets."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import md5
from pathlib import Path

import pytest

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.storage.contract import Entry, Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.snapshot import ContentCache, SnapshotStorage, list_ahead, without_snapshot
from tests.support.failing_storage import Call, HookedStorage
from tests.world.simulation.object_memory import ObjectMemory


class Counted:
    """A storage, and the calls that reach it."""

    def __init__(self, path: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.inner = LocalStorage(str(path))
        self.storage = HookedStorage(self.inner, self._hook)

    def _hook(self, call: Call) -> object:
        self.calls.append((call.name, call.path))
        found = call.do()
        # As an object store does: with a tag for the content.
        return [_tagged(e, self.inner, call.path) for e in found] if call.name == "list" else found

    def snapshot(self, *whole: str, kept: ContentCache | None = None) -> SnapshotStorage:
        """A new look at it."""
        self.calls.clear()
        return SnapshotStorage(self.storage, whole, kept or ContentCache())


def _tagged(entry: Entry, storage: Storage, folder: str) -> Entry:
    return entry if entry.is_folder else replace(entry, tag=storage.read(f"{folder}/{entry.name}").decode())


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    counted = Counted(tmp_path)
    counted.inner.put_if_absent("a/one", b"1")
    counted.inner.put_if_absent("a/b/two", b"2")
    return counted


def test_a_folder_is_listed_once_and_answers_for_its_names(counted: Counted) -> None:
    snapshot = counted.snapshot()
    assert snapshot.list("a") == snapshot.list("a")
    assert (snapshot.find("a/one"), snapshot.find("a/none"), snapshot.find("a/none/at/all")) == (
        snapshot.list("a")[1],
        None,
        None,
    )
    assert counted.calls == [("list", "a")]


def test_a_folder_that_is_not_there_is_asked_for_once(counted: Counted) -> None:
    snapshot = counted.snapshot()
    for _ in range(2):
        with pytest.raises(MissingFileError):
            snapshot.list("c")
    assert snapshot.find("c/d") is None
    assert counted.calls == [("list", "c")]


def test_whole_folders_are_listed_others_are_asked_for_a_name(counted: Counted) -> None:
    snapshot = counted.snapshot("a")
    assert (snapshot.find("a/one") is not None, snapshot.find("a/none")) == (True, None)
    assert snapshot.find("x/y") is None
    assert counted.calls == [("list", "a"), ("find", "x/y")]


def test_what_it_saw_stays_as_it_was(counted: Counted) -> None:
    """Of other processes; a new snapshot shows what they did."""
    snapshot = counted.snapshot()
    snapshot.list("a")
    counted.inner.put_if_absent("a/later", b"3")
    counted.inner.delete("a/one")
    assert [e.name for e in snapshot.list("a")] == ["b", "one"]
    assert [e.name for e in counted.snapshot().list("a")] == ["b", "later"]


def test_what_this_process_does_is_seen(counted: Counted) -> None:
    snapshot = counted.snapshot()
    snapshot.list("a")
    assert snapshot.read("a/one") == b"1"
    assert snapshot.put_if_absent("a/new", b"3")
    assert snapshot.find("a/new") is not None
    snapshot.delete("a/one")
    assert snapshot.find("a/one") is None
    with pytest.raises(MissingFileError):
        snapshot.read("a/one")
    assert [e.name for e in snapshot.list("a")] == ["b", "new"]
    snapshot.delete_all(["a/new"])
    assert [e.name for e in snapshot.list("a")] == ["b"]
    snapshot.delete_folder("a")
    assert snapshot.find("a") is None


def test_a_new_folder_is_seen_in_those_above(counted: Counted) -> None:
    snapshot = counted.snapshot()
    assert snapshot.list("a")
    snapshot.put_if_absent("a/c/d/three", b"3")
    assert snapshot.find("a/c") is not None
    assert [e.name for e in snapshot.list("a")] == ["b", "c", "one"]


def test_a_folder_that_was_seen_is_not_listed_again_for_what_is_put_below_it(counted: Counted) -> None:
    """But for what is deleted there: with its last file a folder goes on an object store."""
    snapshot = counted.snapshot()
    assert [e.name for e in snapshot.list("a")] == ["b", "one"]
    snapshot.put_if_absent("a/b/three", b"3")
    snapshot.overwrite("a/b/three", b"4")
    snapshot.list("a")
    assert [name for name, _ in counted.calls].count("list") == 1
    snapshot.put_if_absent("a/four", b"4")
    assert [e.name for e in snapshot.list("a")] == ["b", "four", "one"]
    snapshot.delete("a/b/three")
    snapshot.list("a")
    assert [name for name, _ in counted.calls].count("list") == 3


def test_a_listing_with_the_sum_of_what_was_put_proves_that_it_is_there(tmp_path: Path) -> None:
    """What was refused is not taken for it."""
    inner, calls = LocalStorage(str(tmp_path)), list[str]()

    def hook(call: Call) -> object:
        calls.append(call.name)
        found = call.do()
        if call.name != "list":
            return found
        return [replace(e, tag=md5(inner.read(f"{call.path}/{e.name}")).hexdigest()) for e in found]

    kept = ContentCache()
    snapshot = SnapshotStorage(HookedStorage(inner, hook), ["a"], kept)
    assert snapshot.put_if_absent("a/one", b"1")
    assert not snapshot.put_if_absent("a/one", b"2")
    assert SnapshotStorage(HookedStorage(inner, hook), ["a"], kept).read("a/one") == b"1"
    assert "read" not in calls
    assert kept.find("a/one", md5(b"2").hexdigest()) is None


def test_listings_ahead_answer_for_folders_and_records(tmp_path: Path) -> None:
    """On an object store; what is put among the records is seen."""
    inner, calls = ObjectMemory(lambda: 0), list[tuple[str, str]]()
    for path in ("a/one", f"{RECORDS}/1/1/open", f"{RECORDS}/tmp/x"):
        inner.put_if_absent(path, b"1")

    def hook(call: Call) -> object:
        calls.append((call.name, call.path))
        return call.do()

    snapshot = SnapshotStorage(HookedStorage(inner, hook), ["a"], ContentCache())
    list_ahead(snapshot, ["a", "none", "a"], records=True)
    calls.clear()
    assert (snapshot.find("a/one") is not None, snapshot.find("none/x")) == (True, None)
    assert snapshot.find(f"{RECORDS}/1/1/open") is not None
    assert snapshot.put_if_absent(f"{RECORDS}/tmp/y", b"1")
    assert snapshot.find(f"{RECORDS}/1/1/outcome") is None
    assert calls == [("put_if_absent", f"{RECORDS}/tmp/y")]
    assert snapshot.put_if_absent(f"{RECORDS}/1/1/outcome", b"1")
    assert snapshot.find(f"{RECORDS}/1/1/outcome") is not None


def test_contents_are_kept_by_their_tag(counted: Counted) -> None:
    """Over looks, as long as the listing shows the same tag."""
    kept = ContentCache()
    assert counted.snapshot("a", kept=kept).read("a/one") == b"1"
    assert counted.snapshot("a", kept=kept).read("a/one") == b"1"
    assert counted.calls == [("list", "a")]
    counted.inner.overwrite("a/one", b"other")
    assert counted.snapshot("a", kept=kept).read("a/one") == b"other"


def test_what_a_listing_does_not_show_is_read_all_the_same(counted: Counted) -> None:
    """Settings are missing for a moment while they are replaced."""
    snapshot = counted.snapshot("a")
    assert snapshot.find("a/late") is None
    counted.inner.put_if_absent("a/late", b"3")
    assert snapshot.read("a/late") == b"3"


def test_few_contents_are_kept() -> None:
    kept = ContentCache()
    for n in range(40):
        kept.keep("p", str(n), bytes(1 << 20))
    kept.keep("p", "large", bytes((1 << 20) + 1))
    assert [n for n in range(40) if kept.find("p", str(n)) is not None] == list(range(24, 40))
    assert kept.find("p", "large") is None


def test_others_get_the_storage_itself(counted: Counted) -> None:
    snapshot = SnapshotStorage(counted.inner, (), ContentCache())
    assert pickle.loads(pickle.dumps(snapshot)) == counted.inner
    assert without_snapshot(snapshot) is counted.inner
    assert SnapshotStorage(snapshot, (), ContentCache()).storage is counted.inner
    list_ahead(counted.inner, ["a"])


def test_a_content_that_was_replaced_after_the_listing_is_not_kept_under_its_tag(tmp_path: Path) -> None:
    """An MD5 sum comes back with the content: then the content of in between must not be what is read."""
    inner = LocalStorage(str(tmp_path))
    inner.put_if_absent("a/one", b"old")

    def hook(call: Call) -> object:
        found = call.do()
        if call.name != "list":
            return found
        return [replace(e, tag=md5(inner.read(f"{call.path}/{e.name}")).hexdigest()) for e in found]

    kept = ContentCache()
    first = SnapshotStorage(HookedStorage(inner, hook), ["a"], kept)
    first.list("a")
    inner.overwrite("a/one", b"new")
    assert first.read("a/one") == b"new"
    inner.overwrite("a/one", b"old")
    assert SnapshotStorage(HookedStorage(inner, hook), ["a"], kept).read("a/one") == b"old"


def test_a_content_that_was_read_before_the_listing_is_not_kept_under_its_tag() -> None:
    """A tag of Azure is no sum of the content, which was replaced between the two answers."""
    inner, was_read = ObjectMemory(lambda: 0), threading.Event()
    inner.put_if_absent("a/one", b"old")
    tags = {b"old": "0x8DC0000000000A", b"new": "0x8DC0000000000B"}

    def hook(call: Call) -> object:
        if call.name == "list":
            assert was_read.wait(60)
            inner.overwrite("a/one", b"new")
            return [replace(e, tag=tags[inner.read(f"{call.path}/{e.name}")]) for e in call.do()]
        found = call.do()
        was_read.set()
        return found

    kept, objects = ContentCache(), HookedStorage(inner, hook)
    list_ahead(SnapshotStorage(objects, ["a"], kept), ["a"], reads=["a/one"])
    assert SnapshotStorage(objects, ["a"], kept).read("a/one") == b"new"


def test_a_table_with_a_look_travels_without_what_it_kept(tmp_path: Path) -> None:
    kept = ContentCache()
    kept.keep("a", "tag", b"1")
    assert pickle.loads(pickle.dumps(kept)).find("a", "tag") is None


class _Names(list[Entry]):
    """Counts how often its entries are gone through."""

    times = 0

    def __iter__(self) -> Iterator[Entry]:
        type(self).times += 1
        return super().__iter__()


def test_names_of_a_long_listing_are_looked_up(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeline of 10,000 pending plans is asked for some names of each."""
    listed = _Names(Entry(name=f"{number}", is_folder=False) for number in range(1000))
    snapshot = counted.snapshot("a")
    monkeypatch.setattr(snapshot.storage, "list", lambda _folder: listed)
    found = [snapshot.find(f"a/{number}") for number in range(1500)]
    assert [entry is not None for entry in found] == [number < 1000 for number in range(1500)]
    assert _Names.times <= 2


def test_records_of_many_instants_are_sorted_once() -> None:
    storage = ObjectMemory(lambda: 0)
    for number in range(50):
        storage.put_if_absent(f"{RECORDS}/{number}/1/open", b"")
    snapshot = SnapshotStorage(storage, (), ContentCache())
    assert snapshot._all_records() is snapshot._all_records()
    assert [e.name for e in snapshot.list(f"{RECORDS}/7")] == ["1"]
    assert snapshot.find(f"{RECORDS}/7") == Entry(name="7", is_folder=True)
    assert snapshot.find(f"{RECORDS}/7/1/none") is None
    snapshot.put_if_absent(f"{RECORDS}/7/1/outcome", b"")
    assert [e.name for e in snapshot.list(f"{RECORDS}/7/1")] == ["open", "outcome"]


def test_what_was_replaced_is_seen_in_its_folder(counted: Counted) -> None:
    snapshot = counted.snapshot("a")
    assert snapshot.find("a/one") is not None
    snapshot.overwrite("a/one", b"longer")
    found = snapshot.find("a/one")
    assert found is not None
    assert found.size == len(b"longer")
