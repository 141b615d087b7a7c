"""Tables on Azurite, and on real S3 servers: what is tested on an S3 server for tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import GOLDEN
from tests.support.places import ROOT
from tests.support.s3_table import check_compacted, check_read_and_compacted, fares, on_s3, run
from tests.support.s3_table import no_local_disk as no_local_disk
from tests.support.selection import deep
from tests.support.servers.azure_server import AzureServer
from tests.support.servers.real_s3_server import REAL
from tests.support.trips import rows, trips

_MAIN = "from phantombase.compactor_daemon.cli.main import main; main()"


@pytest.mark.deep
@pytest.mark.parametrize("server", REAL)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables_are_read_and_compacted(
    name: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    check_read_and_compacted(name, request.getfixturevalue(server), tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("server", REAL)
@pytest.mark.parametrize("name", ["v6_two_pending", "v8_two_pending", "v9_two_pending"])
def test_two_daemons_share_the_compactions(
    name: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """At once, without ZooKeeper: each compaction is claimed by one of them, and done once."""
    path, url = on_s3(request.getfixturevalue(server), name, tmp_path)
    before = read_table(Table.open(str(path)))
    command = [sys.executable, "-c", _MAIN, "run", url, "--once", "--executor", "local"]
    daemons = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    said = [daemon.communicate(timeout=600)[0].decode() for daemon in daemons]
    assert [daemon.returncode for daemon in daemons] == [0, 0], said
    assert sum(int(done) for text in said for done in re.findall(r"(\d+) compactions? done, 0 failed", text)) == 2, said
    check_compacted(name, path, url, before, read_table(Table.open(url)))


USUAL = {"v6_pending", "v9_with_metadata_table"}


@pytest.mark.parametrize("name", [n if n in USUAL else deep(n) for n in GOLDEN])
def test_on_azure_golden_tables_are_read_and_compacted(name: str, azure: AzureServer, tmp_path: Path) -> None:
    check_read_and_compacted(name, azure, tmp_path)


def test_a_table_is_made_and_written_there(azure: AzureServer) -> None:
    """New table, upserts, a plan and its compaction."""
    url = azure.url(azure.new_bucket(), "a/b")
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), 9).upsert(url)
    trips(rows((1, 2, 1.5)), 9).upsert(url)
    run("schedule", url, "--sole-writer")
    trips(rows((3, 3, 3.0)), 9).upsert(url)
    run("compact", url, "--executor", "local")
    assert fares(url) == {"k0001": 1.5, "k0002": 2.0, "k0003": 3.0}
    assert Table.open(url).load_timeline().pending_merges == ()
