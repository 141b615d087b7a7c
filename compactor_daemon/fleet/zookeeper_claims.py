"""Claims of a fleet: one ephemeral node per instant, made by a plain create.

    <chroot>/phantombase/<table id>/claims/<instant>     ephemeral, JSON (`Claim`): holder, time and progress
    <chroot>/phantombase/<table id>/requests             its data changes when a plan was requested: the doorbell

The node disappears with the session of its holder. After a create or delete without an answer, the owner of the node
shows the result; it is read at the latest before claims are taken again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from phantombase.timeline.errors import PhantombaseError, UnknownStateError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.table.table import Table

from ..attempt.failures import WorkNote
from .claims import Claim, find_table_id
from .zookeeper_session import ZooKeeperOptions, ZooKeeperSession, zookeeper_session

_log = get_logger()
_REPORT_S = 1.0


class ZooKeeperClaims:
    """See `Claims`. `holder`: as others see it. `wake`: called in kazoo's thread at a change, once for each `names`."""

    def __init__(
        self, session: ZooKeeperSession, table: str, holder: str, wake: Callable[[], None] | None = None
    ) -> None:
        self.session = session
        self._holder = holder
        # One function for all calls: kazoo holds a set of watch functions until one fires.
        self._watch = None if wake is None else lambda event: wake()
        self._base = f"{session.options.root}/phantombase/{table}"
        self._folder = f"{self._base}/claims"
        self._settling = threading.Lock()
        """Held while a leftover node is found and removed: until then no thread may take it as a claim."""
        self._doubtful: set[str] = set()
        self._held: set[str] = set()
        self._closed = False

    @property
    def available(self) -> bool:
        return self.session.connected

    def names(self) -> frozenset[str]:
        self._settle()
        found = self.session.find(self.session.client.get_children_async, self._folder, watch=self._watch)
        return frozenset(found or ())

    def all(self) -> Mapping[str, Claim]:
        get, names = self.session.client.get_async, sorted(self.names())
        answers = ((instant, self.session.find(get, self._path(instant))) for instant in names)
        return {i: Claim.from_json(answer[0], i) for i, answer in answers if answer is not None}  # None: released since

    def take(self, instant: str) -> HeldNode | None:
        from kazoo.exceptions import NodeExistsError

        number = self.session.number
        claim = Claim.of_this_process(instant, self._holder)
        with self._settling:
            try:
                self._create(claim)
            except NodeExistsError:
                if not self._is_leftover(instant):
                    return None
            except UnknownStateError:
                self._doubtful.add(instant)
                raise
            self._doubtful.discard(instant)
            self._held.add(instant)
        return HeldNode(self, claim, number)

    def wake_on_request(self, wake: Callable[[], None]) -> None:
        """Calls `wake` in kazoo's thread whenever a plan is requested, also after reconnecting."""
        from kazoo.recipe.watchers import DataWatch

        client = self.session.client
        self._call(client.ensure_path_async, self._requests)
        self._call(client.get_async, self._requests)  # raises if this process has no permission
        # In another thread: DataWatch waits for ZooKeeper without a limit.
        client.handler.spawn(DataWatch, client, self._requests, lambda data, stat: self._rang(wake))

    def close(self) -> None:
        """See `Claims`; then the doorbell wakes no daemon any more."""
        self._closed = True

    def _rang(self, wake: Callable[[], None]) -> bool:
        """Whether to continue, which is DataWatch's own rule."""
        if self._closed:
            return False
        wake()
        return True

    def ring(self, instant: str) -> None:
        self._call(self.session.client.ensure_path_async, self._requests)
        self._call(self.session.client.set_async, self._requests, instant.encode())

    @property
    def _requests(self) -> str:
        return f"{self._base}/requests"

    def _path(self, instant: str) -> str:
        return f"{self._folder}/{instant}"

    def _call(self, ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self.session.call(ask, *args, **options)

    def _create(self, claim: Claim) -> None:
        """Makes the node with one request. Kazoo's `makepath` sends more requests after this call has timed out."""
        from kazoo.exceptions import NoNodeError

        create = partial(
            self._call, self.session.client.create_async, self._path(claim.instant), claim.to_json(), ephemeral=True
        )
        try:
            create()
        except NoNodeError:  # the table's first claim
            self._call(self.session.client.ensure_path_async, self._folder)
            create()

    def _settle(self) -> None:
        """Removes nodes of this session that no work uses: those of calls that had no answer."""
        for instant in tuple(self._doubtful):
            with self._settling:
                if self._is_leftover(instant):
                    self._delete(instant)
                self._doubtful.discard(instant)

    def _is_leftover(self, instant: str) -> bool:
        """Whether a node belongs to this session although this process does not work under it."""
        if instant in self._held:
            return False
        stat = self._call(self.session.client.exists_async, self._path(instant))
        if stat is None:
            return False
        if (session := self.session.id) is None:
            raise UnknownStateError("the connection to ZooKeeper was lost", path=self.session.options.servers)
        return bool(stat.ephemeralOwner == session)

    def _delete(self, instant: str) -> None:
        self.session.find(self.session.client.delete_async, self._path(instant))

    def _write(self, claim: Claim) -> bool:
        """Writes a claim's progress to its node; False if the node was removed."""
        stat = self.session.find(self.session.client.set_async, self._path(claim.instant), claim.to_json())
        return stat is not None

    def _give_back(self, instant: str, number: int) -> None:
        self._held.discard(instant)
        if self.session.number != number:
            # The node was removed with its old session, unless it was made just after a new session had begun.
            self._doubtful.add(instant)
            return
        try:
            self._delete(instant)
        except PhantombaseError as error:
            self._doubtful.add(instant)
            _log.warning("claim_not_removed", instant=instant, error=str(error))


class HeldNode:
    """See `HeldClaim`."""

    def __init__(self, claims: ZooKeeperClaims, claim: Claim, session: int) -> None:
        self._claims = claims
        self._claim = claim
        self._session = session
        self._removed = False
        self._reported_at = time.monotonic()

    @property
    def lost(self) -> bool:
        """See `HeldClaim`. SUSPENDED is not lost: the session may live on."""
        return self._removed or self._claims.session.number != self._session

    def report(self, note: WorkNote) -> None:
        now = self._claim.after(note)
        is_soon = time.monotonic() - self._reported_at < _REPORT_S
        if now == self._claim or (is_soon and now.attempt == self._claim.attempt):
            return
        self._claim, self._reported_at = now, time.monotonic()
        if self.lost or not self._claims.available:
            return
        try:
            self._removed = not self._claims._write(now)
        except PhantombaseError as error:
            _log.warning("claim_not_updated", instant=now.instant, error=str(error))

    def release(self) -> None:
        self._claims._give_back(self._claim.instant, self._session)


def held_claims(session: ZooKeeperSession, table: Table) -> Mapping[str, Claim]:
    """The claims on a table; none if no fleet has served it yet: then the table has no name in ZooKeeper."""
    name = find_table_id(table.storage)
    return ZooKeeperClaims(session, name, holder="").all() if name is not None else {}


_CONNECT_S = 3.0
"""A writer waits no longer than this to reach ZooKeeper: daemons find its plan at their next poll anyway."""


def ring(table: Table, instant: str, zookeeper: ZooKeeperOptions) -> None:
    """Wakes the daemons of a table, if a fleet serves it. Never raises: a poll finds the plan too."""
    try:
        name = find_table_id(table.storage)
        if name is not None:
            soon = replace(zookeeper, connect_timeout_s=min(zookeeper.connect_timeout_s, _CONNECT_S))
            with zookeeper_session(soon) as session:
                ZooKeeperClaims(session, name, holder="").ring(instant)
    except PhantombaseError as error:
        _log.warning("fleet_not_woken", table=table.storage.base_path, instant=instant, error=str(error))
