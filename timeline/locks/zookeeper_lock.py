"""The table lock in ZooKeeper that Hudi's writers use too (`ZookeeperBasedLockProvider`, Curator's lock recipe).

    <base_path>/<key>/_c_<uuid>-lock-<sequence>    one ephemeral node for each holder or waiter; the lowest one holds

Nodes are compared by their sequence only, which gives the order of arrival; the uuid is ignored. A phantombase process
and a live Hudi writer with the same servers, base path and key exclude each other.

Each section opens its own connection. Sections are few and short, so the handshake (a few ms) costs little. In return
the lock is a plain value that can be sent to other processes, no session can be lost unnoticed between two sections,
and closing the session removes every node that it made, even one whose creation was never confirmed. `check_usable`
tries the lock before any work, so that a wrong host or password costs none."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..clocks import clock_ms
from ..errors import LockError, UsageError, fault_of
from ..event_log import get_logger
from ..reachable import is_port, waiting, why_unreachable
from .section import Section
from .zookeeper_connection import (
    CHECK_SESSION,
    NO_SESSION,
    SAME_ACCESS,
    ZooKeeperAccess,
    answer,
    connection,
    is_over,
    is_refusal,
    with_access,
)

_log = get_logger()
_CONTENDER = re.compile(r"(?:.*-)?lock-(?P<sequence>-?\d+)")
_HOSTS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s/,:\[\]]+):\d+(?:,(?:\[[0-9A-Fa-f:.%]+\]|[^\s/,:\[\]]+):\d+)*")
_PORT = 2181
_LAST_WORD_S = 2.0
"""Time limit, after the timeout, for reading the holder of the lock."""
_ANSWER_S = 5.0
"""Time limit for checking that the lock is still held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperLock:
    """Excludes every process, Hudi's writers included, with the same servers, base path and key. `hosts`:
    `host:port[,host:port][/chroot]`. `timeout_s`: for connecting and waiting together. `session_timeout_s`: after this
    time without a heartbeat ZooKeeper frees the lock of a dead holder. With a digest the nodes are for its user only;
    otherwise they are open, as those of Hudi's writers. UsageError: impossible settings."""

    hosts: str
    base_path: str
    key: str
    timeout_s: float = 60.0
    session_timeout_s: float = 30.0
    access: ZooKeeperAccess = field(default_factory=ZooKeeperAccess)

    def __post_init__(self) -> None:
        names = self.folder.split("/")[1:]
        good = _HOSTS.fullmatch(self.servers) and self.key and "/" not in self.key
        good = good and all(is_port(one.rpartition(":")[2]) for one in self.servers.split(","))
        if not good or "" in names or not set(names).isdisjoint((".", "..")):
            raise UsageError(
                "impossible settings of a ZooKeeper lock",
                expected="hosts host:port[,host:port][/chroot], an absolute base path, a key without /",
                found=f"hosts {self.hosts!r}, base path {self.base_path!r}, key {self.key!r}",
            )

    @property
    def folder(self) -> str:
        """The node whose children are the contenders, chroot included."""
        chroot = self.hosts.partition("/")[2].strip("/")
        return "/" + "/".join(part for part in (chroot, self.base_path.strip("/"), self.key) if part)

    @property
    def servers(self) -> str:
        return self.hosts.partition("/")[0]

    @property
    def shown(self) -> str:
        return f"zookeeper:{self.servers}{self.folder}"

    def unreachable(self) -> str | None:
        """The reason why no server accepts a connection; None: one does."""
        return why_unreachable(self.servers.split(","), _PORT)

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock.hold`. LockError also if the session ends during the wait. A session that ends inside the
        section is logged at the end; `Section.check` asks ZooKeeper for the node."""
        contender = _Contender(self, purpose)
        try:
            with waiting(f"waiting for the lock {self.shown}, {self.timeout_s:g} s at most"):
                contender.enter()
        except BaseException:
            contender.leave()
            raise
        try:
            yield Section(purpose=purpose, lock=self.shown, is_held=contender.is_held)
        finally:
            contender.warn_if_lost()
            contender.leave()


def parse_zookeeper_lock(text: str) -> ZooKeeperLock:
    """`HOST:PORT[,HOST:PORT]/BASE/PATH/KEY[?ACCESS]` as a lock; UsageError for anything else."""
    place, access = with_access(text)
    hosts, _, path = place.partition("/")
    base, separator, key = path.rpartition("/")
    if not separator or not base:
        raise UsageError(
            "not a ZooKeeper lock", expected="zookeeper:HOST:PORT[,HOST:PORT]/BASE/PATH/KEY", found=f"zookeeper:{text}"
        )
    return ZooKeeperLock(hosts=hosts, base_path=f"/{base}", key=key, access=access)


class _Contender:
    """One wait for the lock, and one section under it. Each call may take as long as the remaining time."""

    def __init__(self, lock: ZooKeeperLock, purpose: str) -> None:
        from kazoo.client import KazooState  # late, as in `connection`

        self._lock, self._purpose = lock, purpose
        self._deadline = time.monotonic() + lock.timeout_s
        self._prefix = f"_c_{uuid.uuid4()}-lock-"
        self._wake = threading.Event()
        self._created = self._lost = False
        self._mine = ""
        self._todo = "Try again, or find the process that holds it."
        self._states = KazooState
        self._client = connection(lock.servers, lock.access, lock.session_timeout_s)
        self._client.add_listener(self._heard)

    def enter(self) -> None:
        """Waits until the node of this process is the lowest; LockError."""
        from kazoo.exceptions import (
            ConnectionClosedError,
            ConnectionLoss,
            KazooException,
            OperationTimeoutError,
            SessionExpiredError,
        )

        try:
            self._client.start(self._left_s())
            entered = False
            while not entered:
                try:
                    entered = self._is_first()
                except (ConnectionLoss, OperationTimeoutError):
                    continue  # the request may have succeeded: the next listing of the nodes shows that
        except self._client.handler.timeout_exception as error:
            raise self._error(f"not free within {self._lock.timeout_s:g} s: {self._holder()}") from error
        except (SessionExpiredError, ConnectionClosedError) as error:
            raise self._error("the session was lost while waiting") from error
        except KazooException as error:
            self._todo = SAME_ACCESS if is_refusal(error) else self._todo
            raise self._error(f"ZooKeeper reports: {fault_of(error)}") from error

    def _is_first(self) -> bool:
        """Lists the nodes once; creates its own if missing; waits for a change if its own is not the lowest."""
        self._wake.clear()
        nodes = self._nodes()
        mine = next((n for n in nodes if n.startswith(self._prefix)), None)
        if self._lost or (mine is None and self._created):
            raise self._error("the session was lost while waiting")
        if mine is None:
            who = f"phantombase {socket.gethostname()} pid {os.getpid()}: {self._purpose}"
            path = f"{self._lock.folder}/{self._prefix}"
            self._call(self._client.create_async, path, who.encode(), ephemeral=True, sequence=True, makepath=True)
            self._created = True
            return False
        if mine == nodes[0]:
            self._mine = f"{self._lock.folder}/{mine}"
            return True
        before = f"{self._lock.folder}/{nodes[nodes.index(mine) - 1]}"
        if self._call(self._client.exists_async, before, watch=lambda event: self._wake.set()) is not None:
            self._wake.wait(self._left_s())
        return False

    def _nodes(self) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            names = self._call(self._client.get_children_async, self._lock.folder)
        except NoNodeError:  # no process has used this lock yet
            return []
        return in_order(names)

    def _holder(self) -> str:
        """The holder of the lock, from the node's data (written by Curator or phantombase); for messages only."""
        self._deadline = time.monotonic() + _LAST_WORD_S
        try:
            if not self._client.connected:
                problem = self._lock.unreachable()
                self._todo = self._todo if problem else CHECK_SESSION
                return f"no connection: {problem or NO_SESSION}"
            first = self._nodes()[0]
            data, _ = self._call(self._client.get_async, f"{self._lock.folder}/{first}")
        except Exception as error:
            return f"the holder is unknown ({fault_of(error)})"
        return f"held by {data.decode(errors='replace') or 'a process that gave no name'} ({first})"

    def _call(self, ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return answer(self._client, ask(*args, **options), self._left_s())

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _heard(self, state: str) -> None:
        self._lost = self._lost or state == self._states.LOST
        self._wake.set()

    def is_held(self) -> bool:
        """Whether the node of this process exists; False without an answer in time. A server of an ensemble may be
        stale, and answer with a removed node: so it is synchronised first."""
        from kazoo.exceptions import KazooException

        if self._lost or not self._client.connected:
            return False
        self._deadline = time.monotonic() + _ANSWER_S
        try:
            self._call(self._client.sync_async, self._mine)
            return self._call(self._client.exists_async, self._mine) is not None and not self._lost
        except (KazooException, self._client.handler.timeout_exception):
            return False

    def warn_if_lost(self) -> None:
        """Logs that other processes may have been in the section at the same time."""
        if self._lost or not self._client.connected:
            _log.warning("zookeeper_lock_lost", node=self._lock.folder, purpose=self._purpose)

    def leave(self) -> None:
        """Ends the session, which removes its node. An error is only logged: the node is removed with the session."""
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            _log.warning("zookeeper_close_failed", node=self._lock.folder, error=f"{type(error).__name__}: {error}")

    def _error(self, found: str) -> LockError:
        return LockError(
            f"could not take the table lock to {self._purpose}",
            path=self._lock.shown,
            expected=f"free within {self._lock.timeout_s:g} s",
            found=found,
            todo=self._todo,
        )


def in_order(names: Iterable[str]) -> list[str]:
    found = [(int(match["sequence"]), name) for name in names if (match := _CONTENDER.fullmatch(name))]
    return [name for _, name in sorted(found)]


_ENOUGH_S = 10.0


def check_usable(lock: ZooKeeperLock) -> None:
    """LockError: no server accepts a connection, none opens a session, or access to the lock is refused."""
    from kazoo.exceptions import KazooException, NoNodeError  # late, as in `zookeeper_lock`

    if problem := lock.unreachable():
        raise _error(
            "no server of the ZooKeeper lock can be reached",
            lock,
            problem,
            "Check the host names and ports of the lock, and that ZooKeeper runs.",
        )
    client, deadline = connection(lock.servers, lock.access, _ENOUGH_S), time.monotonic() + _ENOUGH_S
    began = False
    try:
        with waiting(f"waiting for ZooKeeper at {lock.servers}, {_ENOUGH_S:g} s at most"):
            client.start(_ENOUGH_S)  # on failure it closes the client
        began = True
        answer(client, client.get_children_async(lock.folder), max(0.1, deadline - time.monotonic()))
    except NoNodeError:  # no process has used this lock yet
        return
    except (KazooException, client.handler.timeout_exception) as error:
        if is_refusal(error) or (began and is_over(client)):
            what = "ZooKeeper refuses access to the lock"
            raise _error(what, lock, fault_of(error), SAME_ACCESS) from error
        raise _error("ZooKeeper opens no session for the lock", lock, NO_SESSION, CHECK_SESSION) from error
    finally:
        client.stop()
        client.close()


def _error(what: str, lock: ZooKeeperLock, found: str, todo: str) -> LockError:
    return LockError(what, path=lock.shown, found=found, todo=f"{todo} Nothing was changed.")


_SEEN_S = 2.0
_SESSION_S = 5.0


def contenders(lock: ZooKeeperLock) -> list[tuple[str, float]]:
    """The contenders in order of arrival, the first holds the lock: what each is, and since how many seconds.
    LockError: ZooKeeper does not answer in time."""
    from kazoo.exceptions import KazooException, NoNodeError  # late

    client = connection(lock.servers, lock.access, _SESSION_S)
    deadline = time.monotonic() + _SEEN_S

    def call(ask: Callable[..., Any], *args: Any) -> Any:
        return answer(client, ask(*args), max(0.0, deadline - time.monotonic()))

    found = []
    try:
        client.start(_SEEN_S)
        for name in in_order(call(client.get_children_async, lock.folder)):
            try:
                data, stat = call(client.get_async, f"{lock.folder}/{name}")
            except NoNodeError:  # removed since the listing
                continue
            found.append((data.decode(errors="replace"), max(0.0, clock_ms() / 1000 - stat.created)))
    except NoNodeError:  # no process has used this lock yet
        return []
    except (KazooException, client.handler.timeout_exception) as error:
        raise LockError(
            "the holder of the table lock is not known", path=lock.shown, found=lock.unreachable() or fault_of(error)
        ) from error
    finally:
        client.stop()
        client.close()
    return found
