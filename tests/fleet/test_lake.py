"""Daemons over the tables of a lake: found, shared among daemons, one hostile among them, tables that come and go."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.lake.members import fleet_of, members_in
from phantombase.compactor_daemon.zookeeper.session import ZooKeeperOptions, zookeeper_session
from phantombase.timeline.errors import PhantombaseError
from tests.support.compaction_steps import open_table
from tests.support.lakes import daemon_process, hostile_table, lake_of, pending_table
from tests.support.selection import deep
from tests.support.zookeeper_server import ZooKeeper, wait_until

POLL_S = 2.0


def is_done(path: Path) -> bool:
    """Whether nothing of the table is pending."""
    return not open_table(path).load_timeline().pending_compactions


@pytest.mark.parametrize(("tables", "limit_s"), [(24, 120.0), deep(1000, 900.0)])
def test_three_daemons_serve_a_lake_with_one_hostile_table(
    tmp_path: Path, zookeeper: ZooKeeper, tables: int, limit_s: float
) -> None:
    """Every daemon has a share; a table that comes later is compacted within two polls; the hostile one stops none."""
    root, original = tmp_path / "lake", pending_table(tmp_path / "original")
    paths = lake_of(root, [f"db{n % 3}/t{n:04}" for n in range(tables)], original)
    hostile = hostile_table(root / "db0" / "hostile", original)
    arguments = ("--root", str(root), "--zookeeper", zookeeper.hosts, "--poll-interval", str(POLL_S))
    with ExitStack() as stack, zookeeper_session(ZooKeeperOptions(hosts=zookeeper.hosts)) as session:
        processes = [
            stack.enter_context(daemon_process(tmp_path / f"daemon-{n}.log", *arguments, "--zookeeper-session", "30"))
            for n in range(3)
        ]
        left = set(paths)

        def all_done() -> bool:
            left.difference_update([path for path in left if is_done(path)])
            return not left

        wait_until(all_done, limit_s)

        def shares() -> list[int]:
            return sorted(one["tables"] for one in members_in(session, fleet_of(str(root))))

        wait_until(lambda: sum(shares()) == tables + 1, 30.0)
        assert len(shares()) == 3
        assert min(shares()) > tables / 8, f"a share of {tables} tables: {shares()}"

        (late,) = lake_of(root, ["db1/late"], original)
        began = time.monotonic()
        wait_until(lambda: is_done(late), 60.0)
        assert time.monotonic() - began < 2 * POLL_S + 3.0, "within two polls, and its work"
        assert all(process.poll() is None for process in processes)

        shown = CliRunner().invoke(
            app, ["status", "--root", str(root), "--zookeeper", zookeeper.hosts, "--slo", "1", "--json"]
        )
        data = json.loads(shown.stdout)
        assert data["tables"][0]["name"] == "db0/hostile", "the worst comes first"
        assert "hoodie.properties" in data["tables"][0]["problem"]
        assert [row["name"] for row in data["tables"] if row["problem"]] == ["db0/hostile"]
        assert sum(one["troubled"] for one in data["daemons"]) == 1
    logs = [(tmp_path / f"daemon-{n}.log").read_text() for n in range(3)]
    assert sum(log.count("table_trouble") for log in logs) >= 1
    assert not any("Traceback" in log for log in logs)
    with pytest.raises(PhantombaseError):
        open_table(hostile)
