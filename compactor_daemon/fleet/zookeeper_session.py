"""A daemon's one session with ZooKeeper: every call has a time limit, and an unknown outcome is an error.

kazoo reconnects by itself and opens a new session when the old one has ended; everything tied to the old one (claims)
is lost then. Sessions are numbered from 1, so that the holder of a claim knows whether it belongs to this session.

A call without an answer may have taken effect, or may still take effect once the connection is back. It raises
UnknownStateError; the caller must read ZooKeeper to find the outcome (see `zookeeper_claims`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from phantombase.timeline.errors import UnknownStateError, UsageError, ZooKeeperError, fault_of
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.locks.zookeeper_connection import (
    NO_SESSION,
    ZooKeeperAccess,
    answer,
    connection,
    is_over,
    is_refusal,
    with_access,
)
from phantombase.timeline.option import check_above_zero, spelled_class
from phantombase.timeline.reachable import waiting, why_unreachable

_log = get_logger()
_PORT = 2181


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """How to reach ZooKeeper. `hosts`: `host:port[,host:port][/chroot]`; times in seconds. `access`: for a secured
    ZooKeeper; with a digest, new nodes are accessible to its user only. `session_timeout_s`: a daemon loses its claims
    after this time without contact."""

    hosts: str
    session_timeout_s: float = 10.0
    call_timeout_s: float = 5.0
    connect_timeout_s: float = 30.0
    access: ZooKeeperAccess = field(default_factory=ZooKeeperAccess)

    def __post_init__(self) -> None:
        check_above_zero(self, "session_timeout_s", "call_timeout_s", "connect_timeout_s")
        if not _are_hosts(self.hosts):
            raise UsageError("not ZooKeeper hosts", expected="HOST:PORT[,HOST:PORT][/CHROOT]", found=repr(self.hosts))

    @staticmethod
    def of(text: str, **others: Any) -> ZooKeeperOptions:
        """The options of `HOST:PORT[,HOST:PORT][/CHROOT][?ACCESS]` (`zookeeper_connection`)."""
        hosts, access = with_access(text)
        return ZooKeeperOptions(hosts=hosts, access=access, **others)

    @property
    def servers(self) -> str:
        return self.hosts.partition("/")[0]

    @property
    def root(self) -> str:
        """The chroot as the beginning of a path: empty, or `/a/b`."""
        chroot = self.hosts.partition("/")[2].strip("/")
        return f"/{chroot}" if chroot else ""


def _are_hosts(text: str) -> bool:
    from kazoo.hosts import collect_hosts

    servers, _, chroot = text.partition("/")
    try:
        collect_hosts(servers)
    except ValueError:
        return False
    chroot = chroot.rstrip("/")
    return not chroot or {"", ".", ".."}.isdisjoint(chroot.split("/"))


class ZooKeeperSession:
    """The connection. Thread-safe. `on_change` is called (in kazoo's thread) when it changes or the session is lost."""

    def __init__(self, options: ZooKeeperOptions, on_change: Callable[[], None] = lambda: None) -> None:
        from kazoo.client import KazooState  # imported here: it costs time, and few commands need it

        self.options = options
        self._states = KazooState
        self._on_change = on_change
        self._lock = threading.Lock()
        self._number = 1
        self._state = KazooState.LOST
        # The chroot is a prefix of the paths used here: kazoo's own chroot must exist before it connects.
        self.client = connection(
            options.servers,
            options.access,
            options.session_timeout_s,
            most_delay_s=2.0,
            on_end=lambda: self._heard(KazooState.LOST),
        )
        self.client.add_listener(self._heard)

    @property
    def connected(self) -> bool:
        """Whether the session is known to be alive; False while that is unknown (SUSPENDED)."""
        return bool(self._state == self._states.CONNECTED)

    @property
    def number(self) -> int:
        """The number of this session, from 1; it grows when a session is lost, with everything tied to it."""
        with self._lock:
            return self._number

    @property
    def id(self) -> int | None:
        """ZooKeeper's id of the session, which owns its ephemeral nodes; None without a session."""
        found = self.client.client_id
        return int(found[0]) if found else None

    def call(self, ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Makes an asynchronous kazoo call, with the time limit, and returns its answer. NoNodeError, NodeExistsError:
        the answer of ZooKeeper. UnknownStateError: no answer; the call may have taken effect, or may still do so.
        ZooKeeperError: refused."""
        from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

        try:
            return answer(self.client, ask(*args, **options), self.options.call_timeout_s)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except (KazooException, self.client.handler.timeout_exception) as error:
            if is_refusal(error) and error is not self.client.handler.ended:
                raise self._refused(error, "All daemons of a fleet need the same digest, or user of SASL.") from error
            raise UnknownStateError(
                "ZooKeeper did not answer",
                path=self.options.servers,
                expected=f"an answer within {self.options.call_timeout_s:g} s",
                found=fault_of(error),
            ) from error

    def find(self, ask: Callable[..., Any], path: str, *args: Any, **options: Any) -> Any:
        """As `call`; None if there is no such node."""
        from kazoo.exceptions import NoNodeError

        try:
            return self.call(ask, path, *args, **options)
        except NoNodeError:
            return None

    def check_user(self) -> None:
        """ZooKeeperError: the server rejects the user of this session, which shows only once it has begun."""
        from kazoo.exceptions import KazooException

        try:
            answer(self.client, self.client.exists_async("/"), self.options.call_timeout_s)
        except (KazooException, self.client.handler.timeout_exception) as error:
            if not is_refusal(error) and not is_over(self.client):
                return  # as in later calls: ZooKeeper may soon answer again
            raise self._refused(error, "Check the user of SASL and its password.") from error

    def _refused(self, error: Exception, todo: str) -> ZooKeeperError:
        return ZooKeeperError("ZooKeeper refuses access", path=self.options.servers, found=fault_of(error), todo=todo)

    def _heard(self, state: str) -> None:
        with self._lock:
            if state == self._states.LOST and self._state != self._states.LOST:
                self._number += 1
            self._state = state
        _log.info("zookeeper", state=state.lower(), servers=self.options.servers)
        self._on_change()


@contextmanager
def zookeeper_session(
    options: ZooKeeperOptions, on_change: Callable[[], None] = lambda: None
) -> Iterator[ZooKeeperSession]:
    """A session from entry to exit; its end removes every ephemeral node it made. ZooKeeperError: no answer."""
    session = ZooKeeperSession(options, on_change)
    client = session.client
    try:
        try:
            with waiting(f"waiting for ZooKeeper at {options.servers}, {options.connect_timeout_s:g} s at most"):
                client.start(options.connect_timeout_s)
        except client.handler.timeout_exception as error:
            raise ZooKeeperError(
                "no connection to ZooKeeper",
                path=options.servers,
                expected=f"an answer within {options.connect_timeout_s:g} s",
                found=why_unreachable(options.servers.split(","), _PORT) or NO_SESSION,
                todo="Check that the servers run, that TLS is used on both sides or on none, and the user of SASL.",
            ) from error
        session.check_user()
        yield session
    finally:
        try:
            client.remove_listener(session._heard)
            client.stop()
            client.close()
        except Exception as error:  # the server removes the nodes when the session expires
            _log.warning("zookeeper_close_failed", servers=options.servers, error=f"{type(error).__name__}: {error}")
