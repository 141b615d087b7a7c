"""Claims of a fleet against a real server, over a network that fails at the worst moments."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kazoo.exceptions import NoAuthError
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import RetryOptions, WorkNote
from phantombase.compactor_daemon.attempt.finish import forget_archived
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceTask
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.dispatch import Rules
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.daemon.work import Summary
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import Claim, TableClaims, claim_path
from phantombase.compactor_daemon.fleet.zookeeper_claims import ZooKeeperClaims
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from phantombase.timeline.errors import ClaimedError, UnknownStateError, UsageError, ZooKeeperError
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.locks.table_lock import parse_lock, table_lock
from phantombase.timeline.locks.zookeeper_connection import ZooKeeperAccess
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_lease
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from tests.support.clock import Clock
from tests.support.compaction_steps import OPTIONS, OUTPUT
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.selection import for_each
from tests.support.servers.network_partition import Link, Side, link
from tests.support.servers.s3_server import S3Server
from tests.support.servers.zookeeper_server import SessionId, ZooKeeper, client, expire, ordered, wait_until

C = "20240101000000000"
D = "20240102000000000"
CALL_S = 0.5
"""Of a call that is not to be answered."""
LONG_S = 60.0
"""Of every session and every other call: the machine may stand still for some seconds. What a test loses is ended."""


@pytest.fixture
def table() -> str:
    """The id of a table nobody else has."""
    return uuid.uuid4().hex


@contextmanager
def daemon(hosts: str, table: str, **options: Any) -> Iterator[ZooKeeperClaims]:
    """The claims of one daemon."""
    settings = {"session_timeout_s": LONG_S, "call_timeout_s": LONG_S, "connect_timeout_s": 2 * LONG_S} | options
    with zookeeper_session(ZooKeeperOptions(hosts=hosts, **settings)) as session:
        yield ZooKeeperClaims(session, table, "me")


@contextmanager
def two(zookeeper: ZooKeeper, table: str) -> Iterator[tuple[ZooKeeperClaims, Link, ZooKeeperClaims]]:
    """A daemon, its network, and another daemon whose network is well."""
    with (
        link([zookeeper.port]) as network,
        daemon(network.hosts, table) as ours,
        daemon(zookeeper.hosts, table) as other,
    ):
        yield ours, network, other


@contextmanager
def impatient(claims: ZooKeeperClaims) -> Iterator[None]:
    """Calls have little time."""
    session = claims.session
    before, session.options = session.options, replace(session.options, call_timeout_s=CALL_S)
    try:
        yield
    finally:
        session.options = before


@contextmanager
def unanswered(claims: ZooKeeperClaims) -> Iterator[None]:
    """What is asked now is not answered in time."""
    with impatient(claims), pytest.raises(UnknownStateError):
        yield


def cut_off(network: Link, claims: ZooKeeperClaims) -> SessionId:
    """The connection ends, whatever waited in it is lost, and no new one can be made. Returns the session."""
    session: SessionId = claims.session.client.client_id
    network.cut()
    network.drop()
    wait_until(lambda: not claims.available)
    return session


def reconnect(network: Link, claims: ZooKeeperClaims) -> None:
    """The connection ends, whatever waited in it is lost, and a new one is made."""
    cut_off(network, claims)
    network.heal()
    wait_until(lambda: claims.available)


def lose_session(network: Link, claims: ZooKeeperClaims, zookeeper: ZooKeeper) -> None:
    """A cut beyond the session's time; a new session is there at the end."""
    number = claims.session.number
    expire(zookeeper, cut_off(network, claims))
    network.heal()
    wait_until(lambda: claims.available)
    assert claims.session.number == number + 1


def test_one_holds_and_the_others_see_it(zookeeper: ZooKeeper, table: str) -> None:
    """Who, and how far; given back, it is free."""
    with two(zookeeper, table) as (ours, _, other):
        assert other.names() == frozenset()
        held = ours.take(C)
        assert held is not None
        assert other.take(C) is None
        assert ours.take(C) is None
        assert other.take(D) is not None
        held.report(WorkNote(attempt=3, since_ms=1, done=1, total=7, bytes=12))
        claim = other.all()[C]
        assert isinstance(claim, Claim)
        assert (claim.holder, claim.attempt, claim.done, claim.total, claim.input_bytes) == ("me", 3, 1, 7, 12)
        held.release()
        assert other.names() == {D}
        assert other.take(C) is not None


def test_a_create_that_was_done_but_never_answered_is_not_left_behind(zookeeper: ZooKeeper, table: str) -> None:
    """Unknown, never "no"; the node that came of it goes at the next snapshot, and others may take the instant."""
    with two(zookeeper, table) as (ours, network, other):
        assert ours.take(D) is not None
        network.cut(side=Side.ANSWERS)
        with unanswered(ours):
            ours.take(C)
        wait_until(lambda: C in other.names())
        assert other.take(C) is None
        reconnect(network, ours)
        assert ours.names() == {D}
        assert other.take(C) is not None


def test_a_create_that_was_done_but_never_answered_is_taken_up(zookeeper: ZooKeeper, table: str) -> None:
    """Whose node it is decides, not who heard what: taking it again before any look finds it ours."""
    with two(zookeeper, table) as (ours, network, other):
        network.cut(side=Side.ANSWERS)
        with unanswered(ours):
            ours.take(C)
        network.heal()
        wait_until(lambda: ours.available)
        held = ours.take(C)
        assert held is not None
        assert not held.lost
        assert ours.names() == {C}
        assert other.take(C) is None
        held.release()
        assert other.take(C) is not None


def test_a_create_that_arrives_after_the_look_is_not_left_behind(zookeeper: ZooKeeper, table: str) -> None:
    """Sent over a connection that was cut, it waits in the network; the session goes on over another one."""
    with (
        link([zookeeper.port, zookeeper.port]) as network,
        daemon(network.hosts, table) as ours,
        daemon(zookeeper.hosts, table) as other,
    ):
        assert ours.take(D) is not None
        session = ours.session.id
        (way,) = network.used()
        network.cut(way)
        with unanswered(ours):
            ours.take(C)
        network.hang_up(way)
        wait_until(lambda: 1 - way in network.used() and ours.available)
        assert ours.session.id == session
        assert ours.names() == {D}
        network.heal()
        wait_until(lambda: way not in network.used())
        ordered(zookeeper)
        wait_until(lambda: ours.names() == {D} and other.take(C) is not None)


def test_the_first_claim_on_a_table_comes_at_once_or_not_at_all(zookeeper: ZooKeeper, table: str) -> None:
    """There is no folder yet; nothing goes on making nodes after a snapshot has found none."""
    with two(zookeeper, table) as (ours, network, other):
        network.cut(side=Side.ANSWERS)
        with unanswered(ours):
            ours.take(C)
        network.heal()
        wait_until(lambda: ours.available)
        assert ours.names() == frozenset()
        ordered(zookeeper)
        assert other.names() == frozenset()


def test_a_node_made_in_a_newer_session_than_thought_is_not_left_behind(zookeeper: ZooKeeper, table: str) -> None:
    """The session is lost between the look at its number and the create: the claim is lost, and its node goes."""
    with two(zookeeper, table) as (ours, network, other):
        call = ours.session.call

        def late(ask: Any, *args: Any, **options: Any) -> Any:
            ours.session.call = call  # type: ignore[method-assign]
            lose_session(network, ours, zookeeper)
            return call(ask, *args, **options)

        ours.session.call = late  # type: ignore[method-assign]
        held = ours.take(C)
        assert held is not None
        assert held.lost
        assert other.names() == {C}
        held.release()
        assert ours.names() == frozenset()
        assert other.take(C) is not None


def test_a_look_that_tidies_up_leaves_a_new_claim_alone(zookeeper: ZooKeeper, table: str) -> None:
    """A snapshot finds a node of ours that nobody works under; before it removes it, the instant is taken again."""
    with two(zookeeper, table) as (ours, network, other), ThreadPoolExecutor() as threads:
        assert ours.take(D) is not None
        network.cut(side=Side.ANSWERS)
        with unanswered(ours):
            ours.take(C)
        network.heal()
        wait_until(lambda: ours.available)
        call, taken = ours.session.call, []

        def slow(ask: Any, *args: Any, **options: Any) -> Any:
            if ask == ours.session.client.delete_async:
                taken.append(threads.submit(ours.take, C))
                time.sleep(0.2)
            return call(ask, *args, **options)

        ours.session.call = slow  # type: ignore[method-assign]
        ours.names()
        (held,) = [future.result(2 * LONG_S) for future in taken]
        assert held is not None
        assert other.names() == {C, D}
        assert not held.lost


def test_a_delete_that_was_never_answered_is_done_later(zookeeper: ZooKeeper, table: str) -> None:
    """Giving back never raises; once the connection is back the instant is free."""
    with two(zookeeper, table) as (ours, network, other):
        held = ours.take(C)
        assert held is not None
        network.cut()
        with impatient(ours):
            held.release()
        reconnect(network, ours)
        assert ours.names() == frozenset()
        assert other.take(C) is not None


def test_a_lost_session_is_a_lost_claim(zookeeper: ZooKeeper, table: str) -> None:
    """SUSPENDED: available no more, not lost. Then others take it, and giving back leaves theirs alone."""
    with two(zookeeper, table) as (ours, network, other):
        held = ours.take(C)
        assert held is not None
        session = cut_off(network, ours)
        assert not held.lost
        expire(zookeeper, session)
        assert other.names() == frozenset()
        theirs = other.take(C)
        assert theirs is not None
        network.heal()
        wait_until(lambda: ours.available)
        assert held.lost
        held.report(WorkNote(attempt=1, since_ms=1, done=1, total=1, bytes=1))
        held.release()
        assert ours.take(C) is None
        assert other.all()[C].attempt is None
        assert not theirs.lost


def test_a_new_session_takes_again(zookeeper: ZooKeeper, table: str) -> None:
    """What is held then is of the new session; giving the old claim back does not touch it."""
    with two(zookeeper, table) as (ours, network, other):
        old = ours.take(C)
        assert old is not None
        lose_session(network, ours, zookeeper)
        old.release()
        held = ours.take(C)
        assert held is not None
        assert not held.lost
        assert other.names() == {C}


def test_unknown_is_an_error_while_nobody_answers(zookeeper: ZooKeeper, table: str) -> None:
    """Each call ends within its time; a short cut costs no claim."""
    with two(zookeeper, table) as (ours, network, other):
        held = ours.take(C)
        assert held is not None
        network.cut()
        for ask in (ours.names, ours.all, lambda: ours.take(D)):
            with unanswered(ours):
                ask()
        network.heal()
        wait_until(lambda: ours.available)
        assert not held.lost
        wait_until(lambda: ours.names() == {C})
        assert other.names() == {C}


def digest_in(folder: Path, digest: str | None) -> ZooKeeperAccess:
    """Access by a digest in a file."""
    if digest is None:
        return ZooKeeperAccess()
    (folder / digest.replace(":", "-")).write_text(f"{digest}\n")
    return ZooKeeperAccess(digest_file=str(folder / digest.replace(":", "-")))


def test_a_digest_keeps_others_out(tmp_path: Path, zookeeper: ZooKeeper, table: str) -> None:
    """Without it nothing can be seen, taken or removed; with it, all can."""
    mine = digest_in(tmp_path, "me:secret")
    chroot = f"/{uuid.uuid4().hex}"
    with daemon(zookeeper.hosts + chroot, table, access=mine) as ours:
        held = ours.take(C)
        assert held is not None
        path = f"{chroot}/phantombase/{table}/claims/{C}"
        with client(zookeeper.hosts) as stranger:
            acts: list[Callable[[], object]] = [
                lambda: stranger.delete(path),
                lambda: stranger.get(path),
                lambda: stranger.set(path, b""),
                lambda: stranger.create(f"{chroot}/phantombase/{table}/claims/{D}"),
                lambda: stranger.delete(chroot, recursive=True),
            ]
            for act in acts:
                with pytest.raises(NoAuthError):
                    act()
        for digest in (None, "me:wrong"):
            with daemon(zookeeper.hosts + chroot, table, access=digest_in(tmp_path, digest)) as wrong:
                for ask in (
                    wrong.names,
                    lambda: wrong.take(C),
                    lambda: wrong.take(D),
                    lambda: wrong.ring(C),
                    lambda: wrong.wake_on_request(print),
                ):
                    with pytest.raises(ZooKeeperError, match="same digest"):
                        ask()
        with daemon(zookeeper.hosts + chroot, table, access=mine) as friend:
            assert friend.names() == {C}
            assert friend.take(C) is None
    assert ":secret" not in repr(ours.session.options)


def test_fleets_with_different_chroots_do_not_meet(zookeeper: ZooKeeper, table: str) -> None:
    """The chroot is made when it is not there, however deep."""
    one, another = (f"{zookeeper.hosts}/{uuid.uuid4().hex}/deep" for _ in range(2))
    with daemon(one, table) as ours, daemon(another, table) as other:
        assert ours.take(C) is not None
        assert other.take(C) is not None
        assert ours.names() == other.names() == {C}


@pytest.mark.parametrize("lost", [False, True])
def test_the_doorbell_rings_also_after_a_cut(lost: bool, zookeeper: ZooKeeper, table: str) -> None:
    """A plan requested while a daemon was cut off wakes it when it is back, session lost or not."""
    with two(zookeeper, table) as (ours, network, other):
        rung: list[None] = []
        ours.wake_on_request(lambda: rung.append(None))
        wait_until(lambda: len(rung) >= 1)
        other.ring(C)
        wait_until(lambda: len(rung) >= 2)
        session = cut_off(network, ours)
        other.ring(D)
        if lost:
            expire(zookeeper, session)
        before = len(rung)
        network.heal()
        wait_until(lambda: len(rung) > before)


def test_the_doorbell_keeps_nobody_waiting(zookeeper: ZooKeeper, table: str) -> None:
    """Cut off while it is put up: it is there once the connection is back."""
    with two(zookeeper, table) as (ours, network, other):
        call = ours.session.call

        def cut_after(ask: Any, *args: Any, **options: Any) -> Any:
            found = call(ask, *args, **options)
            if ask == ours.session.client.get_async:
                network.cut()
            return found

        ours.session.call = cut_after  # type: ignore[method-assign]
        rung: list[None] = []
        with ThreadPoolExecutor() as threads:
            threads.submit(ours.wake_on_request, lambda: rung.append(None)).result(LONG_S)
        network.heal()
        wait_until(lambda: len(rung) == 1)
        other.ring(C)
        wait_until(lambda: len(rung) == 2)


def test_the_end_of_a_session_gives_all_back(zookeeper: ZooKeeper, table: str) -> None:
    """Closing removes the nodes at once, before the session would run out."""
    with daemon(zookeeper.hosts, table) as other:
        with daemon(zookeeper.hosts, table) as ours:
            assert ours.take(C) is not None
            assert ours.take(D) is not None
        assert other.names() == frozenset()


def test_nobody_answers(zookeeper: ZooKeeper) -> None:
    """ZooKeeperError within the times for connecting and for one session, also when a link is silent."""
    with link([zookeeper.port]) as network:
        network.cut()
        with (
            pytest.raises(ZooKeeperError, match="no connection"),
            zookeeper_session(ZooKeeperOptions(hosts=network.hosts, connect_timeout_s=1.0, session_timeout_s=2.0)),
        ):
            pass


def test_sessions_are_counted(zookeeper: ZooKeeper, table: str) -> None:
    """A cut within the session's time is no new one; one beyond it is exactly one more."""
    with two(zookeeper, table) as (ours, network, _):
        assert ours.session.number == 1
        reconnect(network, ours)
        assert ours.session.number == 1
        lose_session(network, ours, zookeeper)


@for_each(
    [
        {"hosts": ""},
        {"hosts": "/chroot"},
        {"hosts": "host:port"},
        {"hosts": "one:1,"},
        {"hosts": "[::1"},
        {"hosts": "one:1/a//b"},
        {"hosts": "one:1/../b"},
        {"hosts": "one:1", "session_timeout_s": 0.0},
        {"hosts": "one:1", "call_timeout_s": -1.0},
    ]
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is tried."""
    with pytest.raises(UsageError):
        ZooKeeperOptions(**wrong)


@for_each(
    [
        "digest-file=/no/such/file",
        f"cert={__file__}",
        "ca=/no/such/file",
        "sasl=PLAIN",
        "sasl=DIGEST-MD5",
        f"sasl-file={__file__}",
        "user=me",
    ]
)
def test_an_impossible_access_is_refused(query: str) -> None:
    with pytest.raises(UsageError):
        ZooKeeperOptions.of(f"one:1/chroot?{query}")
    with pytest.raises(UsageError):
        parse_lock(f"zookeeper:one:1/a/b?{query}")


# Daemons without ZooKeeper on one bucket: an instant is claimed by a lease, so that they share the work.


WAIT_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with two pending compactions."""
    return unzip_golden("v9_two_pending", tmp_path)


@pytest.fixture
def url(s3: S3Server, path: Path) -> str:
    """Its copy in a bucket."""
    return s3.upload(path, s3.new_bucket(), "t")


def of_another(seconds: float) -> bytes:
    """The lease of another process, which ends in so many seconds."""
    until = round((time.time() + seconds) * 1000)
    return json.dumps({"expired": False, "validUntil": until, "owner": "another"}).encode()


def test_each_instant_is_claimed_by_itself(url: str) -> None:
    table = Table.open(url)
    first, second = pending_instants(table)
    one, other = TableClaims(table, "one"), TableClaims(Table.open(url), "other")
    held = one.take(first)
    assert held is not None
    assert not held.lost
    assert one.take(first) is None
    assert other.take(first) is None
    theirs = other.take(second)
    assert theirs is not None
    assert set(one.names()) == {first}
    assert set(other.all()) == {second}
    held.release()
    again = other.take(first)
    assert again is not None
    assert one.names() == frozenset()
    for claim in (again, theirs):
        claim.release()


def test_a_dead_holders_claim_becomes_free(url: str) -> None:
    """Once its time is over: a dead process renews nothing."""
    table = Table.open(url)
    (instant, _), claims = pending_instants(table), TableClaims(table, "d")
    table.storage.overwrite(claim_path(table, instant), of_another(44))
    assert claims.take(instant) is None
    table.storage.overwrite(claim_path(table, instant), of_another(-1))
    held = claims.take(instant)
    assert held is not None
    held.release()  # else it is released when it is collected, in another test, whose server is another


def test_a_claim_is_kept_as_long_as_the_work_takes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is lost, for the work to stop, when another has it."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(object_lease, "RENEW_S", 0.02)
    table = Table.open(url)
    instant, _ = pending_instants(table)
    path = claim_path(table, instant)
    held = TableClaims(table, "one").take(instant)
    assert held is not None
    for _ in range(4):  # a lease is for 45 s
        clock.passed_s += 20
        wait_until(lambda: json.loads(table.storage.read(path))["validUntil"] > clock.now_ms() + 40_000)
        assert not held.lost
        assert TableClaims(table, "other").take(instant) is None
    table.storage.overwrite(path, of_another(60))
    wait_until(lambda: held.lost)
    held.release()
    assert json.loads(table.storage.read(path))["owner"] == "another"


def test_two_daemons_share_the_work(path: Path, url: str) -> None:
    """Each of them is at work on an instant of its own at the same time."""
    together = threading.Barrier(2)
    local = LocalRunner(1)

    def runner(storage: Storage, tasks: list[SliceTask], progress: Callable[[int, int], None]) -> list[SliceDone]:
        together.wait(WAIT_S)
        return local(storage, tasks, progress)

    def run(name: str) -> Summary:
        table = Table.open(url)
        settings = DaemonSettings(
            who=name, output=OUTPUT, attempt=OPTIONS, retry=RetryOptions(), order=DaemonOrder.EARLIEST
        )
        served = TableOnStorage(url, TableClaims(table, name), table_lock(table.storage, None), runner, settings)
        return Daemon({url: served}, Rules(max_concurrent=1, poll_s=0.1, once=True), RetryOptions()).run()

    with ThreadPoolExecutor(2) as pool:
        done = [one.done for one in pool.map(run, ("one", "other"))]
    assert [len(one) for one in done] == [1, 1]
    table = Table.open(url)
    assert pending_instants(table) == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(table), pq.read_table(expected))


def test_a_command_leaves_what_another_has_claimed(url: str) -> None:
    """The other instants are compacted; the error names the claim."""
    table = Table.open(url)
    first, second = pending_instants(table)
    held = TableClaims(table, "d").take(first)
    assert held is not None
    ran = CliRunner().invoke(app, ["compact", url, "--executor", "local"])
    assert isinstance(ran.exception, ClaimedError)
    assert f"at work on this instant; at {url}/{claim_path(table, first)}" in str(ran.exception)
    assert pending_instants(table) == (first,)
    assert second in recorded_instants(table.storage)
    held.release()
    ran = CliRunner().invoke(app, ["compact", url, "--executor", "local"])
    assert ran.exit_code == 0, ran.output
    assert pending_instants(table) == ()


def test_claims_go_with_the_records_of_their_instant(url: str) -> None:
    """Once it is archived."""
    table = Table.open(url)
    held = TableClaims(table, "d").take("20200101000000000")
    assert held is not None
    held.release()
    assert recorded_instants(table.storage) == ("20200101000000000",)
    forget_archived(table)
    assert recorded_instants(table.storage) == ()
