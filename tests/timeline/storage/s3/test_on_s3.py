"""Tables on an S3 server: the commands, readers, writers and executors, as on a disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN
from tests.support.places import ROOT
from tests.support.s3_table import AnyServer, check_compacted, check_read_and_compacted, fares, on_s3, run
from tests.support.s3_table import no_local_disk as no_local_disk
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips
from tests.support.warm_spark import WarmSpark, warm_spark

USUAL = {"v6_pending", "v6_with_metadata_table", "v9_two_pending", "v9_bucket_nonpart", "v9_with_metadata_table"}


@pytest.mark.parametrize("name", [n if n in USUAL else deep(n) for n in GOLDEN])
def test_golden_tables_are_read_and_compacted(name: str, s3: AnyServer, tmp_path: Path) -> None:
    check_read_and_compacted(name, s3, tmp_path)


@pytest.mark.parametrize("version", [6, 9])
def test_a_table_is_made_and_written_there(s3: S3Server, version: int) -> None:
    """New table, upserts, deletes, a plan and its compaction; equal to the same steps on disk."""
    url = f"s3://{s3.new_bucket()}/a/b"
    trips(rows((1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0)), version).upsert(url)
    trips(rows((1, 2, 1.5), (4, 2, 4.0)), version).upsert(url)
    trips(rows((2, 3, 0.0)), version).delete(url)
    expected = {"k0001": 1.5, "k0003": 3.0, "k0004": 4.0}
    assert fares(url) == expected
    run("schedule", url, "--sole-writer")
    trips(rows((3, 4, 3.5)), version).upsert(url)
    run("compact", url, "--executor", "local")
    assert fares(url) == {**expected, "k0003": 3.5}
    assert Table.open(url).load_timeline().pending_merges == ()


def test_a_daemon_serves_a_table_there(s3: S3Server, tmp_path: Path) -> None:
    path, url = on_s3(s3, "v9_two_pending", tmp_path)
    run("run", url, "--once", "--executor", "local")
    assert Table.open(url).load_timeline().pending_merges == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(Table.open(url)), pq.read_table(expected))
    run("status", url)


@pytest.mark.deep  # `test_modes.py` has a job whose tasks do
@pytest.mark.spark
def test_a_command_with_spark_executors(s3: S3Server, tmp_path: Path) -> None:
    """Tasks run in processes of their own, with what the environment names."""
    path, url = on_s3(s3, "v9_two_pending", tmp_path)
    before = read_table(Table.open(url))
    # A process of its own: Spark's workers have the environment of the JVM, which other tests may have started before.
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact", url, "--master", "local[2]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_compacted("v9_two_pending", path, url, before, read_table(Table.open(url)))


@pytest.fixture(scope="module")
def spark(shared_s3: S3Server) -> Iterator[WarmSpark]:
    """One Spark for all tables, whose processes know the server."""
    with warm_spark(shared_s3.environment()) as running:
        yield running


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("name", GOLDEN)
def test_spark_executors_open_the_storage_by_its_url(name: str, spark: WarmSpark, s3: S3Server, tmp_path: Path) -> None:
    """The golden tables in tasks of Spark."""
    path, url = on_s3(s3, name, tmp_path)
    before = read_table(Table.open(url))
    if not Table.open(url).load_timeline().pending_merges:
        run("schedule", url, "--sole-writer", "--drop-metadata-table")
    spark.compact(url)
    check_compacted(name, path, url, before, read_table(Table.open(url)))
