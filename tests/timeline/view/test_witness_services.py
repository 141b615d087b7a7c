"""What needs a lost or damaged file stops; everything else goes on."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.choice import choose_windows
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.group_facts import GroupFacts
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.service.loading import load_state
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import DAMAGES, put, unzip_golden
from tests.support.selection import deep

PARTITIONS = ("a", "b")


def rows_of(keys: range, ts: int, partition: str | None = None, version: int = 9) -> Any:
    """A writer of rows with these keys, in turns in the two partitions."""
    batch = pa.table(
        {
            "id": [f"k{k}" for k in keys],
            "p": [partition or PARTITIONS[k % 2] for k in keys],
            "ts": pa.array([ts] * len(keys), pa.int64()),
        }
    )
    return writer(batch).table("t", version=version).key("id").partition("p").ordering("ts")


def values(path: Path, **how: Any) -> dict[str, int]:
    return {row["id"]: row["ts"] for row in read(str(path), **how).to_arrow().to_pylist()}


def damage(path: Path, pattern: str) -> Path:
    """Cuts the one file in two."""
    (file,) = path.glob(pattern)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """20 keys with a base file and a log file in each partition."""
    path = tmp_path / "t"
    rows_of(range(20), 1).upsert(str(path))
    rows_of(range(4), 2).upsert(str(path))
    return path


def test_another_partition_is_read_and_written(path: Path) -> None:
    file = damage(path, "b/*.parquet")
    with pytest.raises(MalformedError, match=file.name):
        values(path)
    rows_of(range(0, 4, 2), 3).upsert(str(path))
    assert values(path, partition="a")["k0"] == 3
    assert values(path, filter="p = 'a'")["k0"] == 3


def test_an_upsert_needs_all_base_files_of_its_partition(path: Path) -> None:
    """Its keys may be in any of them. Inserts are put elsewhere."""
    file = damage(path, "b/*.parquet")
    with pytest.raises(MalformedError, match=file.name):
        rows_of(range(1, 4, 2), 3).upsert(str(path))
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        rows_of(range(1, 4, 2), 3).upsert(str(path))
    rows_of(range(101, 104, 2), 3).insert(str(path))
    assert len([*path.glob("b/*.parquet")]) == 1


def test_an_upsert_does_not_append_behind_a_damaged_log(path: Path) -> None:
    file = damage(path, "b/.*.log.*")
    with pytest.raises(MalformedError, match=file.name):
        rows_of(range(1, 4, 2), 3).upsert(str(path))


def test_an_upsert_needs_all_files_that_a_plan_names(path: Path) -> None:
    """Its keys may be in any of them."""
    schedule_compaction(open_table(path), ProcessLock("test"), PLAN_NOW)
    (file,) = path.glob("b/.*.log.*")
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        rows_of(range(11, 14, 2), 3).upsert(str(path))


def test_the_others_are_compacted(path: Path) -> None:
    """The command says afterwards what was left out. With the whole file back nothing is lost."""
    (file,) = path.glob("b/*.parquet")
    whole = file.read_bytes()
    file.unlink()
    command = ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert file.name.split("_")[0] in done.output
    assert [len([*path.glob(f"{p}/*.parquet")]) for p in PARTITIONS] == [2, 0]
    file.write_bytes(whole)
    assert values(path) == {f"k{k}": 2 if k < 4 else 1 for k in range(20)}


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "damaged"])
def test_a_clean_keeps_what_lies_below_such_a_file(is_lost: bool, path: Path) -> None:
    """A base file that a compaction made is lost or damaged: its inputs are all that is left of the file group."""
    CliRunner().invoke(app, ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local"])
    newest = max(path.glob("b/*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    if is_lost:
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:-10])
    rows_of(range(0, 4, 2), 4).upsert(str(path))
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), ProcessLock("test"))
    assert [len([*path.glob(f"{p}/*.parquet")]) for p in PARTITIONS] == [1, 1 if is_lost else 2]
    assert len([*path.glob("b/.*.log.*")]) == 1


def test_a_damaged_file_is_not_clustered(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for start in (1, 101, 201):
        rows_of(range(start, start + 4), 1, "a").bulk_insert(str(path))
    view = open_table(path).load_view()
    options = ClusterOptions(min_files=2)
    assert [len(w.slices) for w in choose_windows(view, GroupFacts(), options, "t").windows] == [3]
    file = max(path.glob("a/*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    file.write_bytes(file.read_bytes()[:-10])
    view = open_table(path).load_view()
    assert [len(w.slices) for w in choose_windows(view, GroupFacts(), options, "t").windows] == [2]


@pytest.mark.parametrize("folder", ["gone", "empty", "dangling"])
def test_a_removed_partition_is_declared(folder: str, path: Path) -> None:
    """A read of the table says how; a disk that is not mounted looks the same, and is no reason to lose its rows."""
    shutil.rmtree(path / "b")
    if folder == "empty":
        (path / "b").mkdir()
    elif folder == "dangling":
        (path / "b").symlink_to(path / "unmounted")
    with pytest.raises(MissingFileError, match="delete_partition"):
        values(path)
    with pytest.raises(MissingFileError, match="delete_partition"):
        rows_of(range(1, 4, 2), 3).upsert(str(path))
    assert len(values(path, partition="a")) == 10
    if folder != "dangling":
        rows_of(range(1), 3).delete_partition(str(path), ["b"])
        assert set(values(path)) == {f"k{k}" for k in range(0, 20, 2)}


def test_a_lost_partition_metadata_file(path: Path) -> None:
    """Completed writes name the files of the partition."""
    whole = values(path)
    for mark in path.glob("b/.hoodie_partition_metadata*"):
        mark.unlink()
    assert values(path) == whole


@pytest.mark.parametrize("name", ["v9_with_metadata_table", deep("v6_with_metadata_table"), "v9_plain"])
def test_a_lost_partition_metadata_file_of_archived_writes(name: str, tmp_path: Path) -> None:
    """Hudi reads its rows if the metadata table lists its files, else it takes the folder for none of the table."""
    path = unzip_golden(name, tmp_path)
    for mark in path.glob("south/.hoodie_partition_metadata*"):
        mark.unlink()
    (path / "south" / "by hand").mkdir()
    assert open_table(path).partitions() == ["north"]
    (path / "south" / "by hand").rmdir()
    is_known = "metadata" in name
    assert open_table(path).partitions() == ["north", *(["south"] if is_known else [])]
    assert set(load_state(open_table(path)).partitions) == {"north", "south"}


def test_validate_shows_what_is_lost_and_what_is_passed_over(path: Path) -> None:
    stray = path / "a" / ".nfs.log.0001"
    stray.write_bytes(b"x")
    (named,) = path.glob("a/*.parquet")
    attempt = named.with_name("_9-999-999_".join((named.name.split("_")[0], named.name.rpartition("_")[2])))
    attempt.write_bytes(b"")
    found = CliRunner().invoke(timeline_app, ["validate", str(path), "--json"])
    assert found.exit_code == 0
    assert sorted(json.loads(found.output)["strays"]) == sorted(f"a/{file.name}" for file in (stray, attempt))
    lost = damage(path, "b/*.parquet")
    found = CliRunner().invoke(timeline_app, ["validate", str(path), "--json"])
    assert found.exit_code == 1
    assert [row["file"] for row in json.loads(found.output)["lost"]] == [f"b/{lost.name}"]


@pytest.mark.parametrize("rows", [slice(None), slice(1, None)], ids=["all rows", "a row less"])
def test_a_base_file_that_was_written_anew_has_all_its_rows(rows: slice, tmp_path: Path) -> None:
    """Another tool may repair a file under its name; with other rows than its write says it is a damaged one."""
    path = unzip_golden("v9_plain", tmp_path)
    before = read_table(open_table(path))
    base = min(path.rglob("*.parquet"))
    content = pq.read_table(base)
    pq.write_table(content[rows], base, compression="none")
    if rows.start is None:
        assert read_table(open_table(path)).num_rows == before.num_rows
    else:
        with pytest.raises(PhantombaseError, match=base.name):
            read_table(open_table(path))


@pytest.mark.parametrize("version", [9, deep(6)])
@pytest.mark.parametrize("action", ["commit", deep("deltacommit")])
def test_a_completed_file_that_is_empty(version: int, action: str, tmp_path: Path) -> None:
    """As old Flink jobs leave them. Hudi 0.15.0 and 1.2.0 read all rows: files of such a write count by their names."""
    path = tmp_path / "t"
    for keys, ts in ((range(20), 1), (range(4), 2)):
        rows_of(keys, ts, version=version).upsert(str(path))
    command = ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local"]
    assert CliRunner().invoke(app, command).exit_code == 0
    for keys in (range(2, 6), range(6, 8)):
        rows_of(keys, 3, version=version).upsert(str(path))
    whole, fed = values(path), values(path, query="incremental", begin="earliest")
    writes = [i for i in open_table(path).load_timeline().completed if i.action == action]
    (path / open_table(path).instant_path(writes[-2:][0])).write_bytes(b"")  # the newest one has the columns
    assert values(path) == whole
    assert values(path, query="incremental", begin="earliest") == fed
    assert set(load_state(open_table(path)).partitions) == {"a", "b"}
    rows_of(range(2), 4, version=version).upsert(str(path))
    assert CliRunner().invoke(app, command).exit_code == 0
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), ProcessLock("test"))
    assert values(path) == {**whole, "k0": 4, "k1": 4}


@pytest.mark.parametrize("version", [9, 6, deep(8)])
@pytest.mark.parametrize("named_by", ["a plan", deep("an executed plan"), "a log file"])
def test_a_write_whose_completed_file_alone_is_gone(version: int, named_by: str, tmp_path: Path) -> None:
    """It looks like a write of a dead process, but what names a file of it shows that it had completed: it stays."""
    path = tmp_path / "t"
    rows_of(range(20), 1, version=version).upsert(str(path))
    if named_by == "a log file":
        rows_of(range(2), 2, version=version).upsert(str(path))
        lost = min(open_table(path).load_timeline().completed, key=lambda i: i.requested_time)
    else:
        keys = range(2) if version > 6 else range(100, 102)  # of version 6 only base files are seen in a plan
        rows_of(keys, 2, version=version).option(small_file_bytes=0).upsert(str(path))
        lost = max(open_table(path).load_timeline().completed, key=lambda i: i.requested_time)
        rows_of(range(2, 4) if version > 6 else keys, 3, version=version).upsert(str(path))
        assert CliRunner().invoke(app, ["schedule", str(path), "--sole-writer"]).exit_code == 0
        if named_by == "an executed plan":
            assert (
                CliRunner().invoke(app, ["compact", str(path), "--sole-writer", "--executor", "local"]).exit_code == 0
            )
        rows_of(range(4, 6), 4, version=version).upsert(str(path))
    whole, before = values(path), load_state(open_table(path))
    completed = path / open_table(path).instant_path(lost)
    data = completed.read_bytes()
    completed.unlink()
    if named_by == "an executed plan":  # its rows are in the base files that the compaction made
        assert values(path) == whole
        return
    with pytest.raises(MissingFileError, match=rf"the completed file of a write is lost.*{lost.requested_time}"):
        values(path)
    with pytest.raises(PhantombaseError):
        rows_of(range(2), 5, version=version).upsert(str(path))
    CliRunner().invoke(app, ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local"])
    for known in (None, before):
        assert load_state(open_table(path), known).refused == {"a", "b"}
    completed.write_bytes(data)
    assert values(path) == whole
    if named_by == "a plan":
        completed.unlink()
        first = min(i.requested_time for i in open_table(path).load_timeline().completed)
        command = ["restore", str(path), "--to", first, "--sole-writer"]
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, (found.output, found.exception)
        assert values(path) == {f"k{k}": 1 for k in range(20)}


@pytest.mark.parametrize("version", [9, deep(6)])
def test_a_clustering_whose_completed_file_alone_is_gone(version: int, tmp_path: Path) -> None:
    """A log file lies on a base file of it: it is neither passed over nor cancelled, and its files stay."""
    path = tmp_path / "t"
    for keys in (range(10), range(10, 20)):
        rows_of(keys, 1, version=version).option(small_file_bytes=0).upsert(str(path))
    cluster_table(open_table(path), ClusterOptions(min_files=2), ProcessLock("test"), output=OutputOptions())
    rows_of(range(3), 2, version=version).upsert(str(path))
    whole, files = values(path), set(path.rglob("*.parquet"))
    (lost,) = (i for i in open_table(path).load_timeline().completed if i.action == "replacecommit")
    completed = path / open_table(path).instant_path(lost)
    data = completed.read_bytes()
    completed.unlink()
    for query in ("snapshot", "read-optimized"):
        with pytest.raises(MissingFileError, match=rf"the completed file of a write is lost.*{lost.requested_time}"):
            values(path, query=query)
    with pytest.raises(PhantombaseError):
        rows_of(range(2), 5, version=version).upsert(str(path))
    cancel = CliRunner().invoke(app, ["cluster", str(path), "--cancel", "--sole-writer"])
    assert isinstance(cancel.exception, MissingFileError)
    CliRunner().invoke(app, ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local"])
    assert set(path.rglob("*.parquet")) == files
    completed.write_bytes(data)
    assert values(path) == whole
    completed.unlink()
    first = min(i.requested_time for i in open_table(path).load_timeline().completed)
    found = CliRunner().invoke(app, ["restore", str(path), "--to", first, "--sole-writer"])
    assert found.exit_code == 0, (found.output, found.exception)
    assert values(path) == {f"k{k}": 1 for k in range(10)}


@pytest.mark.parametrize("query", ["incremental", "changes"])
def test_a_window_with_a_write_whose_completed_file_alone_is_gone(query: str, tmp_path: Path) -> None:
    """What shows that it had completed is later than the window: a plan that names its log files."""
    path = tmp_path / "t"
    for keys, ts in ((range(20), 1), (range(4), 2)):
        rows_of(keys, ts).upsert(str(path))
    first, lost = sorted(open_table(path).load_timeline().completed, key=lambda i: i.requested_time)
    assert CliRunner().invoke(app, ["schedule", str(path), "--sole-writer"]).exit_code == 0
    rows_of(range(4, 6), 3).upsert(str(path))
    (path / open_table(path).instant_path(lost)).unlink()
    for begin in ("earliest", first.completion_time):
        with pytest.raises(MissingFileError, match=rf"the completed file of a write is lost.*{lost.requested_time}"):
            read(str(path), query=query, begin=begin, end=lost.completion_time).to_arrow()
    before = read(str(path), query=query, begin="earliest", end=first.completion_time)
    assert before.to_arrow().num_rows == 20


@pytest.mark.parametrize("version", [9, deep(6)])
def test_a_write_whose_completed_file_alone_is_gone_and_whose_base_file_was_replaced(
    version: int, tmp_path: Path
) -> None:
    """A later write made a new base file of one partition; the rows of the other one are in its own file alone."""
    path = tmp_path / "t"
    rows_of(range(20), 1, version=version).upsert(str(path))
    rows_of(range(100, 104), 2, "a", version=version).upsert(str(path))
    whole, files = values(path), set(path.rglob("*.parquet"))
    lost = min(open_table(path).load_timeline().completed, key=lambda i: i.requested_time)
    completed = path / open_table(path).instant_path(lost)
    data = completed.read_bytes()
    completed.unlink()
    with pytest.raises(MissingFileError, match=rf"the completed file of a write is lost.*{lost.requested_time}"):
        values(path)
    with suppress(PhantombaseError):  # partition b alone is damaged
        rows_of(range(200, 204), 3, "a", version=version).upsert(str(path))
    assert files <= set(path.rglob("*.parquet"))
    completed.write_bytes(data)
    assert values(path).items() >= whole.items()


@pytest.mark.parametrize("version", [9, deep(6)])
@pytest.mark.parametrize("what", ["gone", deep("halved")])
def test_a_write_with_a_lost_file_is_not_archived(what: str, version: int, tmp_path: Path) -> None:
    """Files of archived writes count by their names: the loss would not be seen any more."""
    path = tmp_path / "t"
    for ts in range(1, 8):
        rows_of(range(2), ts, "b" if ts == 2 else "a", version=version).upsert(str(path))
    whole = values(path)
    (file,) = path.glob("b/*.parquet")
    data = file.read_bytes()
    put(file, DAMAGES[what](data))
    lost = sorted(open_table(path).load_timeline().completed_writes)[1]
    options = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
    done = archive_table(open_table(path), options, ProcessLock("test"))
    assert len(done.archived) <= 1
    assert f"write {lost} names b/{file.name}, which is missing or damaged" in done.why
    with pytest.raises(PhantombaseError, match=file.name):
        values(path)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    assert len(archive_table(open_table(path), options, ProcessLock("test")).archived) > 1
    assert values(path) == whole


@pytest.mark.usefixtures("default_filters")  # it goes by the sizes of files
def test_a_write_whose_completed_file_alone_is_gone_and_that_a_log_compaction_merges(tmp_path: Path) -> None:
    """The plan of a pending log compaction names its log files."""
    path = tmp_path / "t"
    for ts in (1, 2, 3):
        rows_of(range(ts * 4), ts).option(small_file_bytes=0).upsert(str(path))
    rows_of(range(8), 4).upsert(str(path))
    lost = max(open_table(path).load_timeline().completed, key=lambda i: i.requested_time)
    options = ("--picking", "universal", "--compaction-trigger", "2", "--size-ratio", "100")
    assert CliRunner().invoke(app, ["schedule", str(path), *options, "--sole-writer"]).exit_code == 0
    assert open_table(path).load_timeline().pending("logcompaction")
    rows_of(range(100, 102), 5).upsert(str(path))
    (path / open_table(path).instant_path(lost)).unlink()
    with pytest.raises(MissingFileError, match=rf"{lost.requested_time}.*logcompaction.requested names"):
        values(path)
