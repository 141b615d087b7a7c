"""The table lock in ZooKeeper: who waits, who holds, and what is said when it goes wrong."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError

from phantombase.timeline.errors import LockError, UsageError
from phantombase.timeline.locks import zookeeper_lock
from phantombase.timeline.locks.table_lock import FileLock, parse_lock
from phantombase.timeline.locks.zookeeper_connection import ZooKeeperAccess
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock
from tests.support.places import capture_logs
from tests.support.selection import for_each
from tests.support.servers.zookeeper_server import ZooKeeper, expire, wait_until, zookeeper_server


@pytest.fixture
def lock(zookeeper: ZooKeeper) -> ZooKeeperLock:
    """A lock nobody else uses."""
    return ZooKeeperLock(hosts=zookeeper.hosts, base_path="/hudi_locks", key=uuid.uuid4().hex, timeout_s=60.0)


@contextmanager
def connected(zookeeper: ZooKeeper) -> Iterator[Any]:
    """A client of its own."""
    client = KazooClient(hosts=zookeeper.hosts, timeout=30.0)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def as_curator(client: Any, lock: ZooKeeperLock, who: bytes = b"10.0.0.1") -> str:
    """A contender's node as Curator makes it."""
    return str(
        client.create(f"{lock.folder}/_c_{uuid.uuid4()}-lock-", who, ephemeral=True, sequence=True, makepath=True)
    )


def again(lock: ZooKeeperLock, **changes: Any) -> ZooKeeperLock:
    """The same lock with other settings."""
    names = ("hosts", "base_path", "key", "timeout_s", "session_timeout_s", "access")
    return ZooKeeperLock(**{name: getattr(lock, name) for name in names} | changes)


def test_a_lock_from_its_text_and_back_from_a_pickle(tmp_path: Path) -> None:
    """The last component of the path is the key."""
    lock = parse_lock("zookeeper:one:2181,two:2182/hudi/locks/t1")
    assert lock == ZooKeeperLock(hosts="one:2181,two:2182", base_path="/hudi/locks", key="t1")
    assert pickle.loads(pickle.dumps(lock)) == lock
    (tmp_path / "digest").write_text("me:secret")
    secured = parse_lock(f"zookeeper:one:2181/hudi/locks/t1?digest-file={tmp_path}/digest")
    assert secured == ZooKeeperLock(
        hosts="one:2181",
        base_path="/hudi/locks",
        key="t1",
        access=ZooKeeperAccess(digest_file=str(tmp_path / "digest")),
    )
    assert b"secret" not in pickle.dumps(secured)
    assert "secret" not in repr(secured)
    assert parse_lock("file:/tmp/lock") == FileLock("/tmp/lock")
    assert ZooKeeperLock(hosts="h:1/chroot", base_path="/a", key="k").folder == "/chroot/a/k"


@for_each(
    [
        "",
        "x",
        "zookeeper:",
        "zookeeper:h:1",
        "zookeeper:h:1/k",
        "zookeeper:h/b/k",
        "zookeeper:h:1,/b/k",
        "zookeeper:h:1/b/",
        "zookeeper:h:1//k",
        "zookeeper:h:1/a//b/k",
        "zookeeper:h:1/b/../k",
        "redis:h:1/b/k",
    ]
)
def test_texts_that_are_no_lock(text: str) -> None:
    """Each is refused by name."""
    with pytest.raises(UsageError):
        parse_lock(text)


def test_sections_exclude_each_other(lock: ZooKeeperLock) -> None:
    """Threads with connections of their own are never inside together."""
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(5):
            with lock.hold("count"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.005)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, inside) == ([1], [0])


def test_the_node_is_named_as_curator_names_it_and_goes_with_the_section(
    lock: ZooKeeperLock, zookeeper: ZooKeeper
) -> None:
    """One node while inside, none afterwards, also after an error."""
    with connected(zookeeper) as client:
        with suppress(KeyError), lock.hold("look"):
            (node,) = client.get_children(lock.folder)
            assert node.startswith("_c_")
            assert uuid.UUID(node[3:39])
            assert node[39:45] == "-lock-"
            assert node[45:] == "0000000000"
            data, stat = client.get(f"{lock.folder}/{node}")
            assert data.decode().endswith(f"pid {os.getpid()}: look")
            assert stat.owner_session_id != 0
            raise KeyError
        assert client.get_children(lock.folder) == []


def test_whoever_came_first_holds_whatever_its_uuid(lock: ZooKeeperLock, zookeeper: ZooKeeper) -> None:
    """Names sort by their sequence: we wait for a Curator node with any uuid, and go in when it is gone."""
    with connected(zookeeper) as client:
        for first in ("_c_00000000", "_c_ffffffff"):
            node = client.create(f"{lock.folder}/{first}-lock-", b"", ephemeral=True, sequence=True, makepath=True)
            entered = threading.Event()

            def work(entered: threading.Event = entered) -> None:
                with lock.hold("wait"):
                    entered.set()

            thread = threading.Thread(target=work)
            thread.start()
            wait_until(lambda: len(client.get_children(lock.folder)) == 2)
            assert not entered.wait(0.3)
            client.delete(node)
            assert entered.wait(60)
            thread.join(60)


def test_not_free_in_time_says_who_holds(
    lock: ZooKeeperLock, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload of the holder's node, Curator's or ours; and the waiting node is gone."""
    watch, passed = KazooClient.exists_async, [0.0]

    def time_is_up(self: Any, *args: Any, **options: Any) -> Any:
        passed[0] += 60.0 * ("watch" in options)
        return watch(self, *args, **options)

    monkeypatch.setattr(KazooClient, "exists_async", time_is_up)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(zookeeper_lock, "time", clock)
    monkeypatch.setattr(zookeeper_lock, "_LAST_WORD_S", 60.0)
    impatient = again(lock, timeout_s=60.0)
    with connected(zookeeper) as client:
        node = as_curator(client, lock, b"10.1.2.3")
        with pytest.raises(LockError, match=r"to try it; .*held by 10\.1\.2\.3 \(_c_"), impatient.hold("try it"):
            pass
        assert client.get_children(lock.folder) == [node.rpartition("/")[2]]
        client.delete(node)
    with lock.hold("hold it"), pytest.raises(LockError, match=f"pid {os.getpid()}: hold it"), impatient.hold("try it"):
        pass


def test_a_holder_whose_session_ended_is_not_waited_for(lock: ZooKeeperLock, zookeeper: ZooKeeper) -> None:
    """Its node goes with its session."""
    with connected(zookeeper) as client:
        as_curator(client, lock)
    with lock.hold("go on"):
        pass


def test_no_server_is_an_error_in_time() -> None:
    """Nobody listens there."""
    nobody = ZooKeeperLock(hosts="127.0.0.1:1", base_path="/b", key="k", timeout_s=0.5)
    start = time.monotonic()
    with pytest.raises(LockError, match="no connection"), nobody.hold("try"):
        pass
    assert time.monotonic() - start < 60


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clients that locks make from now on."""
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        made.append(KazooClient(**settings))
        return made[-1]

    monkeypatch.setattr("kazoo.client.KazooClient", make)
    return made


def test_a_session_lost_inside_is_a_warning(
    lock: ZooKeeperLock, zookeeper: ZooKeeper, clients: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The section ends as it would have, with its own result or its own error; a step that asks is refused."""
    for error in (None, KeyError("own")):
        with capture_logs() as logs, suppress(KeyError), lock.hold("be forgotten") as section:
            section.check()
            states: list[str] = []
            clients[-1].add_listener(states.append)
            expire(zookeeper, clients[-1].client_id)

            def is_back(states: list[str] = states) -> bool:
                return "LOST" in states[:-1] and states[-1] == "CONNECTED"

            wait_until(is_back)
            with pytest.raises(LockError, match="the lock was lost in the section to be forgotten"):
                section.check()
            if error is not None:
                raise error
        assert [e["event"] for e in logs if e["event"] == "zookeeper_lock_lost"] == ["zookeeper_lock_lost"]
    with capture_logs() as logs, lock.hold("not be forgotten"):
        pass
    assert logs == []


def test_a_session_nobody_can_tell_of_is_a_warning(lock: ZooKeeperLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not connected at the end of the section: the session may have ended, and others may be inside."""
    with capture_logs() as logs, lock.hold("be unsure") as section:
        monkeypatch.setattr(KazooClient, "connected", False)
        assert not section.is_held()
    assert [e["event"] for e in logs] == ["zookeeper_lock_lost"]


def test_a_lock_whose_node_is_gone_is_lost(lock: ZooKeeperLock, zookeeper: ZooKeeper, clients: list[Any]) -> None:
    """ZooKeeper is asked: this process may have slept, and not have heard of its session's end yet."""
    with lock.hold("be removed") as section, connected(zookeeper) as client:
        (node,) = client.get_children(lock.folder)
        client.delete(f"{lock.folder}/{node}")
        assert clients[0].connected
        assert not section.is_held()


def test_a_lock_that_nobody_answers_for_is_lost(lock: ZooKeeperLock, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock.hold("be unsure") as section:
        assert section.is_held()
        for error in (ConnectionLoss, KazooTimeoutError):
            monkeypatch.setattr(KazooClient, "exists_async", raising(error))
            assert not section.is_held()


def raising(error: type[Exception]) -> Callable[..., Any]:
    """A request that ends so."""

    def ask(*_: Any, **__: Any) -> Any:
        raise error

    return ask


def test_a_place_that_is_free_before_it_is_watched_is_taken(
    lock: ZooKeeperLock, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node before ours goes between our look at the names and our watch: no event comes, and none is waited for."""
    with connected(zookeeper) as client:
        left = [as_curator(client, lock)]
        watch = KazooClient.exists_async

        def too_late(self: Any, path: str, *args: Any, **options: Any) -> Any:
            if path in left:
                client.delete(left.pop())
            return watch(self, path, *args, **options)

        monkeypatch.setattr(KazooClient, "exists_async", too_late)
        with again(lock, timeout_s=60.0).hold("go in"):
            assert len(client.get_children(lock.folder)) == 1


def test_a_create_that_was_not_answered_is_looked_for(
    lock: ZooKeeperLock, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been done: then that node is ours, and there is no second one. It is no entrance by itself."""
    with connected(zookeeper) as client:
        node = as_curator(client, lock)
        create, entered = KazooClient.create_async, threading.Event()

        def unanswered(self: Any, *args: Any, **options: Any) -> Any:
            create(self, *args, **options).get(timeout=60)
            raise ConnectionLoss

        def work() -> None:
            with lock.hold("wait"):
                entered.set()

        monkeypatch.setattr(KazooClient, "create_async", unanswered)
        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: len(client.get_children(lock.folder)) == 2)
        assert not entered.wait(0.3)
        client.delete(node)
        assert entered.wait(60)
        thread.join(60)


@pytest.mark.parametrize("back", [False, True])
def test_a_session_lost_while_waiting_is_an_error(
    back: bool, lock: ZooKeeperLock, zookeeper: ZooKeeper, clients: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place in the queue is lost; it is not taken up silently, also where the next session is `back` at once."""
    errors: list[LockError] = []
    ended, states, ask = threading.Event(), list[str](), KazooClient.get_children_async

    def wait() -> None:
        try:
            with lock.hold("wait"):
                pass
        except LockError as error:
            errors.append(error)

    def when_back(self: Any, *args: Any, **options: Any) -> Any:
        if ended.is_set() and self is clients[-1]:
            wait_until(lambda: "LOST" in states[:-1] and states[-1] == "CONNECTED")
        return ask(self, *args, **options)

    if back:
        monkeypatch.setattr(KazooClient, "get_children_async", when_back)
    with connected(zookeeper) as client:
        as_curator(client, lock)
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: len(client.get_children(lock.folder)) == 2)
        time.sleep(0.2)  # it waits for a change by now
        clients[-1].add_listener(states.append)
        ended.set()
        expire(zookeeper, clients[-1].client_id)
        thread.join(60)
        assert "the session was lost while waiting" in str(errors[0])
        wait_until(lambda: len(client.get_children(lock.folder)) == 1)


def test_a_server_that_hangs_is_an_error_in_time(tmp_path: Path) -> None:
    """Before, and while it is being asked."""
    with zookeeper_server(tmp_path / "zookeeper") as server:
        lock = ZooKeeperLock(hosts=server.hosts, base_path="/b", key="k", timeout_s=1.5, session_timeout_s=1.0)
        for pause_s in (0.0, 0.5):
            with connected(server) as client:
                as_curator(client, lock)
                timer = threading.Timer(pause_s, server.process.send_signal, [signal.SIGSTOP])
                timer.start()
                start = time.monotonic()
                with pytest.raises(LockError), lock.hold("try"):
                    pass
                assert time.monotonic() - start < 60
                timer.join()
                server.process.send_signal(signal.SIGCONT)


def test_a_password_that_others_can_read_is_warned_of_once(tmp_path: Path) -> None:
    found = {}
    for mode in (0o644, 0o640):
        file = tmp_path / f"digest-{mode:o}"
        file.write_text("user:secret")
        file.chmod(mode)
        with capture_logs() as logs:
            ZooKeeperAccess(digest_file=str(file))
            ZooKeeperAccess(digest_file=str(file))
        found[mode] = [(one["event"], one["path"]) for one in logs]
        assert "secret" not in str(logs)
    assert found == {0o644: [("password_is_readable", str(tmp_path / "digest-644"))], 0o640: []}
