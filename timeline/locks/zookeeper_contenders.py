"""Who holds a table lock in ZooKeeper, and who waits for it: a look that takes no part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import LockError
from .zookeeper_connection import connection
from .zookeeper_lock import ZooKeeperLock, in_order

_ENOUGH_S = 2.0
_SESSION_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A process with a node at the lock: what it says of itself, and for how long the node is there."""

    who: str
    for_s: float


def contenders(lock: ZooKeeperLock) -> list[Contender]:
    """In order of arrival: the first one holds the lock. LockError: ZooKeeper does not say in time."""
    from kazoo.exceptions import KazooException, NoNodeError  # late, as in `zookeeper_lock`

    from .zookeeper_handler import answer

    client = connection(lock.servers, lock.access, _SESSION_S)
    deadline = time.monotonic() + _ENOUGH_S

    def call(ask: Callable[..., Any], *args: Any) -> Any:
        return answer(client, ask(*args), max(0.0, deadline - time.monotonic()))

    found = []
    try:
        client.start(_ENOUGH_S)
        for name in in_order(call(client.get_children_async, lock.folder)):
            try:
                data, stat = call(client.get_async, f"{lock.folder}/{name}")
            except NoNodeError:  # it has gone since
                continue
            found.append(Contender(who=data.decode(errors="replace"), for_s=max(0.0, time.time() - stat.created)))
    except NoNodeError:  # no process has used this lock yet
        return []
    except (KazooException, client.handler.timeout_exception) as error:
        raise LockError(
            "the holder of the table lock is not known",
            path=lock.shown,
            found=lock.unreachable() or f"{type(error).__name__} {error}".rstrip(),
        ) from error
    finally:
        client.stop()
        client.close()
    return found
