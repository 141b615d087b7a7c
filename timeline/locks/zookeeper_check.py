"""Whether a lock in ZooKeeper can be used. It is tried before any work: a wrong host or password then costs none."""

from __future__ import annotations

import time

from ..errors import LockError
from .zookeeper_connection import CHECK_SESSION, NO_SESSION, SAME_ACCESS, connection, is_refusal
from .zookeeper_lock import ZooKeeperLock

_ENOUGH_S = 10.0


def check_usable(lock: ZooKeeperLock) -> None:
    """LockError: no server takes a connection, none opens a session, or access to the lock is refused."""
    from kazoo.exceptions import KazooException, NoNodeError  # late, as in `zookeeper_lock`

    if problem := lock.unreachable():
        raise _error(
            "no server of the ZooKeeper lock can be reached",
            lock,
            problem,
            "Check the host names and ports of the lock, and that ZooKeeper runs.",
        )
    from .zookeeper_handler import answer, is_over

    client, deadline = connection(lock.servers, lock.access, _ENOUGH_S), time.monotonic() + _ENOUGH_S
    began = False
    try:
        client.start(_ENOUGH_S)  # on failure it closes the client
        began = True
        answer(client, client.get_children_async(lock.folder), max(0.1, deadline - time.monotonic()))
    except NoNodeError:  # no process has used this lock yet
        return
    except (KazooException, client.handler.timeout_exception) as error:
        if is_refusal(error) or (began and is_over(client)):
            what = "ZooKeeper refuses access to the lock"
            raise _error(what, lock, type(error).__name__, SAME_ACCESS) from error
        raise _error("ZooKeeper opens no session for the lock", lock, NO_SESSION, CHECK_SESSION) from error
    finally:
        client.stop()
        client.close()


def _error(what: str, lock: ZooKeeperLock, found: str, todo: str) -> LockError:
    return LockError(what, path=lock.shown, found=found, todo=f"{todo} Nothing was changed.")
