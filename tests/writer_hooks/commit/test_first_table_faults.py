"""A first write that fails at any call of its storage: it has written, or nothing is there that was not before."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import Writer, read, writer
from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError, StorageError, UnknownCommitError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import full_path
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.write import write as of_write
from phantombase.writer_hooks.write import writer as of_writer
from tests.support.failing_storage import Call, Hook, HookedStorage
from tests.support.interleaving import serial_pools
from tests.support.selection import ALL, deep

ADDING = ("put_if_absent", "open_output", "overwrite", "place", "make_folder")
OURS = pa.table({"id": ["a", "b"], "zone": ["x", "y/z"], "ts": [1, 2]})
OTHERS = pa.table({"id": ["c"], "zone": ["x"], "ts": [3]})
KINDS: dict[str, Callable[[Writer], Writer]] = {
    "metadata table": lambda to: to.table("t", metadata_table=True).partition("zone"),
    "version 6": lambda to: to.table("t", version=6).buckets(1).partition("zone"),
    "one folder": lambda to: to.table("t"),
}


def upsert(path: Path, kind: str, rows: pa.Table = OURS) -> None:
    KINDS[kind](writer(rows)).key("id").ordering("ts").upsert(path)


def stream(path: Path, kind: str) -> None:
    KINDS[kind](writer()).key("id").ordering("ts").foreach_batch(path)(OURS, 0)


def ids(path: Path) -> list[str]:
    return sorted(read(path).to_arrow()["id"].to_pylist())


def full_disk(number: int, _: int) -> Hook:
    """From that call on nothing can be added."""

    def hook(call: Call) -> Any:
        if call.number >= number and call.name in ADDING:
            raise StorageError("storage failed", path=call.path, found="[Errno 28] No space left on device")
        return call.do()

    return hook


def once(error: type[BaseException], *, after: bool) -> Callable[[int, int], Hook]:
    def at(number: int, _: int) -> Hook:
        def hook(call: Call) -> Any:
            if call.number != number:
                return call.do()
            if after:
                call.do()
            raise error("stop")

        return hook

    return at


HOWS = {
    "full disk": full_disk,
    "denied": once(StorageError, after=False),
    "no answer": once(StorageError, after=True),
    "Ctrl-C": once(KeyboardInterrupt, after=False),
}


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Hook], HookedStorage]:
    """Makes writes of a path use a storage with a hook."""
    serial_pools(monkeypatch)

    def use(path: Path, hook: Hook) -> HookedStorage:
        storage = HookedStorage(LocalStorage(str(path)), hook)

        def opened(url: str, options: object = None) -> Storage:
            return storage if full_path(url) == str(path) else LocalStorage(full_path(url))

        monkeypatch.setattr(of_writer, "open_storage", opened)
        return storage

    return use


def numbers(hooked: Callable[[Path, Hook], HookedStorage], path: Path, do: Callable[[Path], object]) -> Iterator[int]:
    """The first call of each kind; all of them in a run of all tests."""
    seen = dict[str, int]()

    def hook(call: Call) -> Any:
        kind = f"{call.name} {re.sub(r'[0-9a-f-]{8,}|[0-9]+', '#', call.path)}"
        seen.setdefault(f"{call.number}" if ALL else kind, call.number)
        return call.do()

    hooked(path, hook)
    do(path)
    shutil.rmtree(path)
    return iter(seen.values())


@pytest.mark.parametrize(
    ("do", "kind"),
    [(upsert, "metadata table"), deep(upsert, "version 6"), deep(upsert, "one folder"), deep(stream, "one folder")],
)
def test_a_first_write_that_fails_leaves_nothing(
    do: Callable[[Path, str], None], kind: str, hooked: Callable[[Path, Hook], HookedStorage], tmp_path: Path
) -> None:
    lake = tmp_path / "new" / "lake"
    for number in numbers(hooked, lake / "t", lambda path: do(path, kind)):
        hows = list(HOWS.items())
        for how, hook in hows if ALL else hows[number % len(hows) :][:1]:
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            hooked(lake / "t", hook(number, 0))
            error: BaseException | None = None
            try:
                do(lake / "t", kind)
            except (PhantombaseError, KeyboardInterrupt) as raised:
                error = raised
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            if error is None or (files and isinstance(error, KeyboardInterrupt | UnknownCommitError)):
                # What is interrupted behind the commit is written.
                assert _is_own(files) or ids(lake / "t") == ["a", "b"], (number, how)
            else:  # a file that cannot be deleted stays, as one that another process is about to use would
                assert not list(tmp_path.iterdir()) or (how != "full disk" and _is_own(files)), (number, how, error)


def _is_own(files: list[Path]) -> bool:
    return len(files) == 1 and files[0].parent.name == "tmp"


def test_another_first_write_at_any_moment_keeps_its_rows(
    hooked: Callable[[Path, Hook], HookedStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over before the call that fails, unless somebody is under the lock; its table stays then."""
    kind = "one folder"

    def impatient(storage: Storage, *_: object, **__: object) -> ProcessLock:
        return ProcessLock(storage.location, timeout_s=0.0)

    monkeypatch.setattr(of_writer, "table_lock", impatient)
    monkeypatch.setattr(of_write, "table_lock", impatient)
    both = count()
    for number in numbers(hooked, tmp_path / "t", lambda path: upsert(path, kind)):
        path, done = tmp_path / f"t{number}", list[str]()

        def hook(call: Call, number: int = number, path: Path = path, done: list[str] = done) -> Any:
            if call.number != number:
                return call.do()
            hooked(path, lambda other: other.do())
            with suppress(LockError, ConflictError):
                upsert(path, kind, OTHERS)
                done.append("c")
            raise StorageError("stop", path=call.path)

        hooked(path, hook)
        try:
            upsert(path, kind)
            done += ["a", "b"]
        except PhantombaseError:
            next(both)
        assert (ids(path) if (path / ".hoodie/hoodie.properties").exists() else []) == sorted(done), number
    assert next(both) > 5


def test_a_writer_whose_table_was_removed_may_write_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_table(
        LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",), ordering_fields=("ts",))
    )

    def late(*given: Any, **how: Any) -> Any:
        shutil.rmtree(tmp_path / ".hoodie")
        return of_write.write(*given, **how)

    with monkeypatch.context() as patched:
        patched.setattr(of_writer, "write", late)
        with pytest.raises(ConflictError, match=r"no table any more.*Write again"):
            upsert(tmp_path, "one folder")
    upsert(tmp_path, "one folder")
    assert ids(tmp_path) == ["a", "b"]


def test_what_stays_of_a_first_write_that_fails(
    hooked: Callable[[Path, Hook], HookedStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of others beside the table; and the empty table under a lock that Hudi's writers hold, too."""

    def first_write() -> None:
        described = KINDS["metadata table"](writer(OURS)).key("id").ordering("ts")
        described.option(allow_other_files=True).upsert(tmp_path / "t")

    (tmp_path / "t" / "x").mkdir(parents=True)
    (tmp_path / "t" / "x" / "notes").touch()
    before = sorted(tmp_path.rglob("*"))
    last = max(numbers(hooked, tmp_path / "other", lambda path: upsert(path, "metadata table"))) - 20
    for shared in (False, True):
        monkeypatch.setattr("phantombase.writer_hooks.commit.place_files.is_of_hudi", lambda _, is_it=shared: is_it)
        hooked(tmp_path / "t", full_disk(last, 0))
        with pytest.raises(StorageError):
            first_write()
        assert (sorted(tmp_path.rglob("*")) == before) is not shared
    hooked(tmp_path / "t", lambda call: call.do())
    first_write()
    assert ids(tmp_path / "t") == ["a", "b"]
