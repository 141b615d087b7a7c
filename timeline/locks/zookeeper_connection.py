"""Connections to ZooKeeper: how they are made, and what their errors mean."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .zookeeper_access import ZooKeeperAccess

NO_SESSION = "a server that takes connections, but no session"
CHECK_SESSION = "Check that TLS is used on both sides or on none, its certificates, and the user of SASL."
SAME_ACCESS = "All that share the lock need the same digest, or user of SASL."


def connection(
    hosts: str,
    access: ZooKeeperAccess,
    session_s: float,
    most_delay_s: float = 1.0,
    on_end: Callable[[], None] = lambda: None,
) -> Any:
    """A client of these servers, without a chroot, that is not started yet.

    `on_end`: called when it is given up for good, because a server does not take its user.
    """
    from kazoo.client import KazooClient  # late: it costs time, and few processes need it

    from .zookeeper_handler import Handler

    return KazooClient(
        hosts=hosts,
        timeout=session_s,
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": most_delay_s},
        handler=Handler(on_end),
        logger=kazoo_log(),
        **access.client_options(),
    )


def is_refusal(error: Exception) -> bool:
    """Whether ZooKeeper takes the process for another user than it should, or for none."""
    from kazoo.exceptions import AuthFailedError, InvalidACLError, NoAuthError, SessionClosedRequireSaslError

    return isinstance(error, NoAuthError | AuthFailedError | InvalidACLError | SessionClosedRequireSaslError)


def kazoo_log() -> logging.Logger:
    """A logger without kazoo's warning for each try to connect, and its traces: the error at the end says it once."""
    log = logging.getLogger("kazoo.client.phantombase")
    log.setLevel(logging.CRITICAL)
    return log
