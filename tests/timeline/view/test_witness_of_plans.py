"""A requested compaction of which a file is lost or damaged: nothing wrong is completed, and the error's way out frees
the other file groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.read import MetadataListing
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.service.loading import load_state
from tests.support.archived_tables import SMALL
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep


def rows_of(keys: range, ts: int, version: int) -> Any:
    batch = pa.table(
        {"id": [f"k{k}" for k in keys], "p": ["ab"[k % 2] for k in keys], "ts": pa.array([ts] * len(keys), pa.int64())}
    )
    return writer(batch).table("t", version=version).key("id").partition("p").ordering("ts")


def values(path: Path, **how: Any) -> dict[str, int]:
    return {row["id"]: row["ts"] for row in read(str(path), **how).to_arrow().to_pylist()}


def command(name: str, path: Path, *more: str) -> Any:
    options = ["--executor", "local"] if name == "compact" else []
    return CliRunner().invoke(app, [name, str(path), *more, *options, "--sole-writer"])


def planned(path: Path, version: int, later: range) -> str:
    """20 keys with a base and a log file in both partitions, which a plan holds; its instant. `later`: keys written
    since."""
    rows_of(range(20), 1, version).upsert(str(path))
    rows_of(range(4), 2, version).upsert(str(path))
    assert command("schedule", path).exit_code == 0
    if later:
        rows_of(later, 3, version).upsert(str(path))
    (plan,) = open_table(path).load_timeline().pending_compactions
    return plan.requested_time


def base_files(path: Path) -> list[int]:
    return [len([*path.glob(f"{p}/*.parquet")]) for p in "ab"]


@pytest.mark.parametrize("kind", ["b/*.parquet", deep("b/.*.log.*")])
@pytest.mark.parametrize(
    ("version", "later"), [(9, range(4)), (6, range(1, 4, 2)), deep(9, range(0)), deep(6, range(0)), deep(8, range(4))]
)
@pytest.mark.parametrize("is_lost", [True, deep(False)])
def test_a_plan_is_narrowed(version: int, later: range, kind: str, is_lost: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, version, later)
    file = min(path.glob(kind))
    data = file.read_bytes()
    if is_lost:
        file.unlink()
    else:
        file.write_bytes(data[: len(data) // 2])
    refused = command("compact", path)
    assert (refused.exit_code, base_files(path)) == (1, [1, 0 if is_lost and file.suffix == ".parquet" else 1])
    assert file.name in str(refused.exception)
    assert f"compactor-daemon unschedule TABLE {instant}" in str(refused.exception)
    assert command("unschedule", path, instant).exit_code == 0
    command("schedule", path)
    command("compact", path)
    assert base_files(path)[0] == 2
    assert len(values(path, partition="a")) == 10
    file.write_bytes(data)
    assert values(path) == {f"k{k}": 3 if k in later else 2 if k < 4 else 1 for k in range(20)}


def test_logs_on_a_plan_of_version_6_keep_it_until_the_partition_is_written_anew(tmp_path: Path) -> None:
    """Without the plan no reader would find them, of the whole file groups either."""
    path = tmp_path / "t"
    instant = planned(path, 6, range(4))
    min(path.glob("b/*.parquet")).unlink()
    refused = command("compact", path)
    assert "Write the partition 'b' again by insert_overwrite" in str(refused.exception)
    assert command("unschedule", path, instant).exit_code == 1
    rows_of(range(1, 4, 2), 4, 6).insert_overwrite(str(path))
    assert command("compact", path).exit_code == 0
    assert base_files(path)[0] == 2
    assert values(path) == {**{f"k{k}": 3 if k < 4 else 1 for k in range(0, 20, 2)}, "k1": 4, "k3": 4}


@pytest.mark.parametrize(("version", "is_planned"), [(6, False), (9, False), (9, True), deep(6, True), deep(8, True)])
def test_a_lost_base_file_of_an_archived_write_on_which_log_files_lie(
    version: int, is_planned: bool, tmp_path: Path
) -> None:
    """No active write made it. The log files' statistics name it, and the plan."""
    path = tmp_path / "t"
    for ts, keys in enumerate((range(20), *[range(4)] * 5), 1):
        rows_of(keys, ts, version).upsert(str(path))
    assert archive_table(open_table(path), SMALL, ProcessLock("test")).archived
    if is_planned:
        assert command("schedule", path).exit_code == 0
        rows_of(range(4), 7, version).upsert(str(path))
    whole = values(path)
    (file,) = path.glob("b/*.parquet")
    data = file.read_bytes()
    file.unlink()
    for query in ("snapshot", "read-optimized"):
        with pytest.raises(MissingFileError, match=file.name):
            values(path, query=query)
    assert load_state(open_table(path)).refused == {"b"}
    for name in ("schedule", "compact"):
        command(name, path)
    assert len([*path.glob("b/*.parquet")]) == 0
    file.write_bytes(data)
    assert values(path) == whole


def test_a_lost_base_file_of_an_archived_write_below_hudis_log_files(tmp_path: Path) -> None:
    """From version 8 on Hudi's statistics of a log file do not name it. The positions in the log blocks are of it,
    which reads ask, and a plan names it."""
    path = unzip_golden("v9_plain", tmp_path)
    assert archive_table(open_table(path), SMALL, ProcessLock("test")).archived
    assert len(values(path)) == 120
    for is_planned in (False, True):
        if is_planned:
            assert command("schedule", path).exit_code == 0
        for file in path.glob("[!.]*/*.parquet"):
            data = file.read_bytes()
            file.unlink()
            with pytest.raises(MissingFileError, match=file.name.rpartition("_")[2]):
                values(path)
            assert not is_planned or load_state(open_table(path)).refused == {file.parent.name}
            file.write_bytes(data)


def test_log_files_on_a_plan_of_version_6_that_is_gone(tmp_path: Path) -> None:
    """Only the plan says that they are of the newest slice. The metadata table lists them, and does not say it."""
    path = tmp_path / "t"
    rows_of(range(20), 1, 6).conf({"hoodie.metadata.enable": True}).upsert(str(path))
    instant = planned(path, 6, range(1, 4, 2))
    assert open_table(path).config.built_metadata_partitions
    listed = [open_table(path), replace(open_table(path), listing=MetadataListing())]
    whole = values(path)
    assert all(len(read_table(table)) == len(whole) for table in listed)
    plan = path / ".hoodie" / f"{instant}.compaction.requested"
    data = plan.read_bytes()
    plan.unlink()
    for table in listed:
        with pytest.raises(MissingFileError, match="in no file slice"):
            read_table(table)
    assert len(values(path, partition="a")) == 10
    assert load_state(open_table(path)).refused == {"b"}
    with pytest.raises(MissingFileError, match="in no file slice"):
        rows_of(range(1, 4, 2), 4, 6).upsert(str(path))
    plan.write_bytes(data)
    assert values(path) == whole
    plan.unlink()
    command("schedule", path)
    assert {partition for partition, _ in open_table(path).load_view().facts.pending_plans} == {"a"}
