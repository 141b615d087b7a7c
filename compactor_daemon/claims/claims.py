"""Claims: which process works on which pending compaction.

Claims save work; no safety rests on them: if two processes work on one instant, storage decides which attempt wins.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from phantombase.timeline.errors import MalformedError, MissingFileError
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS

from ..records.failures import WorkNote

TABLE_ID = f"{RECORDS}/table-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Which process works on an instant, and its progress: file slices `done` of `total`, bytes of all their inputs.

    `since_ms` since the epoch; `attempt` is None until one is opened. `nonce` distinguishes one claim from the next.
    """

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
        """A claim made now."""
        return Claim(
            instant=instant,
            holder=holder,
            host=socket.gethostname(),
            pid=os.getpid(),
            since_ms=round(time.time() * 1000),
            nonce=uuid.uuid4().hex,
        )

    def after(self, note: WorkNote) -> Claim:
        """The claim with the progress that its holder notes."""
        return replace(self, attempt=note.attempt, done=note.done, total=note.total, input_bytes=note.bytes)

    def to_json(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @staticmethod
    def from_json(data: bytes, instant: str) -> Claim:
        """Inverse of `to_json`; unknown fields are ignored. An unreadable claim has an unknown holder."""
        with suppress(MalformedError):
            fields = Fields.parse(data, instant, "unreadable claim")
            return Claim(
                instant=instant,
                holder=fields.text("holder"),
                host=fields.text("host"),
                pid=fields.whole("pid"),
                since_ms=fields.whole("since_ms"),
                attempt=fields.whole_or_none("attempt"),
                done=fields.whole("done"),
                total=fields.whole("total"),
                input_bytes=fields.whole("input_bytes"),
                nonce=fields.text("nonce"),
            )
        return Claim(instant=instant, holder="unknown", host="unknown", pid=0, since_ms=0)


class HeldClaim(Protocol):
    """A claim that this process holds."""

    @property
    def lost(self) -> bool:
        """Whether another process may hold the claim by now: then the work under it must stop."""
        ...

    def report(self, note: WorkNote) -> None:
        """Publishes the progress; never raises. Writes to ZooKeeper at most once a second."""
        ...

    def release(self) -> None:
        """Gives the claim back; never raises. A node that cannot be removed now is removed later, or by the session's
        end."""
        ...


class Claims(Protocol):
    """The claims on one table."""

    @property
    def available(self) -> bool:
        """Whether claims can be taken now."""
        ...

    def names(self) -> frozenset[str]:
        """The claimed instants. UnknownStateError: they cannot be known now."""
        ...

    def all(self) -> Mapping[str, Claim]:
        """The claims by instant. UnknownStateError: they cannot be known now."""
        ...

    def take(self, instant: str) -> HeldClaim | None:
        """Claims an instant. None: another process holds it. UnknownStateError: the outcome is unknown."""
        ...

    def close(self) -> None:
        """No more is asked of these claims; those that are held stay."""
        ...


def find_table_id(storage: Storage) -> str | None:
    """The name of a table in ZooKeeper, None while no fleet has served it.

    It is kept in the table, because machines may mount the table under different paths.
    """
    try:
        return storage.read(TABLE_ID).decode()
    except MissingFileError:
        return None


def table_id(storage: Storage) -> str:
    """The name of a table in ZooKeeper; a table without a name gets one now."""
    storage.put_if_absent(TABLE_ID, uuid.uuid4().hex.encode())
    return storage.read(TABLE_ID).decode()
