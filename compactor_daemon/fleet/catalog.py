"""The tables of a catalog, and the daemons of a fleet that share them.

Tables lie below a folder, or are registered in a Hive Metastore or AWS Glue. Hudi's sync registers a MERGE_ON_READ
table under up to three names, `t`, `t_ro` and `t_rt`, with one location.

Each daemon of a fleet has one ephemeral node:

    <chroot>/phantombase/fleets/<fleet>/<member>     ephemeral, JSON: who, host, pid, tables, pools

A member that has lost its session creates a new node. While ZooKeeper does not answer, the members are those of the
last answer: two daemons may then serve a table at once, which costs work and no rows. Which daemons serve a table
follows from the members alone (rendezvous hashing): when a daemon joins or leaves, only its tables move."""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Protocol

import xxhash

from phantombase.timeline.errors import MissingFileError, PhantombaseError, StorageError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.storage.open_storage import full_path, open_storage
from phantombase.timeline.storage.storage_options import StorageOptions

from ..catalogs.catalog import base_path
from ..catalogs.options import open_catalog
from .pools import Pools
from .zookeeper_session import ZooKeeperSession

DEPTH = 3
"""How deep below a root tables are searched: `root/database/table` is two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The tables of a listing that patterns take, by name. `listed`: how many there are in all. `unmatched`: the
    patterns that match none of these. `empty_pools`: the pools that have none of the tables."""

    tables: Mapping[str, str]
    listed: int
    unmatched: tuple[str, ...]
    empty_pools: tuple[str, ...]

    @property
    def oddities(self) -> tuple[object, ...]:
        """What `warn` tells."""
        return self.unmatched, self.empty_pools, not self.tables

    def warn(self, listing: str) -> None:
        if self.unmatched:
            _log.warning("patterns_match_no_table", listing=listing, patterns=" ".join(self.unmatched))
        if self.empty_pools and self.tables:
            warn_of_empty_pools(listing, self.empty_pools)
        if not self.tables:
            _log.warning("no_table_is_taken", listing=listing, listed=self.listed)


def warn_of_empty_pools(listing: str, patterns: Sequence[str]) -> None:
    """What such a pool says of order, hours and limits concerns no table."""
    _log.warning("pools_have_no_table", listing=listing, patterns=" ".join(patterns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    listing: TableListing
    pools: Pools

    def taken(self) -> Taken:
        """Lists the tables. Errors: see `TableListing`."""
        listed = self.listing.tables()
        found = {name: path for name, path in listed.items() if self.pools.takes(name)}
        return Taken(
            tables=found,
            listed=len(listed),
            unmatched=self.pools.unmatched(listed),
            empty_pools=self.pools.empty(found),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTables:
    """All tables of a fleet: the names by path, the ids of the members, and the pools. Without ZooKeeper the fleet is
    this process alone, and has no members."""

    names: Mapping[str, str]
    members: frozenset[str]
    pools: Pools

    def servers(self, path: str) -> Sequence[str]:
        """The ids of the members that serve a table."""
        name = self.names.get(path)
        return () if name is None else servers(self.members, name, self.pools.of(name).daemons)


class TableListing(Protocol):
    """A source of tables. It may cache what it has found; it is called by one thread at a time."""

    def tables(self) -> Mapping[str, str]:
        """The base paths of the tables, by name (`a/b`). Errors of the tree: they cannot be listed now."""

    @property
    def shown(self) -> str:
        """What is listed, for messages; equal for all daemons of a fleet."""


class FolderListing:
    """Folders with `.hoodie` below a folder, but not below a table. A known table costs no request of its own."""

    def __init__(self, root: str, options: StorageOptions, depth: int = DEPTH) -> None:
        self._root = full_path(root).rstrip("/") or "/"
        self._storage = open_storage(root, options)
        self._depth = depth
        self._known: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        return self._root

    def tables(self) -> Mapping[str, str]:
        """See `TableListing`. UsageError: the folder does not exist, or is a table itself."""
        try:
            folders = _folders(self._storage, "")
        except MissingFileError as error:
            raise UsageError(
                "the folder to search for tables does not exist", path=self._root, todo="Check --root."
            ) from error
        if HOODIE in folders:
            raise UsageError(
                "the root is a table itself", path=self._root, todo="Name the folder above it, or the table alone."
            )
        found = frozenset(self._below("", folders, self._depth))
        self._known = found
        return {name: f"{self._root.rstrip('/')}/{name}" for name in sorted(found)}

    def _below(self, folder: str, names: list[str], depth: int) -> Iterator[str]:
        for name in names:
            path = f"{folder}/{name}" if folder else name
            if name.startswith("."):
                continue
            if path in self._known:
                yield path
                continue
            try:
                inner = _folders(self._storage, path)
            except MissingFileError:
                continue
            except StorageError:  # access denied, for example: it may be a table, and serving it shows the error
                inner = [HOODIE]
            if HOODIE in inner:
                yield path
            elif depth > 1:
                yield from self._below(path, inner, depth - 1)


def _folders(storage: Storage, folder: str) -> list[str]:
    return [e.name for e in storage.list(folder) if e.is_folder]


class CatalogListing:
    """The Hudi tables of a catalog, see `TableListing`. Names are DATABASE/TABLE."""

    def __init__(self, where: str, options: StorageOptions) -> None:
        """UsageError: not a catalog."""
        self.store = open_catalog(where, options)

    @property
    def shown(self) -> str:
        return self.store.shown

    def tables(self) -> Mapping[str, str]:
        """See `TableListing`. StorageError: no answer. UsageError: a package is missing."""
        by_path: dict[str, str] = {}
        with self.store.calls() as calls:
            for database in calls.databases():
                for table in calls.all_tables(database):
                    if table.is_hudi and (path := base_path(table.location)):
                        name = f"{database}/{table.name}"
                        by_path[path] = min(by_path.get(path, name), name, key=lambda n: (len(n), n))
        return {name: path for path, name in sorted(by_path.items())}


_log = get_logger()


class Members:
    """The members of a fleet, this process among them. `wake` is called, in kazoo's thread, when they change."""

    def __init__(self, session: ZooKeeperSession, fleet: str, who: str, wake: Callable[[], None]) -> None:
        self.me = uuid.uuid4().hex
        self._session = session
        self._folder = folder_of(session, fleet)
        self._who = who
        # One function for all calls: kazoo holds a set of watch functions until one fires.
        self._watch = lambda event: wake()
        self._joined = 0
        self._known: frozenset[str] = frozenset({self.me})

    def snapshot(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """Joins, or publishes what this member does (`facts`), and returns the ids of all members. Never raises."""
        try:
            self._publish(facts)
            found = self._session.call(self._session.client.get_children_async, self._folder, watch=self._watch)
        except PhantombaseError as error:
            _log.warning("members_unknown", error=str(error))
        else:
            self._known = frozenset(found) | {self.me}
        return self._known

    def _publish(self, facts: Mapping[str, Any]) -> None:
        from kazoo.exceptions import NodeExistsError

        client, path = self._session.client, f"{self._folder}/{self.me}"
        data = json.dumps({"who": self._who, "host": socket.gethostname(), "pid": os.getpid(), **facts}).encode()
        number = self._session.number
        if self._joined == number and self._session.find(client.set_async, path, data) is not None:
            return  # None: the session was lost just now
        self._session.call(client.ensure_path_async, self._folder)
        try:
            self._session.call(client.create_async, path, data, ephemeral=True)
        except NodeExistsError:  # of the lost session, or of a call that had no answer
            self._session.call(client.delete_async, path)
            self._session.call(client.create_async, path, data, ephemeral=True)
        self._joined = number


def members_in(session: ZooKeeperSession, fleet: str) -> tuple[Mapping[str, Any], ...]:
    """What the members of a fleet publish about themselves, with the `id` of each. UnknownStateError: no answer."""
    folder, found = folder_of(session, fleet), []
    for name in sorted(session.find(session.client.get_children_async, folder) or ()):
        answer = session.find(session.client.get_async, f"{folder}/{name}")
        with suppress(ValueError):  # not written by phantombase
            found += [{**json.loads(answer[0]), "id": name}] if answer is not None else []  # None: removed since then
    return tuple(found)


def fleet_of(listing: str) -> str:
    """The name of the fleet that serves a listing: the daemons that list the same share its tables. Schemes
    of one store are one."""
    plain = re.sub("^s3[an]://", "s3://", re.sub("^gcs://", "gs://", listing))
    return xxhash.xxh3_64_hexdigest(plain.encode())


def folder_of(session: ZooKeeperSession, fleet: str) -> str:
    return f"{session.options.root}/phantombase/fleets/{fleet}"


def serves(member: str, members: Collection[str], name: str, daemons: int) -> bool:
    """Whether a member is among the `daemons` that serve a table of this name; of fewer members, all are."""
    return member in servers(members, name, daemons)


def servers(members: Collection[str], name: str, daemons: int) -> Sequence[str]:
    """The members that serve a table of this name."""
    return nlargest(daemons, members, key=lambda member: _draw(member, name))


def _draw(member: str, name: str) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(f"{member}\0{name}".encode()), member
