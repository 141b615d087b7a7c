"""The embedded server: it starts, is shared, outlives its daemon's end only in another daemon's hands, and dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss

from phantombase.compactor_daemon.fleet import zookeeper_server
from phantombase.compactor_daemon.fleet.zookeeper_server import (
    ask,
    default_folder,
    embedded_hosts,
    embedded_zookeeper,
    is_serving,
)
from phantombase.timeline.errors import ZooKeeperError
from tests.support.places import capture_logs
from tests.support.selection import deep
from tests.support.servers.network_partition import Side, link
from tests.support.servers.zookeeper_ensemble import Ensemble
from tests.support.servers.zookeeper_server import ZooKeeper, client, expire, wait_until

_DAEMON = """
import sys, time
from pathlib import Path
from phantombase.compactor_daemon.fleet.zookeeper_server import embedded_zookeeper
with embedded_zookeeper(Path(sys.argv[1])) as server:
    print(server.hosts, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def daemon(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that keeps a server, and the server's hosts; it ends well when given a line."""
    command = [sys.executable, "-c", _DAEMON, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield process, next(line.strip() for line in lines if line.startswith("127.0.0.1:"))
    finally:
        process.kill()
        process.communicate(timeout=60)


def servers(folder: Path) -> list[int]:
    """Processes that run a server in a folder, or guard one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder / "zoo.cfg").encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # has just ended
            continue
    return found


def java(folder: Path) -> int | None:
    """The server's process: the leader of the guard's group; None while there is none."""
    for pid in servers(folder):
        with suppress(ProcessLookupError):  # has just ended
            if os.getpgid(pid) == pid:
                return pid
    return None


def signal_java(folder: Path, number: signal.Signals) -> None:
    """To the server's process."""
    pid = java(folder)
    assert pid is not None
    os.kill(pid, number)


def test_a_server_starts_and_keeps_its_data_and_port(tmp_path: Path) -> None:
    """It answers, is found by its folder, is gone afterwards with its guard, and knows its nodes the next time."""
    folder = tmp_path / "with space ünd é"
    with embedded_zookeeper(folder) as server:
        wait_until(lambda: server.problem() is None)
        assert embedded_hosts(folder) == server.hosts
        with client(server.hosts) as zookeeper:
            zookeeper.create("/kept", b"yes")
    wait_until(lambda: not servers(folder))
    with pytest.raises(ZooKeeperError, match="no embedded ZooKeeper is running"):
        embedded_hosts(folder)
    with embedded_zookeeper(folder) as again, client(again.hosts) as zookeeper:
        assert again.hosts == server.hosts
        assert zookeeper.get("/kept")[0] == b"yes"


def test_a_server_dies_with_its_daemon(tmp_path: Path) -> None:
    """SIGKILL of the daemon ends the server and its guard within seconds."""
    with daemon(tmp_path) as (process, hosts):
        assert is_serving(int(hosts.rpartition(":")[2]))
        assert len(servers(tmp_path)) == 2
        process.kill()
        process.wait(60)
        wait_until(lambda: not servers(tmp_path))


@pytest.mark.parametrize("end", ["SIGKILL", deep("well")])
def test_others_keep_the_server_when_its_daemon_ends(tmp_path: Path, end: str) -> None:
    """A daemon that joined starts it again on the same port; a client's session and its claim are still there."""
    with ExitStack() as stack:
        first, hosts = stack.enter_context(daemon(tmp_path))
        joined = stack.enter_context(embedded_zookeeper(tmp_path))
        # ZooKeeper never answers who comes while it starts; a client waits for its session's time by its hosts' number.
        zookeeper = stack.enter_context(client(",".join([hosts] * 3)))
        assert joined.hosts == hosts
        zookeeper.create("/claim", ephemeral=True)
        session, before = zookeeper.client_id, java(tmp_path)
        if end == "SIGKILL":
            first.kill()
            first.wait(60)
        else:
            first.communicate("\n", timeout=60)
        wait_until(lambda: java(tmp_path) not in (None, before) and joined.problem() is None)
        assert zookeeper.retry(zookeeper.exists, "/claim") is not None
        assert zookeeper.client_id == session
        wait_until(lambda: len(servers(tmp_path)) == 2)


def test_the_daemon_that_joined_leaves_the_server_alone(tmp_path: Path) -> None:
    """Its end is not the server's."""
    with daemon(tmp_path) as (_, hosts):
        before = servers(tmp_path)
        with embedded_zookeeper(tmp_path) as joined:
            assert joined.hosts == hosts
        assert servers(tmp_path) == before


def test_a_dead_server_is_noticed_and_started_again(tmp_path: Path) -> None:
    """`problem` tells at once, the log says so, and the same port answers again."""
    with capture_logs() as logs, embedded_zookeeper(tmp_path) as server:
        signal_java(tmp_path, signal.SIGKILL)
        while (found := server.problem()) is None:  # its threads end one by one
            pass
        assert str(tmp_path) in found
        assert "end of its log" in found
        wait_until(lambda: server.problem() is None)
        assert embedded_hosts(tmp_path) == server.hosts
    assert {"zookeeper_ended", "zookeeper_started_again"} <= {entry["event"] for entry in logs}


def test_a_server_that_ends_at_once_is_not_started_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ten seconds between two starts."""

    class Ended:
        def has_ended(self) -> bool:
            return True

        def stop(self) -> None: ...

    started = []

    def start(_folder: Path, *, port: int, **_: object) -> Ended:
        started.append(port)
        return Ended()

    monkeypatch.setattr(zookeeper_server, "start_server", start)
    keeper = zookeeper_server.EmbeddedZooKeeper(tmp_path)
    keeper.port = 1
    for _ in range(3):
        keeper._check()
    assert started == [1]


def test_a_server_that_stands_still_is_a_problem(tmp_path: Path) -> None:
    """No answer is not "well"; and its daemon can still end it."""
    with embedded_zookeeper(tmp_path) as server:
        signal_java(tmp_path, signal.SIGSTOP)
        wait_until(lambda: server.problem() is not None)  # its threads stop one by one
    wait_until(lambda: not servers(tmp_path))


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Damaged data: the error has the server's own words and what to do; nothing stays behind, and the lock is free."""
    with embedded_zookeeper(tmp_path) as server, client(server.hosts) as zookeeper:
        zookeeper.create("/kept")
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    with pytest.raises(ZooKeeperError) as caught, embedded_zookeeper(tmp_path):
        pass
    assert "did not start" in str(caught.value)
    assert "Exception" in str(caught.value)
    wait_until(lambda: not servers(tmp_path))
    (data,) = re.findall(r"Delete (\S+),", str(caught.value))
    shutil.rmtree(data)
    with embedded_zookeeper(tmp_path) as server:
        assert server.problem() is None


def test_a_server_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a daemon that would join it names the file that its process holds."""
    with daemon(tmp_path):
        signal_java(tmp_path, signal.SIGSTOP)
        wait_until(lambda: not is_serving(int((tmp_path / "port").read_text())))
        with monkeypatch.context() as patch:
            patch.setattr(zookeeper_server, "START_MAX_S", 0.1)
            with pytest.raises(ZooKeeperError) as caught, embedded_zookeeper(tmp_path):
                pass
        (held,) = re.findall(r"holds (\S+),", str(caught.value))
        number = os.stat(held).st_ino
        lines = Path("/proc/locks").read_text().splitlines()
        (pid,) = {int(line.split()[4]) for line in lines if line.split()[5].endswith(f":{number}")}
        os.kill(pid, signal.SIGKILL)
        with embedded_zookeeper(tmp_path) as server:
            assert server.problem() is None


def test_a_taken_port_is_not_insisted_on(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """The first daemon takes another one when a stranger listens there."""
    (tmp_path / "port").write_text(str(zookeeper.port))
    with embedded_zookeeper(tmp_path) as server:
        assert server.hosts != zookeeper.hosts
        assert embedded_hosts(tmp_path) == server.hosts


def test_no_java_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing and what to do."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperError, match=r"needs Java.*Install Java"), embedded_zookeeper(tmp_path / "zookeeper"):
        pass


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    """A file in its place, or in its parent's."""
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        with pytest.raises(ZooKeeperError, match="cannot be used"), embedded_zookeeper(folder):
            pass


def test_the_default_folder_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$XDG_DATA_HOME, else the home's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "phantombase/zookeeper"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_folder() == Path("/home/somebody/.local/share/phantombase/zookeeper")


def test_a_server_is_for_this_machine_only(tmp_path: Path) -> None:
    """It listens on 127.0.0.1, has no admin server, and answers no word that changes or reveals anything."""
    with embedded_zookeeper(tmp_path) as server:
        port = int(server.hosts.rpartition(":")[2])
        pid = java(tmp_path)
        assert pid is not None
        addresses = {line.split()[1] for line in listening(pid)}
        assert addresses == {f"0000000000000000FFFF00000100007F:{port:04X}"} or addresses == {f"0100007F:{port:04X}"}
        assert "not in the whitelist" in (ask(port, "envi") or "")
        (tmp_path / "port").write_text("1\n")  # it has moved: those who joined cannot follow it, and say so
        assert "start the daemon again" in str(server.problem())


def listening(pid: int) -> list[str]:
    """Lines of /proc/net/tcp* of the sockets a process listens on."""
    sockets = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(handle)
        if target.startswith("socket:["):
            sockets.add(target[len("socket:[") : -1])
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [line for line in lines if line.split()[3] == "0A" and line.split()[9] in sockets]


# The tests' own ensemble and network: what later tests rest on must itself be seen to work.
#
# The ensemble is for the chaos of a run of all tests.


LONG_S = 30.0
"""Of a session: it is kept also when the machine stands still for some seconds."""


@contextmanager
def listening_client(hosts: str) -> Iterator[tuple[Any, list[str]]]:
    """A connected client, and the states it goes through."""
    with client(hosts, LONG_S) as found:
        states: list[str] = []
        found.add_listener(states.append)
        yield found, states


@pytest.mark.deep
def test_a_session_survives_the_leaders_death(ensemble: Ensemble) -> None:
    """Killed or standing still: the others choose a new leader, and a client keeps its session and its node."""
    with client(ensemble.hosts, LONG_S) as zookeeper:
        zookeeper.create("/claim", b"mine", ephemeral=True)
        session = zookeeper.client_id
        first = ensemble.wait_for_leader()
        ensemble.kill(first)
        second = ensemble.wait_for_leader(other_than=first)
        wait_until(lambda: bool(zookeeper.connected))
        assert zookeeper.retry(zookeeper.get, "/claim")[0] == b"mine"
        ensemble.restart(first)
        ensemble.stop(second)
        third = ensemble.wait_for_leader(other_than=second)
        assert zookeeper.retry(zookeeper.get, "/claim")[0] == b"mine"
        ensemble.cont(second)
        wait_until(lambda: ensemble.leader() == third)
        assert zookeeper.client_id == session


@pytest.mark.deep
def test_without_a_quorum_nothing_is_served(ensemble: Ensemble) -> None:
    """Two of three gone: no leader, clients are suspended; one back: all goes on with the data."""
    with client(ensemble.hosts, LONG_S) as zookeeper:
        zookeeper.create("/kept", b"yes")
        gone = [member for member in (1, 2, 3) if member != ensemble.wait_for_leader()]
        for member in gone:
            ensemble.kill(member)
        wait_until(lambda: ensemble.leader() is None and not zookeeper.connected)
        ensemble.restart(gone[0])
        wait_until(lambda: bool(zookeeper.connected))
        assert zookeeper.retry(zookeeper.get, "/kept")[0] == b"yes"


def test_a_cut_longer_than_the_session_takes_its_nodes(zookeeper: ZooKeeper) -> None:
    """Others see the node go, the client hears SUSPENDED while it is cut off and LOST when it is back."""
    with link([zookeeper.port]) as network, listening_client(network.hosts) as (cut_off, states):
        cut_off.retry(cut_off.create, "/cut-off", ephemeral=True)
        session = cut_off.client_id
        network.cut()
        network.drop()
        wait_until(lambda: states[-1:] == [KazooState.SUSPENDED])
        expire(zookeeper, session)
        with client(zookeeper.hosts) as other:
            assert other.exists("/cut-off") is None
        network.heal()
        wait_until(lambda: states[-1] == KazooState.CONNECTED)
        assert states[-3:] == [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED]


def test_a_cut_shorter_than_the_session_takes_nothing(zookeeper: ZooKeeper) -> None:
    """What waited arrives; connections may end besides."""
    with link([zookeeper.port]) as network, listening_client(network.hosts) as (cut_off, states):
        cut_off.create("/kept", ephemeral=True)
        session = cut_off.client_id
        network.cut()
        asked = cut_off.exists_async("/kept")
        assert not asked.ready()
        network.heal()
        assert asked.get(timeout=60) is not None
        network.drop()
        wait_until(lambda: states == [KazooState.SUSPENDED, KazooState.CONNECTED])
        assert cut_off.client_id == session
        assert cut_off.exists("/kept") is not None


def test_a_request_is_done_and_its_answer_lost(zookeeper: ZooKeeper) -> None:
    """Only the answers are cut: the node is there, and its maker never hears of it."""
    with link([zookeeper.port]) as network, listening_client(network.hosts) as (cut_off, _):
        network.cut(side=Side.ANSWERS)
        asked = cut_off.create_async("/unheard", ephemeral=True)
        with client(zookeeper.hosts) as other:
            wait_until(lambda: other.exists("/unheard") is not None)
            network.drop()
            with pytest.raises(ConnectionLoss):
                asked.get(timeout=60)
            network.heal()
            wait_until(lambda: bool(cut_off.connected))
            assert other.get("/unheard")[1].ephemeralOwner == cut_off.client_id[0]


def test_a_delay_makes_answers_late(zookeeper: ZooKeeper) -> None:
    """Each way is as late as said."""
    with link([zookeeper.port]) as network, listening_client(network.hosts) as (slow, _):
        network.delay(0.2)
        began = time.monotonic()
        slow.exists("/")
        assert time.monotonic() - began > 0.39  # the loop's timers may be a tick early


@pytest.mark.deep
def test_a_client_moves_to_a_member_it_can_reach(ensemble: Ensemble) -> None:
    """Ways are cut one by one; with one left the session goes on."""
    with link(list(ensemble.ports.values())) as network, listening_client(network.hosts) as (moving, states):
        moving.create("/mine", ephemeral=True)
        network.cut(0, 2)
        network.drop(0, 2)
        wait_until(lambda: bool(moving.connected))
        assert moving.retry(moving.exists, "/mine") is not None
        assert KazooState.LOST not in states


@pytest.mark.deep
def test_a_server_that_is_gone_ends_connections(ensemble: Ensemble) -> None:
    """A proxy does not keep up a connection whose server died, and takes none to a dead one."""
    with link([ensemble.ports[1]]) as network:
        found = KazooClient(hosts=network.hosts, timeout=LONG_S, connection_retry={"max_tries": -1, "max_delay": 0.5})
        found.start(60)
        states: list[str] = []
        found.add_listener(states.append)
        ensemble.kill(1)
        wait_until(lambda: states[:1] == [KazooState.SUSPENDED])
        ensemble.restart(1)
        wait_until(lambda: bool(found.connected))
        found.stop()
        found.close()
