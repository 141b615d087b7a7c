"""Claims: which process works on which pending compaction or clustering, and plans clusterings (`CLUSTERING`).

Claims save work; safety does not depend on them. If two processes work on one instant, storage decides which attempt
wins. Without ZooKeeper (`zookeeper_claims`) they lie on the table's storage:

    .hoodie/.phantombase/claim.lock        file systems: a lock file, the claim on all instants of the table
    .hoodie/.phantombase/clustering.lock   the same for clusterings that daemons plan: they block no instant
    .hoodie/.phantombase/<C>/claim         object stores: a lease on one instant, or on these clusterings

They exclude `compactor-daemon compact`, compactions inside ingest jobs and other daemons."""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ClaimedError, MalformedError, MissingFileError, StoppedError, UnknownStateError
from phantombase.timeline.instants.reserved_times import instant_folder
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table

from ..attempt.failures import CLUSTERING, WorkNote

if TYPE_CHECKING:  # what merges is not loaded where claims are only shown
    from ..attempt.slice_record import SliceDone
    from ..attempt.slice_task import Runner, SliceProgress, Tasks

TABLE_ID = f"{RECORDS}/table-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Which process works on an instant, and its progress: file slices `done` of `total`, bytes of all their inputs.
    `since_ms` since the epoch; `attempt` is None until one is opened. `nonce` distinguishes one claim from the next."""

    instant: str
    holder: str
    host: str
    pid: int
    since_ms: int
    attempt: int | None = None
    done: int = 0
    total: int = 0
    input_bytes: int = 0
    nonce: str = field(default="", repr=False)

    @staticmethod
    def of_this_process(instant: str, holder: str) -> Claim:
        return Claim(
            instant=instant,
            holder=holder,
            host=socket.gethostname(),
            pid=os.getpid(),
            since_ms=clock_ms(),
            nonce=uuid.uuid4().hex,
        )

    def after(self, note: WorkNote) -> Claim:
        return replace(self, attempt=note.attempt, done=note.done, total=note.total, input_bytes=note.bytes)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @staticmethod
    def from_json(data: bytes, instant: str) -> Claim:
        """Inverse of `to_json`; unknown fields are ignored. An unreadable claim has an unknown holder."""
        with suppress(MalformedError):
            fields = Fields.parse(data, instant, "unreadable claim")
            return fields.of(Claim, instant=instant)
        return Claim(instant=instant, holder="unknown", host="unknown", pid=0, since_ms=0)


class HeldClaim(Protocol):
    """A claim that this process holds."""

    @property
    def lost(self) -> bool:
        """Whether another process may hold the claim by now: then the work under it must stop."""

    def report(self, note: WorkNote) -> None:
        """Publishes the progress; never raises. Writes to ZooKeeper at most once a second."""

    def release(self) -> None:
        """Releases the claim; never raises. A node that stays is removed later, or by the session's end."""


class Claims(Protocol):
    """The claims on one table."""

    @property
    def available(self) -> bool:
        """Whether claims can be taken now."""

    def names(self) -> frozenset[str]:
        """The claimed instants. UnknownStateError: they cannot be known now."""

    def all(self) -> Mapping[str, Claim]:
        """The claims by instant. UnknownStateError: they cannot be known now."""

    def take(self, instant: str) -> HeldClaim | None:
        """Claims an instant. None: another process holds it. UnknownStateError: the outcome is unknown."""

    def close(self) -> None:
        """These claims are not used any more; held ones remain held."""


def find_table_id(storage: Storage) -> str | None:
    """The name of a table in ZooKeeper, kept in the table (paths of mounts differ); None: no fleet has served it."""
    try:
        return storage.read(TABLE_ID).decode()
    except MissingFileError:
        return None


def table_id(storage: Storage) -> str:
    """The name of a table in ZooKeeper; a table without a name gets one now."""
    storage.put_if_absent(TABLE_ID, uuid.uuid4().hex.encode())
    return storage.read(TABLE_ID).decode()


def claim_path(table: Table, instant: str) -> str:
    """The path that is held while a process works on an instant."""
    if table.storage.is_file_system:
        return f"{RECORDS}/{CLUSTERING if instant == CLUSTERING else 'claim'}.lock"
    return f"{instant_folder(instant)}/claim"


def claim(table: Table, instant: str, wait_s: float = 0.0) -> AbstractContextManager[Callable[[], bool]]:
    """Holds the claim on an instant; gives whether it is still held. ClaimedError: another holds it beyond `wait_s`."""
    path = claim_path(table, instant)
    busy = ClaimedError(
        f"another compactor is at work on this {'table' if table.storage.is_file_system else 'instant'}",
        path=f"{table.storage.base_path}/{path}",
        todo="Wait until it ends, or run with --wait SECONDS.",
    )
    return table.storage.hold(path, wait_s, busy)


def claim_all(table: Table, wait_s: float = 0.0) -> AbstractContextManager[object]:
    """Holds the claim on all instants together where there is one, see the module; elsewhere does nothing."""
    return claim(table, "", wait_s) if table.storage.is_file_system else nullcontext()


def claim_one(table: Table, instant: str, wait_s: float = 0.0) -> AbstractContextManager[object]:
    """Holds the claim on an instant, unless `claim_all` holds it with the others."""
    return nullcontext() if table.storage.is_file_system else claim(table, instant, wait_s)


@dataclass(frozen=True)
class _Shared:
    """A held lock, and the instants that are claimed by it."""

    is_held: Callable[[], bool]
    close: Callable[[], None]
    instants: set[str] = field(default_factory=set)


class TableClaims:
    """See `Claims`. The first claim takes the lock, and the end of the last one releases it."""

    available = True

    def __init__(self, table: Table, holder: str) -> None:
        self._table = table
        self._holder = holder
        self._ours: dict[str, Claim] = {}
        self._locks: dict[str, _Shared] = {}
        self._changing = threading.Lock()
        """Held while a lock is taken or released: that may take long, and the loop reads the names concurrently."""

    def names(self) -> frozenset[str]:
        """See `Claims`. Claims of other processes are not listed; they only make `take` fail."""
        return frozenset(tuple(self._ours))

    def all(self) -> Mapping[str, Claim]:
        return dict(self._ours)

    def take(self, instant: str) -> HeldTable | None:
        path = claim_path(self._table, instant)
        with self._changing:
            if instant in self._ours:
                return None
            if path not in self._locks:
                stack = ExitStack()
                try:
                    self._locks[path] = _Shared(stack.enter_context(claim(self._table, instant)), stack.close)
                except ClaimedError:
                    return None
            self._locks[path].instants.add(instant)
            self._ours[instant] = Claim.of_this_process(instant, self._holder)
            return HeldTable(self, instant, self._locks[path].is_held)

    def close(self) -> None:
        """See `Claims`."""

    def _give_back(self, instant: str) -> None:
        path = claim_path(self._table, instant)
        with self._changing:
            self._ours.pop(instant, None)
            shared = self._locks.get(path)
            if shared is not None:
                shared.instants.discard(instant)
                if not shared.instants:
                    del self._locks[path]
                    shared.close()


class HeldTable:
    """See `HeldClaim`. A lock file is lost only when its process ends. The heartbeat shows the progress."""

    def __init__(self, claims: TableClaims, instant: str, is_held: Callable[[], bool]) -> None:
        self._claims = claims
        self._instant = instant
        self._is_held = is_held

    @property
    def lost(self) -> bool:
        return not self._is_held()

    def report(self, note: WorkNote) -> None:
        """Does nothing: other processes read the heartbeat."""

    def release(self) -> None:
        self._claims._give_back(self._instant)


def while_held(
    held: HeldClaim,
    handing_over: Callable[[], bool],
    runner: Runner,
    storage: Storage,
    tasks: Tasks,
    progress: SliceProgress,
) -> list[SliceDone]:
    """Runs tasks as long as a claim is held, and reports their progress with it. StoppedError: it is lost, or another
    daemon is to go on."""
    note = WorkNote(attempt=tasks[0].attempt, since_ms=clock_ms(), bytes=sum(task.read_bytes for task in tasks))

    def checked(done: int, total: int) -> None:
        if held.lost:
            raise StoppedError("the work was stopped by the loss of its claim")
        if handing_over():
            raise StoppedError("the work was stopped by the end of its daemon")
        held.report(replace(note, done=done, total=total))
        progress(done, total)

    return runner(storage, tasks, checked)


class NoClaims:
    """The claims on a table that was not opened yet, or that has nothing to claim."""

    def __init__(self, *, available: bool) -> None:
        self.available = available

    def names(self) -> frozenset[str]:
        return frozenset()

    def all(self) -> Mapping[str, Claim]:
        return {}

    def take(self, instant: str) -> HeldClaim | None:
        raise UnknownStateError("the table was not opened yet")

    def close(self) -> None:
        """See `Claims`."""
