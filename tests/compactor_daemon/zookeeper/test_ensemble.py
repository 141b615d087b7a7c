"""The tests' own ensemble and network: what later tests rest on must itself be seen to work.

The ensemble is for the chaos of a run of all tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss

from tests.support.servers.network_partition import Side, link
from tests.support.servers.zookeeper_ensemble import Ensemble
from tests.support.servers.zookeeper_server import ZooKeeper, client, expire, wait_until

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
