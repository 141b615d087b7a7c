"""The archived timeline: what Hudi archived is found, and what cannot be read is unknown, never "not there"."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import read
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.codec.avro_container import STRING, optional, root_record, write_record
from phantombase.timeline.errors import MissingFileError, StorageError, UnknownStateError
from phantombase.timeline.format.instant import Instant, State, later
from phantombase.timeline.format.layout import LAYOUT_2, Layout
from phantombase.timeline.format.table_config import load_table_config
from phantombase.timeline.instants.archived_timeline import archived_commits, load_history
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.survey import Survey
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import latest_slice
from tests.support.archived_tables import archive, behind_archived, compact, long_table, one_row, rename, row, upsert
from tests.support.builders import timeline_of
from tests.support.golden_tables import GOLDEN, LOCK, one_of, unzip_golden
from tests.support.places import capture_logs
from tests.support.selection import deep
from tests.support.written_tables import as_rows, read_rows

ACTIONS = ["deltacommit"] * 5 + ["commit", "deltacommit"]


def open_table(name: str, into: Path) -> tuple[LocalStorage, Path]:
    """A golden table's storage and its history folder."""
    storage = LocalStorage(str(unzip_golden(name, into)))
    return storage, Path(storage.base_path) / load_table_config(storage).history_folder


def load(storage: Any) -> tuple[Instant, ...]:
    return load_history(cast(Storage, storage), load_table_config(cast(Storage, storage)))


class Interrupted:
    """Storage that calls `event` before the n-th read or open, to show what a reader sees of a running writer."""

    def __init__(self, inner: Storage, at: int, event: Callable[[], None]) -> None:
        self.inner = inner
        self.left = at
        self.event = event

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name in ("read", "open_input") else getattr(self.inner, name)

    def _call(self, name: str, path: str) -> Any:
        if "hoodie.properties" not in path:
            self.left -= 1
            if self.left < 0:
                self.event()
        return getattr(self.inner, name)(path)


@pytest.mark.parametrize("name", [n for n in GOLDEN if n.endswith("_archived")])
def test_golden_history(name: str, tmp_path: Path) -> None:
    """All archived instants once, in order, older than the active ones; completion times in v8+ only."""
    storage, _ = open_table(name, tmp_path)
    history = load(storage)
    assert [i.action for i in history] == ACTIONS
    times = [i.requested_time for i in history]
    assert times == sorted(set(times))
    config = load_table_config(storage)
    active = [Layout.of(config.version).parse(e.name) for e in storage.list(config.timeline_folder)]
    assert times[-1] < min(i.requested_time for i in active if i is not None)
    for instant in history:
        assert instant.state is State.COMPLETED
        if name.startswith("v6"):
            assert instant.completion_time is None
        else:
            assert instant.completion_time is not None
            assert instant.completion_time > instant.requested_time


def test_golden_history_values(tmp_path: Path) -> None:
    """The first and last archived instants of the v9 table, letter by letter."""
    history = load(open_table("v9_archived", tmp_path)[0])
    assert (history[0].requested_time, history[0].completion_time) == ("20261121091519335", "20261121091520057")
    assert (history[-1].requested_time, history[-1].completion_time) == ("20261121091524357", "20261121091524957")


@one_of("name", "v9_plain", "v6_plain")
def test_nothing_archived(name: str, tmp_path: Path) -> None:
    """An empty history folder and a missing one both mean that nothing was archived."""
    storage, folder = open_table(name, tmp_path)
    assert list(folder.iterdir()) == []
    assert load(storage) == ()
    folder.rmdir()
    assert load(storage) == ()


def test_side_files_and_unknown_names_are_skipped(tmp_path: Path) -> None:
    """Checksum side files and names Hudi does not read are no archives."""
    storage, folder = open_table("v6_archived", tmp_path)
    (folder / "..commits_.archive.1_1-0-1.crc").write_bytes(b"crc")
    (folder / "notes.txt").write_bytes(b"x")
    assert len(load(storage)) == len(ACTIONS)


def test_manifest_decides_which_files_count(tmp_path: Path) -> None:
    """Files that the current manifest does not name are remains of another snapshot."""
    storage, folder = open_table("v9_archived", tmp_path)
    (folder / "_version_").write_text("2\n")
    assert [i.action for i in load(storage)] == ACTIONS[:5]


@pytest.mark.parametrize("content", [None, ""])
def test_version_file_being_replaced(tmp_path: Path, content: str | None) -> None:
    """While `_version_` is gone or empty the greatest manifest, by number, is the current one."""
    storage, folder = open_table("v9_archived", tmp_path)
    (folder / "manifest_3").rename(folder / "manifest_10")
    (folder / "manifest_11.tmp").write_text("half")
    if content is None:
        (folder / "_version_").unlink()
    else:
        (folder / "_version_").write_text(content)
    assert [i.action for i in load(storage)] == ACTIONS


def _unlink(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def _cut(pattern: str, keep: float) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        path = next(iter(sorted(folder.glob(pattern))))
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])

    return cut


def _parquet(**columns: list[str | None]) -> Callable[[Path], None]:
    return lambda folder: pq.write_table(pa.table(columns), next(iter(folder.glob("*.parquet"))))


TIMES: list[str | None] = ["1", "2"]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("v9_archived", _unlink("manifest_3")),
        ("v9_archived", _unlink("20261121091523633_20261121091524357_0.parquet")),
        ("v9_archived", _write("_version_", b"three")),
        ("v9_archived", _write("_version_", b"-1")),
        ("v9_archived", _write("manifest_3", b"")),
        ("v9_archived", _write("manifest_3", b"[]")),
        ("v9_archived", _write("manifest_3", b'{"files": [{"fileLen": 3}]}')),
        ("v9_archived", _write("manifest_3", b'{"files": [{"fileName": 3, "fileLen": 3}]}')),
        ("v9_archived", _write("manifest_3", b'{"files": [{"fileName": "../../x.parquet", "fileLen": 3}]}')),
        ("v9_archived", _write("manifest_3", b'{"files": 3}')),
        ("v9_archived", _cut("*.parquet", 0.9)),
        ("v9_archived", _cut("*.parquet", 0)),
        ("v9_archived", _parquet(instantTime=TIMES, action=["commit", "commit"])),
        ("v9_archived", _parquet(instantTime=TIMES, completionTime=["2", None], action=["commit", "commit"])),
        ("v6_archived", _cut(".commits_*", 0.5)),
        ("v6_archived", _write(".commits_.archive.2_1-0-1", b"garbage")),
        ("v6_archived", _write("mergeArchivePlan", b"cut off")),
    ],
)
def test_unreadable_history_is_unknown(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    """Anything missing, cut off or malformed in a history makes the answer unknown, and the folder is named."""
    storage, folder = open_table(name, tmp_path)
    if name == "v6_archived":
        _cut(".commits_*", 0.99)(folder)
    damage(folder)
    with pytest.raises(UnknownStateError, match="unknown") as caught:
        load(storage)
    assert caught.value.path == load_table_config(storage).history_folder
    assert caught.value.todo


def test_manifest_may_not_point_elsewhere(tmp_path: Path) -> None:
    """A path where a file name belongs is refused even when something lies there."""
    storage, folder = open_table("v9_archived", tmp_path)
    (folder / "sub").mkdir()
    next(folder.glob("*.parquet")).rename(folder / "sub" / "x.parquet")
    (folder / "manifest_3").write_text('{"files": [{"fileName": "sub/x.parquet", "fileLen": 3}]}')
    with pytest.raises(UnknownStateError, match="entries that are not file names"):
        load(storage)


@one_of("name", "v6_archived", "v9_archived")
def test_failing_storage_makes_history_unknown(name: str, tmp_path: Path) -> None:
    """A storage failure at any read of a history file is "unknown", never a shorter history."""

    def fail() -> None:
        raise StorageError("power cut")

    storage, _ = open_table(name, tmp_path)
    for at in range(20):
        try:
            history = load(Interrupted(storage, at, fail))
        except UnknownStateError:
            continue
        assert at >= 3
        assert len(history) == len(ACTIONS)
        return
    pytest.fail("never finished")


def test_raw_os_errors_make_history_unknown(tmp_path: Path) -> None:
    """So does an operating system error that comes out of a half-read file."""

    def fail() -> None:
        raise OSError(5, "Input/output error")

    storage, _ = open_table("v9_archived", tmp_path)
    with pytest.raises(UnknownStateError, match="Input/output error"):
        load(Interrupted(storage, 0, fail))


def _compact(folder: Path) -> None:
    """What Hudi's compaction of the history does: one file of the next level, a manifest, the version, clean-up."""
    files = sorted(folder.glob("*_0.parquet"))
    if not files:
        return
    merged = "20261121091519335_20261121091524357_1.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(f) for f in files]), folder / merged)
    (folder / "manifest_4").write_text(json.dumps({"files": [{"fileName": merged, "fileLen": 1}]}))
    (folder / "_version_").write_text("4")
    for stale in (*files, folder / "manifest_1", folder / "manifest_2", folder / "manifest_3"):
        stale.unlink()


@pytest.mark.parametrize("at", range(6))
def test_history_compacted_while_being_read(at: int, tmp_path: Path) -> None:
    """Whenever files vanish by compaction, a second snapshot finds everything."""
    storage, folder = open_table("v9_archived", tmp_path)
    history = load(Interrupted(storage, at, partial(_compact, folder)))
    assert [i.action for i in history] == ACTIONS


def test_only_one_second_look(tmp_path: Path) -> None:
    """A file that stays missing is looked for twice, not for ever."""
    storage, folder = open_table("v9_archived", tmp_path)
    (folder / "manifest_3").unlink()
    looks: list[str] = []

    class Counting(Interrupted):
        def _call(self, name: str, path: str) -> Any:
            looks.append(path)
            return getattr(self.inner, name)(path)

    with pytest.raises(UnknownStateError):
        load(Counting(storage, 0, lambda: None))
    assert len([path for path in looks if path.endswith("manifest_3")]) == 2


def _merge_plan(merged: str) -> bytes:
    schema = root_record("HoodieMergeArchiveFilePlan", optional("mergedArchiveFileName", STRING))
    return write_record({"mergedArchiveFileName": merged}, schema)


def test_unfinished_merged_archive_is_skipped(tmp_path: Path) -> None:
    """The file that the merge plan names may be unfinished: the files it is made from are still there."""
    storage, folder = open_table("v6_archived", tmp_path)
    complete = load(storage)
    first = (folder / ".commits_.archive.1_1-0-1").read_bytes()
    (folder / ".commits_.archive.4_1-0-1").write_bytes(first[: len(first) * 2 // 3])
    with pytest.raises(UnknownStateError):
        load(storage)
    (folder / "mergeArchivePlan").write_bytes(_merge_plan(".commits_.archive.9_1-0-1"))
    with pytest.raises(UnknownStateError):
        load(storage)
    (folder / "mergeArchivePlan").write_bytes(_merge_plan("file:/t/.hoodie/archived/.commits_.archive.4_1-0-1"))
    assert load(storage) == complete


def test_archives_merged_while_being_read(tmp_path: Path) -> None:
    """Whenever small archives vanish by merging, a second snapshot finds everything, each instant once."""
    storage, folder = open_table("v6_archived", tmp_path)
    complete = load(storage)

    def merge() -> None:
        small = sorted(folder.glob(".commits_.archive.[123]_*"))
        if small:
            (folder / ".commits_.archive.4_1-0-1").write_bytes(b"".join(f.read_bytes() for f in small))
        for file in small:
            file.unlink()

    assert load(Interrupted(storage, 1, merge)) == complete
    assert [e.name for e in storage.list(".hoodie/archived")] == [".commits_.archive.4_1-0-1"]


@cache
def _entry_schema() -> str:
    return json.dumps(
        root_record(
            "HoodieArchivedMetaEntry", *(optional(n, STRING) for n in ("commitTime", "actionType", "actionState"))
        )
    )


def _archive_block(*rows: tuple[str | None, str | None, str | None], kind: int = 3, of: str = "string") -> bytes:
    def text(value: str | None) -> bytes:
        return b"\x00" if value is None else b"\x02" + bytes([len(value) * 2]) + value.encode()

    records = [b"".join(map(text, row)) for row in rows]
    content = struct.pack(">ii", 3, len(rows)) + b"".join(struct.pack(">i", len(r)) + r for r in records)
    schema = _entry_schema().replace('"string"', f'"{of}"').encode()
    body = struct.pack(">iiiii", 1, kind, 1, 2, len(schema)) + schema
    body += struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    return b"#HUDI#" + struct.pack(">q", len(body) + 8) + body + struct.pack(">q", len(body) + 14)


def test_which_archive_entries_count(tmp_path: Path) -> None:
    """Completed entries and those of very old archives that name no state; not the pending states."""
    storage, folder = open_table("v6_plain", tmp_path)
    (folder / ".commits_.archive.1_1-0-1").write_bytes(
        _archive_block(("3", "commit", "COMPLETED"), ("1", "commit", None), ("2", "compaction", "INFLIGHT"))
        + _archive_block(("3", "commit", "COMPLETED"), ("4", "clean", "REQUESTED"))
    )
    assert [(i.requested_time, i.action) for i in load(storage)] == [("1", "commit"), ("3", "commit")]


@pytest.mark.parametrize(
    "block",
    [
        _archive_block((None, "commit", "COMPLETED")),
        _archive_block(("1", None, "COMPLETED")),
        _archive_block(("1", "commit", "COMPLETED"), kind=1),
        _archive_block(("1", "commit", "COMPLETED"), of="bytes"),
    ],
)
def test_impossible_archive_entries_are_unknown(block: bytes, tmp_path: Path) -> None:
    """An entry without time or action, or of bytes, and a block that is no data, make the answer unknown."""
    storage, folder = open_table("v6_plain", tmp_path)
    (folder / ".commits_.archive.1_1-0-1").write_bytes(block)
    with pytest.raises(UnknownStateError):
        load(storage)


def test_a_listing_that_fails_is_unknown(tmp_path: Path) -> None:
    """A folder that cannot be listed is not an empty one."""
    storage, _ = open_table("v9_archived", tmp_path)

    class Unlistable(Interrupted):
        def __getattr__(self, name: str) -> Any:
            if name == "list":
                raise StorageError("no permission")
            return super().__getattr__(name)

    with pytest.raises(UnknownStateError, match="no permission"):
        load(Unlistable(storage, 99, lambda: None))


def test_missing_folder_is_told_from_missing_file(tmp_path: Path) -> None:
    """Only the listing may say "no such folder"; a file missing twice is unknown."""
    storage, _ = open_table("v9_archived", tmp_path)

    def vanish() -> None:
        raise MissingFileError("no such file")

    with pytest.raises(UnknownStateError):
        load(Interrupted(storage, 1, vanish))


# Two timelines of one table, and an archive that is read later than the timeline (pure).


ARCHIVED = ("10_11.deltacommit", "12_13.commit", "20_25.deltacommit", "30_31.deltacommit", "40_41.commit")


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_pending_write_of_a_slow_clock_hides_no_archived_write(version: int, tmp_path: Path) -> None:
    """A writer whose clock is slow, or in another zone, begins a write before those that are archived already."""
    path = tmp_path / "t"
    long_table(path, version, 8, compact_at=None)
    upsert(path, one_row("new", 1))
    early = int(Table.open(str(path)).load_timeline().start) - 5
    assert archive(path).archived
    rows, folder = read_rows(path), path / Table.open(str(path)).config.timeline_folder
    for state in ("requested", "inflight"):
        (folder / f"{early}.deltacommit.{state}").touch()
    assert read_rows(path) == rows


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_completed_write_of_a_slow_clock_hides_no_archived_write(version: int, between: bool, tmp_path: Path) -> None:
    """The timeline begins at it, so no archived write is older. Hudi's readers take these for undone (see
    tests/hudi/cases/test_archiving.py). It is named, and the next archiving, which begins at it, ends that."""
    path = tmp_path / "t"
    rows, slow = behind_archived(path, version, between)
    with capture_logs() as lines:
        assert read_rows(path) == rows
    warned = [line["instant"] for line in lines if line["event"] == "write_before_archived_ones"]
    assert set(warned) == {slow}
    upsert(path, one_row("k0", 9))
    rows |= {"k0": (9, 9.0)}
    assert read_rows(path) == rows
    compact(path)
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 10))
    assert slow in {one.instant for one in archive(path).archived}
    with capture_logs() as lines:
        assert read_rows(path) == rows | {"k1": (10, 10.0)}
    assert not [line for line in lines if line["event"] == "write_before_archived_ones"]


@pytest.mark.parametrize("how", ["completed", "copied", deep("pending"), deep("saved")])
@pytest.mark.parametrize("version", [6, deep(9)])
def test_archived_log_blocks_behind_the_start_count(version: int, how: str, tmp_path: Path) -> None:
    """On version 6 a log file's name has the instant of its base file, which is before the start. Only its blocks have
    those of archived writes behind the start. Reads of one partition, plans and windows ask the archive all the same.
    A table that was copied has other times of its files."""
    path = tmp_path / "t"
    long_table(path, version, 1, compact_at=None)
    for number in (1, 2, 3):
        upsert(path, row("k9", "b", number))
    folder = path / Table.open(str(path)).config.timeline_folder
    kept = Table.open(str(path)).load_timeline().completed[2].requested_time
    state = {file: file.read_bytes() for file in folder.glob(f"{kept}*")}
    for number in (4, 5, 6):
        upsert(path, row("k1", "a", number))
    assert len(archive(path).archived) >= 4
    gone = sorted(i.requested_time for i in Table.open(str(path)).load_timeline(archived=True).archived if i.is_write)
    upsert(path, row("slow", "c", 7))
    rows = read_rows(path)
    if how == "pending":
        for name in ("requested", "inflight"):
            (folder / f"{later(gone[1], 1)}.deltacommit.{name}").touch()
    elif how == "saved":  # Hudi archives beyond a savepoint
        for file, data in state.items():
            file.write_bytes(data)
        create_savepoint(Table.open(str(path)), LOCK, kept, user="", comment="")
    else:
        rename(path, -1, later(gone[1], 1))
    if how == "copied":
        for file in sorted(folder.glob("[0-9]*")):
            os.utime(file, ns=(time.time_ns(), time.time_ns()))
    assert as_rows(read(str(path), partition="b").to_arrow()) == {"k9": rows["k9"]}
    if how == "pending":  # windows end before it, and plans wait for it
        return
    window = read(str(path), query="incremental", begin=gone[1], partition="b").to_arrow()
    assert as_rows(window) == {"k9": rows["k9"]}
    compact(path)
    assert read_rows(path) == rows
    assert as_rows(read(str(path), query="read-optimized").to_arrow()) == rows


def test_a_plan_counts_archived_log_blocks_behind_the_start(tmp_path: Path) -> None:
    """Only files of a later partition, and not their times, show that the archive is needed."""
    path = tmp_path / "t"
    long_table(path, 6, 1, compact_at=None)
    for number, (key, day) in enumerate([("k9", "b"), ("k9", "b"), ("k5", "A"), ("k5", "A")]):
        upsert(path, row(key, day, number))
    first = archive(path).archived[0].instant
    upsert(path, row("slow", "c", 7))
    rename(path, -1, later(first, 1))
    folder = path / Table.open(str(path)).config.timeline_folder
    for number, file in enumerate(sorted(folder.glob("[0-9]*"), key=lambda f: (f.name[:17], -len(f.name)))):
        os.utime(file, (number, number))
    table = Table.open(str(path)).snapshot()
    survey = Survey(table, table.load_facts(), replace(PLAN_NOW, max_source_rows=9))
    slices = ([s for g in look.groups if (s := latest_slice(g)) is not None] for look in survey.looks())
    found = {s.partition: stats.log_rows for some in slices for s, stats in survey.measure(some)}
    assert found == {"A": 1, "a": 0, "b": 1, "c": 0}


def test_a_savepoint_makes_no_clock_slow(tmp_path: Path) -> None:
    """Archiving goes on behind it."""
    then = timeline_of(LAYOUT_2, "20_21.deltacommit", "20_25.savepoint", "70_71.deltacommit", archived=ARCHIVED)
    assert then.before_archived is None
    then = timeline_of(LAYOUT_2, "20_21.deltacommit", "70_71.deltacommit", archived=ARCHIVED)
    assert then.before_archived is not None
    assert then.before_archived.requested_time == "20"


def test_what_was_archived_since_the_listing_does_not_count() -> None:
    """Neither what began behind its newest instant, nor what was pending then."""
    then = timeline_of(LAYOUT_2, "20.deltacommit.requested", "22_23.deltacommit", "26.compaction.requested")
    found = then.with_its_archived(timeline_of(LAYOUT_2, archived=ARCHIVED).archived)
    assert [i.requested_time for i in found.archived] == ["10", "12"]
    assert found.instants == then.instants


def test_an_instant_in_both_places_counts() -> None:
    then = timeline_of(LAYOUT_2, "12_13.commit", "30_31.deltacommit")
    found = then.with_its_archived(timeline_of(LAYOUT_2, archived=ARCHIVED).archived)
    assert [i.requested_time for i in found.archived] == ["10", "12", "20", "30"]


def test_all_count_where_all_active_writes_are_rolled_back() -> None:
    """What is left may be older than what is archived."""
    then = timeline_of(LAYOUT_2, "15_16.clean")
    archived = timeline_of(LAYOUT_2, archived=ARCHIVED).archived
    assert then.with_its_archived(archived).archived == archived


def test_writes_that_may_take_the_place_of_files() -> None:
    """Completed since, active or archived; not those of before, which the earlier one has archived. Of delta commits
    those that wrote a base file."""
    then = timeline_of(LAYOUT_2, "20_21.commit", "24.compaction.requested", "26_27.replacecommit")
    now = timeline_of(LAYOUT_2, "24_33.commit", "30_31.deltacommit", "50.replacecommit.requested", archived=ARCHIVED)
    assert now.superseding_since(then, (), below="9") == ["24", "40"]
    assert now.superseding_since(then, {"10", "20", "30"}, below="9") == ["20", "24", "30", "40"]
    assert now.superseding_since(then, None, below="9") == ["20", "24", "30", "40"]
    assert now.superseding_since(then, None, below="30") == ["20", "24"]
    assert now.superseding_since(then, None, below="") == []
    assert then.superseding_since(then, {"20"}, below="9") == []


def test_a_history_file_without_contents_is_malformed(tmp_path: Path) -> None:
    storage, folder = open_table("v9_archived", tmp_path)
    archived = load(storage)
    for path in folder.glob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["metadata"]), path)
    with pytest.raises(UnknownStateError, match="history file"):
        archived_commits(storage, load_table_config(storage), archived)
