"""The daemons of a fleet that serve a catalog: one ephemeral node each.

    <chroot>/phantombase/fleets/<fleet>/<member>     ephemeral, JSON: who, host, pid, tables, pools

A member that has lost its session makes a new node. While ZooKeeper does not answer, the members are those of the last
answer: two daemons may then serve a table at once, which costs work and no rows.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import xxhash

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger

from ..zookeeper.session import ZooKeeperSession

_log = get_logger()


class Members:
    """The members of a fleet, this process among them. `wake` is called, in kazoo's thread, when they change."""

    def __init__(self, session: ZooKeeperSession, fleet: str, who: str, wake: Callable[[], None]) -> None:
        self.me = uuid.uuid4().hex
        self._session = session
        self._folder = folder_of(session, fleet)
        self._who = who
        # One function for all calls: kazoo keeps a set of watch functions until one fires.
        self._watch = lambda event: wake()
        self._joined = 0
        self._known: frozenset[str] = frozenset({self.me})

    def snapshot(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """Joins, or says what this member does (`facts`), and returns the ids of all members. Never raises."""
        try:
            self._say(facts)
            found = self._session.call(self._session.client.get_children_async, self._folder, watch=self._watch)
        except PhantombaseError as error:
            _log.warning("members_unknown", error=str(error))
        else:
            self._known = frozenset(found) | {self.me}
        return self._known

    def _say(self, facts: Mapping[str, Any]) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        client, path = self._session.client, f"{self._folder}/{self.me}"
        data = json.dumps({"who": self._who, "host": socket.gethostname(), "pid": os.getpid(), **facts}).encode()
        number = self._session.number
        if self._joined == number:
            try:
                self._session.call(client.set_async, path, data)
                return
            except NoNodeError:  # the session was lost just now
                pass
        self._session.call(client.ensure_path_async, self._folder)
        try:
            self._session.call(client.create_async, path, data, ephemeral=True)
        except NodeExistsError:  # of the lost session, or of a call that had no answer
            self._session.call(client.delete_async, path)
            self._session.call(client.create_async, path, data, ephemeral=True)
        self._joined = number


def members_in(session: ZooKeeperSession, fleet: str) -> tuple[Mapping[str, Any], ...]:
    """What the members of a fleet say of themselves; for commands. UnknownStateError: no answer."""
    from kazoo.exceptions import NoNodeError

    folder, found = folder_of(session, fleet), []
    try:
        names = session.call(session.client.get_children_async, folder)
    except NoNodeError:
        return ()
    for name in sorted(names):
        try:
            data, _ = session.call(session.client.get_async, f"{folder}/{name}")
            found.append(json.loads(data))
        except (NoNodeError, ValueError):  # gone since, or written by a later release
            continue
    return tuple(found)


def fleet_of(listing: str) -> str:
    """The name of the fleet that serves a listing: the daemons that list the same share its tables."""
    return xxhash.xxh3_64_hexdigest(listing.encode())


def folder_of(session: ZooKeeperSession, fleet: str) -> str:
    """The node of a fleet."""
    return f"{session.options.root}/phantombase/fleets/{fleet}"
