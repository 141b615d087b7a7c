"""Daemons over the tables of a catalog: found, shared among daemons, one hostile, tables that appear and disappear."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.fleet.catalog import fleet_of, members_in
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from phantombase.timeline.errors import PhantombaseError
from tests.support.compaction_steps import open_table
from tests.support.daemons import daemon_process, hostile_table, lake_of, pending_table
from tests.support.selection import deep
from tests.support.servers.zookeeper_server import ZooKeeper, free_ports, wait_until

POLL_S = 2.0
QUOTA, SLOTS = 0.25, 2
_MEASURED_S = 45.0


def is_done(path: Path) -> bool:
    """Whether nothing of the table is pending."""
    return not open_table(path).load_timeline().pending_compactions


@pytest.mark.parametrize(("tables", "least", "limit_s"), [(24, 1, 120.0), deep(1000, 125, 900.0)])
def test_three_daemons_serve_a_lake_with_one_hostile_table(
    tmp_path: Path, zookeeper: ZooKeeper, tables: int, least: int, limit_s: float
) -> None:
    """Every daemon has a share; a table that comes later is compacted, too; the hostile one stops none.

    The names of the processes decide who has which tables: of few tables one may have few."""
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

        # A daemon that has just come has none yet.
        wait_until(lambda: len(found := shares()) == 3 and sum(found) == tables + 1 and min(found) >= least, 60.0)

        (late,) = lake_of(root, ["db1/late"], original)
        wait_until(lambda: is_done(late), 60.0)
        assert all(process.poll() is None for process in processes)

        shown = CliRunner().invoke(
            app, ["status", "--root", str(root), "--zookeeper", zookeeper.hosts, "--slo", "1", "--json"]
        )
        data = json.loads(shown.stdout)
        assert data["tables"][0]["name"] == "db0/hostile", "the worst comes first"
        assert "hoodie.properties" in data["tables"][0]["reason"]
        assert [row["name"] for row in data["tables"] if row["health"] == "broken"] == ["db0/hostile"]
        assert sum(one["troubled"] for one in data["daemons"]) == 1
    logs = [(tmp_path / f"daemon-{n}.log").read_text() for n in range(3)]
    assert sum(log.count("table_trouble") for log in logs) >= 1
    assert not any("Traceback" in log for log in logs)
    with pytest.raises(PhantombaseError):
        open_table(hostile)


@pytest.mark.deep
def test_a_quota_is_held_by_each_daemon(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """The pool has its part of the slots, though nothing else wants them any more; and by the seconds that compactions
    took no more than that. They are fewer: a slot is also held for the claim."""
    root, original = tmp_path / "lake", pending_table(tmp_path / "original")
    limited = lake_of(root, [f"a_{n:03}" for n in range(400)], original)
    free = lake_of(root, [f"b_{n:03}" for n in range(100)], original)
    config = tmp_path / "pools.toml"
    config.write_text(f'[[pool]]\nmatch = "a_*"\nquota = {QUOTA}\n')
    ports = free_ports(2)
    with ExitStack() as stack:
        for number, port in enumerate(ports):
            arguments = ("--root", str(root), "--config", str(config), "--zookeeper", zookeeper.hosts)
            few = ("--max-concurrent", str(SLOTS), "--metrics-port", str(port), "--poll-interval", str(POLL_S))
            stack.enter_context(daemon_process(tmp_path / f"daemon-{number}.log", *arguments, *few))
        wait_until(lambda: all(is_done(path) for path in free), 300.0)
        began, before = time.monotonic(), [taken_s(port) for port in ports]
        time.sleep(_MEASURED_S)
        after, took = [taken_s(port) for port in ports], time.monotonic() - began
        assert any(not is_done(path) for path in limited), "there was work all the time"
        assert [lane_occupancy(port) for port in ports] == pytest.approx([QUOTA] * 2, rel=0.1)
    held = [(end - start) / (SLOTS * took) for start, end in zip(before, after, strict=True)]
    assert all(0 < one < 1.1 * QUOTA for one in held), held


def taken_s(port: int) -> float:
    """The seconds that the compactions of a daemon took, from claim to end."""
    return metric(port, "phantombase_compaction_seconds_sum ")


def lane_occupancy(port: int) -> float:
    """What a daemon says of the pool with the quota."""
    return metric(port, 'phantombase_pool_occupancy{pool="a_*"} ')


def metric(port: int, name: str) -> float:
    """The value of a series."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        (line,) = [one for one in answer.read().decode().splitlines() if one.startswith(name)]
    return float(line.split()[-1])
