"""The fleet of `deploy/compose.yaml` in containers: three ZooKeeper servers, three daemons, shared tables."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.timeline.instants.reserved_times import COMMITTED, attempts
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from tests.outside.containers.compose import ZOOKEEPERS, Compose, ask, is_healthy, wait_until
from tests.support.compaction_steps import check_no_strays, open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden

PENDING = ("v6_pending", "v6_two_pending", "v8_pending", "v8_two_pending", "v9_pending", "v9_two_pending")
"""Nine plans together."""

_DONE_MAX_S = 180.0
_CLAIMED_MAX_S = 120.0
_STOP_MAX_S = 90


class Tables:
    """Golden tables with pending plans, and what they held before."""

    def __init__(self, names: tuple[str, ...], into: Path) -> None:
        self.paths = [unzip_golden(name, into / name) for name in names]
        self._before = {path: read_table(open_table(path)) for path in self.paths}
        self._plans = {path: pending_instants(open_table(path)) for path in self.paths}

    def pending(self) -> int:
        """How many plans are not executed yet."""
        return sum(len(pending_instants(open_table(path))) for path in self.paths)

    def done(self) -> bool:
        """Whether all are."""
        return self.pending() == 0

    def check(self) -> list[int]:
        """Every plan has one winner, no row changed, nothing is left lying about; the attempts each plan took."""
        numbers = []
        for path in self.paths:
            assert_same_rows(self.rows(path), self._before[path])
            for instant in self._plans[path]:
                storage = LocalStorage(str(path))
                outcomes = [read_outcome(storage, instant, number) for number in attempts(storage, instant)]
                assert [outcome.kind for outcome in outcomes if outcome is not None].count(COMMITTED) == 1
                assert outcomes[-1] is not None
                numbers.append(len(outcomes))
            check_no_strays(path)
        return numbers

    def rows(self, path: Path) -> pa.Table:
        """The snapshot."""
        return read_table(open_table(path))


def logged(containers: list[Any], event: str) -> list[dict[str, Any]]:
    """The log lines of one event, over all containers."""
    lines = [line for c in containers for line in c.logs().decode().splitlines() if line.startswith('{"')]
    return [entry for entry in map(json.loads, lines) if entry.get("event") == event]


def stop(containers: list[Any]) -> None:
    """What `docker stop` does to each; all must end well before they are killed."""
    for container in containers:
        container.stop(timeout=_STOP_MAX_S)
        assert container.wait(timeout=_STOP_MAX_S)["StatusCode"] == 0


def test_every_plan_is_executed_exactly_once(compose: Compose) -> None:
    """Nine plans on six tables: one attempt each, the work is shared, all daemons are healthy and stop on request."""
    tables = Tables(PENDING, compose.tables)
    compose.hold.touch()
    daemons = compose.start_daemons(tables.paths, "--json")
    assert len(daemons) == 3
    wait_until("all daemons are at work", lambda: holders(compose, daemons, tables) == set(daemons), _CLAIMED_MAX_S)
    compose.hold.unlink()
    wait_until("all plans are executed", tables.done, _DONE_MAX_S)
    wait_until("the daemons are healthy", lambda: all(map(is_healthy, daemons)), _CLAIMED_MAX_S)
    stop(daemons)
    assert tables.check() == [1] * 9
    assert len(logged(daemons, "compacted")) == 9
    assert all(logged([daemon], "compacted") for daemon in daemons)


def test_what_a_killed_daemon_had_claimed_is_taken_over(compose: Compose) -> None:
    """SIGKILL in the middle of a compaction: another daemon finishes it, with the file slices that were finished."""
    tables = Tables(("v9_pending",), compose.tables)
    compose.hold.touch()
    daemons = compose.start_daemons(tables.paths, "--json", "--zookeeper-session 10")
    wait_until("the plan is claimed", lambda: bool(holders(compose, daemons, tables)), _CLAIMED_MAX_S)
    wait_until("a file slice is finished", lambda: bool(list(compose.tables.rglob("*.ok"))), _CLAIMED_MAX_S)
    (victim,) = holders(compose, daemons, tables)
    victim.kill("SIGKILL")
    killed = time.monotonic()
    compose.hold.unlink()
    assert not tables.done()
    wait_until("another daemon has finished", tables.done, _DONE_MAX_S)
    print(f"taken over and finished {time.monotonic() - killed:.1f} s after the kill")
    survivors = [daemon for daemon in daemons if daemon != victim]
    stop(survivors)
    assert tables.check() == [2]
    assert not logged([victim], "compacted")
    finished_again = sum(entry["slices"] for entry in logged(survivors, "staging"))
    assert finished_again < logged([victim], "staging")[0]["slices"]


@pytest.mark.deep
def test_the_fleet_goes_on_without_zookeepers_leader(compose: Compose) -> None:
    """The leader is stopped while plans are executed: the rest elects another, and no work is lost or done twice."""
    tables = Tables(("v6_two_pending", "v9_two_pending"), compose.tables)
    compose.hold.touch()
    daemons = compose.start_daemons(tables.paths, "--json")
    wait_until("all daemons are at work", lambda: holders(compose, daemons, tables) == set(daemons), _CLAIMED_MAX_S)
    (leader,) = leaders(compose)
    leader.stop(timeout=1)
    compose.hold.unlink()
    wait_until("all plans are executed", tables.done, _DONE_MAX_S)
    assert leaders(compose)
    assert leaders(compose) != [leader]
    # Who has not found the new leader yet says, when it is stopped, that it could not work.
    wait_until("all work again", lambda: all(ask(d, "readyz") == "ok\n" for d in daemons), _CLAIMED_MAX_S)
    stop(daemons)
    assert tables.check() == [1] * 4


@pytest.mark.deep
def test_without_zookeeper_nothing_new_is_claimed(compose: Compose) -> None:
    """All servers gone: daemons live but are not ready, and finish what they have claimed; back: the rest is done."""
    tables = Tables(("v6_two_pending", "v9_two_pending"), compose.tables)
    compose.hold.touch()
    daemons = compose.start_daemons(tables.paths, "--json")
    wait_until("all daemons are at work", lambda: holders(compose, daemons, tables) == set(daemons), _CLAIMED_MAX_S)
    servers = [server for name in ZOOKEEPERS for server in compose.containers(name)]
    for server in servers:
        server.stop(timeout=1)
    wait_until("all notice", lambda: all("no connection" in ask(d, "readyz") for d in daemons), _CLAIMED_MAX_S)
    assert [ask(daemon, "healthz") for daemon in daemons] == ["ok\n"] * 3
    compose.hold.unlink()
    wait_until("what was claimed is done", lambda: tables.pending() == 1, _DONE_MAX_S)
    wait_until("the loss shows", lambda: all(_connected(d) == "0.0" for d in daemons), _CLAIMED_MAX_S)
    assert tables.pending() == 1
    for server in servers:
        server.start()
    wait_until("the rest is executed", tables.done, _DONE_MAX_S)
    wait_until("all are connected", lambda: all(_connected(d) == "1.0" for d in daemons), _CLAIMED_MAX_S)
    stop(daemons)
    assert tables.check() == [1] * 4


def holders(compose: Compose, daemons: list[Any], tables: Tables) -> set[Any]:
    """The containers of the daemons that hold claims."""
    by_name = {daemon.attrs["Config"]["Hostname"]: daemon for daemon in daemons}
    return {by_name[claim["host"]] for claim in compose.claims(daemons[0], tables.paths)}


def leaders(compose: Compose) -> list[Any]:
    """The containers of ZooKeeper's leader: one, or none during an election."""
    return [server for name in ZOOKEEPERS for server in compose.containers(name) if _mode(server) == "leader"]


def _mode(server: Any) -> str:
    """What ZooKeeper's `srvr` says: leader, follower."""
    asked = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2181; printf srvr >&3; cat <&3"]
    _, answer = server.exec_run(asked)
    return next((line.split()[1] for line in answer.decode().splitlines() if line.startswith("Mode:")), "none")


def _connected(daemon: Any) -> str:
    """What a daemon's metrics say of ZooKeeper."""
    lines = ask(daemon, "metrics").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("phantombase_zookeeper_connected ")), "none")
