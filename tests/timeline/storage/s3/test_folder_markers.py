"""Objects that s3a leaves where a folder is empty, `name/` of zero bytes: they are nothing to us."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips

HUDIS = (
    *(".hoodie/.temp", ".hoodie/.schema", ".hoodie/.aux/.bootstrap/.partitions", ".hoodie/.aux/.bootstrap/.fileids"),
    *(".hoodie/.heartbeat", ".hoodie/archived", ".hoodie/timeline/history", ".hoodie/.locks", ".hoodie/.aux"),
    *(".hoodie/metadata/.hoodie/.temp", ".hoodie/metadata/.hoodie/.heartbeat", ".hoodie/.index_defs"),
)
"""Seen beside Hudi 0.15.0 and 1.2.0."""


def mark(s3: S3Server, url: str, folders: set[str]) -> None:
    """A marker in each of these folders of a table; "" is its base path."""
    base = url.partition("://")[2]
    for folder in sorted(folders):
        s3.put(f"{base}/{folder}/" if folder else f"{base}/", b"")


def looked_at(url: str, *of: str) -> list[str]:
    """What the commands print of a table, but for its place."""
    done = [CliRunner().invoke(timeline, [command, url, "--json"]) for command in of]
    assert all(d.exit_code == 0 for d in done), done
    return [d.output.replace(url, "TABLE") for d in done]


@pytest.mark.parametrize("name", ["v9_with_metadata_table", *map(deep, ("v6_with_metadata_table", "v9_two_pending"))])
def test_they_change_nothing(name: str, s3: S3Server, tmp_path: Path) -> None:
    """Listings are those of the table without them; it is compacted, proved and written like that one."""
    path = unzip_golden(name, tmp_path)
    plain = s3.upload(path, s3.new_bucket(), "lake/t")
    marked = s3.upload(path, s3.new_bucket(), "lake/t")
    folders = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_dir()} | {"", *HUDIS}
    if not (path / ".hoodie/metadata").exists():
        folders = {folder for folder in folders if "/metadata/" not in folder}
    mark(s3, marked, folders)

    bare, under = Table.open(plain), Table.open(marked)
    assert under.partitions() == bare.partitions()
    assert [i.file_name for i in under.load_timeline().instants] == [i.file_name for i in bare.load_timeline().instants]
    for folder in folders:
        assert files(under, folder) == files(bare, folder), folder
    # The times of a copy are not those that Hudi needs on version 6.
    commands = ("slices", "validate") if name == "v9_with_metadata_table" else ("slices",)
    assert looked_at(marked, *commands) == looked_at(plain, *commands)
    assert_same_rows(read_table(under), read_table(bare))

    done = CliRunner().invoke(daemon, ["compact", marked, "--executor", "local"])
    assert done.exit_code == 0, done.output
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    table = Table.open(marked)
    assert_same_rows(read_table(table), pq.read_table(expected) if expected.exists() else read_table(bare))
    assert audited_instants(table)
    assert all(audit(table, instant).good for instant in audited_instants(table))
    looked_at(marked, *commands)


def files(table: Table, folder: str) -> list[str]:
    """The names of files in a folder; none where there is no such folder."""
    try:
        return [entry.name for entry in table.storage.list(folder) if not entry.is_folder]
    except MissingFileError:
        return []


@pytest.mark.parametrize("version", [9, deep(6)])
def test_a_table_is_made_below_markers(version: int, s3: S3Server) -> None:
    """In folders that another tool made first; and they may come in between, as Hudi's services leave them."""
    url = f"s3://{s3.new_bucket()}/lake/t"
    mark(s3, url, {""})
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), version).upsert(url)
    mark(s3, url, {"mon", "tue", "wed", *(f for f in HUDIS if "metadata" not in f)})
    trips(rows((1, 2, 3.0), (3, 2, 3.0)), version).compact_inline(max_delta_commits=1).upsert(url)
    found = read_table(url_table := Table.open(url))
    assert sorted(found["fare"].to_pylist()) == [2.0, 3.0, 3.0]
    assert set(url_table.partitions()) == {"mon", "tue", "wed"}
    assert all(audit(url_table, instant).good for instant in audited_instants(url_table))
