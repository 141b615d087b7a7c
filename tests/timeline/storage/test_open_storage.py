"""A storage is opened by URL in one place, and every command means the same table by the same URL."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import compact, read, schedule, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.fleet.catalog import FolderListing
from phantombase.timeline.errors import MissingFileError, NotATableError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage import contract, hdfs_files, local, object_clients
from phantombase.timeline.storage.contract import Entry, list_at_once, list_of_table
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.open_storage import full_path, open_storage
from phantombase.timeline.storage.snapshot import ContentCache, SnapshotStorage
from phantombase.timeline.storage.staged_file import place_staged, staged_output
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden


@pytest.mark.parametrize(
    "url", ["{path}", "file://{path}", "file:{path}", "FILE:{path}/", "file:////{path}", "{path}/", "{path}/../{name}"]
)
def test_a_path_and_its_url_are_one_storage(url: str, tmp_path: Path) -> None:
    found = open_storage(url.format(path=tmp_path, name=tmp_path.name))
    assert found == open_storage(str(tmp_path))
    assert found.base_path == str(tmp_path)


def test_a_server_that_takes_connections_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port of another service, or one that expects TLS."""
    monkeypatch.setattr(object_clients, "_SILENT_S", 0.2)
    monkeypatch.setattr(object_clients, "_PATIENCE", object_clients._ONCE)
    monkeypatch.setattr(hdfs_files, "_FIRST_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(StorageError, match="no answer in time"):
            open_storage("s3://b/t", {"endpoint": f"http://{where}", "allow_http": "1", **KEYS}).list("")
        with pytest.raises(StorageError, match=f"the name node does not answer; at hdfs://{where}"):
            open_storage(f"hdfs://{where}/t").list("")

    class Panics:
        def get_file_info(self, path: str) -> None:
            raise BaseException(path)  # as Rust's panics are raised

    hdfs_files._check_answers(Panics(), "hdfs://h")  # type: ignore[arg-type]  # an answer, whatever it says


def test_what_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of object stores panics over it. One without credentials asks a role of the machine."""
    refused = {
        "junk": "not the URL of a server",
        "http://h:99999": "not the URL of a server",
        "http://h:1": "allow_http=true",
    }
    for endpoint, what in refused.items():
        with pytest.raises(UsageError, match=what):
            open_storage("s3://b/t", {"endpoint": endpoint, **KEYS})
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(UsageError, match=what):
            open_storage("s3://b/t", KEYS)
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        with pytest.raises(UsageError, match=what):
            open_storage("gs://b/t", {"base_url": endpoint})
    storage = open_storage("s3://b/t", {"region": "x"})
    assert isinstance(storage, ObjectStorage)
    assert "credentials of S3" in str(storage.clients.advice(OSError("GET http://169.254.169.254/latest")))
    assert storage.clients.advice(OSError("403")) is None


KEYS = {"access_key_id": "the-key", "secret_access_key": "the-secret", "region": "x"}


@pytest.mark.parametrize(
    "url", ["hdfs:/lake/t", "s3:/b/t", "a:t", "file:t", "file://host/t", "file:", "file://", "file:/"]
)
def test_what_looks_like_a_url_is_no_folder_of_the_working_directory(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop and Spark print local paths as `file:/data/t`. A write to a folder `file:` would be lost."""
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"id": [1]})
    for use in (
        lambda: read(url),
        lambda: writer(rows).table("t").key("id").upsert(url),
        lambda: schedule(url, sole_writer=True),
        lambda: compact(url),
        lambda: ServedTables([url]),
        lambda: FolderListing(url, StorageOptions.of({})),
    ):
        with pytest.raises(UsageError, match=r"neither a path nor a URL|not a local path"):
            use()
    for words in (["schedule", url, "--sole-writer"], ["compact", url], ["status", url]):
        assert isinstance(CliRunner().invoke(app, words).exception, UsageError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "right"),
    [("s3:/bucket/t", "s3://bucket/t"), ("hdfs:/lake/t", "hdfs://HOST:PORT/lake/t"),
     ("HDFS:lake/t", "HDFS://HOST:PORT/lake/t")],
)  # fmt: skip
def test_a_url_with_one_slash_names_the_right_one(url: str, right: str) -> None:
    """On HDFS the first folder is no host: Hadoop means the name node of its settings."""
    with pytest.raises(UsageError, match=f"Write {right}, or"):
        full_path(url)
    assert full_path(right) == right


def test_a_link_is_another_path_of_one_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table")
    one, other = open_storage(str(tmp_path / "table")), open_storage(str(tmp_path / "link"))
    assert one.location == other.location
    assert one.base_path != other.base_path


@pytest.mark.parametrize("scheme", ["webhdfs", "http"])
def test_another_scheme_is_refused_with_those_there_are(scheme: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{scheme}://bucket/t.*expected file://.*found {scheme}://"):
        Table.open(f"{scheme}://bucket/t")


def test_options_of_object_stores_are_refused_on_hdfs() -> None:
    """They would have no effect. Those of a Spark session are of no concern; values may be secret."""
    open_storage("hdfs://host:1/t", StorageOptions.of({}).over({"fs.s3a.endpoint": "http://x"}))
    with pytest.raises(UsageError, match=r"no effect on HDFS.*HADOOP_CONF_DIR.*found secret_access_key") as refused:
        open_storage("hdfs://host:1/t", {"secret_access_key": "abc123"})
    assert "abc123" not in str(refused.value)


def test_what_is_no_folder_is_no_table(tmp_path: Path) -> None:
    """What cannot be looked at is unknown, not absent: nobody may make a table there."""
    (tmp_path / "file").touch()
    for name, what in (("none", "no such folder"), ("file", "a file lies where a folder is expected")):
        with pytest.raises(NotATableError, match=what):
            Table.open(str(tmp_path / name))
    with pytest.raises(StorageError):
        Table.open(str(tmp_path / "file" / "table"))


@pytest.mark.parametrize("command", ["schedule", "unschedule", "release"])
def test_commands_lock_the_table_that_a_url_names(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a folder of that name below the working directory, which would exclude nobody."""
    path = unzip_golden("v9_pending", tmp_path)
    instant = Table.open(str(path)).load_timeline().pending_merges[0].requested_time
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    more = {"schedule": [], "unschedule": [instant], "release": [instant, "--unreadable"]}[command]
    CliRunner().invoke(app, [command, f"file://{path}", *more, "--sole-writer"])
    assert list(elsewhere.iterdir()) == []
    assert (path / RECORDS / "table.lock").exists()


# Long listings: two that agree, or an error.


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
    snapshot = SnapshotStorage(Listed.of(tmp_path, "acd", "cde", "cde"), {"timeline"}, ContentCache())
    assert _names(snapshot.list("timeline")) == "cde"


# Staged files: whole or not there, durable, and placed only as what they were staged as.


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
