"""The version 6 gate: a due compaction asks writers to let the table come to rest for a moment.

On version 6 nothing can be planned while a delta commit pends, so writers that always overlap would put off the plan
for ever. A scheduler that finds a compaction due, but a delta commit pending, leaves one small record:

    .hoodie/.phantombase/scheduling-wanted     {"since": ms, "until": ms, "who": text}, ms since the epoch

    since        until                 until + (until - since)
      | writers wait | writers go on, and    | a new record may be put
      |              | no record may be put  |

Writers look at it before they begin, outside the lock. Whoever plans removes it. Nothing but progress rests on it:
a record that is lost, unreadable, or comes from another clock costs a plan some time, never a row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..clock.now import clock_ms
from ..errors import MissingFileError
from ..storage.contract import Storage
from ..storage.folders import RECORDS
from .heartbeat import process_name

GATE_S_MAX = 300.0
"""Longest time writers may be asked to wait."""


WANTED = f"{RECORDS}/scheduling-wanted"
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """That a plan is wanted from `since` to `until` (ms since the epoch), and who wants it."""

    since: int
    until: int
    who: str

    @property
    def length_ms(self) -> int:
        """How long writers wait at most."""
        return self.until - self.since

    def holds(self, now_ms: int) -> bool:
        """Whether writers wait."""
        return self.since <= now_ms < self.until

    def is_over(self, now_ms: int) -> bool:
        """Whether it is of no use any more: writers had as much time as they gave, or its clock was far ahead."""
        return now_ms >= self.until + self.length_ms or now_ms < self.since - round(GATE_S_MAX * 1000)

    def to_json(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @staticmethod
    def from_json(data: bytes) -> Wanted | None:
        """Inverse of `to_json`; None for what is no such record, or asks for more time than anybody may."""
        try:
            fields = json.loads(data)
            found = Wanted(since=int(fields["since"]), until=int(fields["until"]), who=str(fields["who"]))
        except (ValueError, KeyError, TypeError):
            return None
        return found if 0 < found.length_ms <= GATE_S_MAX * 1000 else None


def wait_while_wanted(
    storage: Storage, now: Callable[[], int] = clock_ms, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Called by a writer before it begins a delta commit, outside the lock; returns the seconds it waited.

    Ends when the record is gone, at its `until`, and after its length whatever the clock does. A record that follows
    it is not waited for: every call ends within GATE_S_MAX.
    """
    moment = now()
    first = found = read_wanted(storage, moment)
    waited = 0.0
    while first is not None and found == first and first.holds(moment) and waited < first.length_ms / 1000:
        pause = min(_POLL_S, (first.until - moment) / 1000)
        sleep(pause)
        waited += pause
        moment = now()
        found = read_wanted(storage, moment)
    return waited


def read_wanted(storage: Storage, now_ms: int) -> Wanted | None:
    """The record; None where there is none. One that is over or unreadable is removed."""
    try:
        found = Wanted.from_json(storage.read(WANTED))
    except MissingFileError:
        return None
    if found is None or found.is_over(now_ms):
        storage.delete(WANTED)
        return None
    return found


def put_wanted(storage: Storage, length_s: float, now_ms: int) -> None:
    """Asks writers to wait, unless they are asked already or were a moment ago (the caller holds the table lock)."""
    if length_s > 0 and read_wanted(storage, now_ms) is None:
        who = process_name()
        storage.put_if_absent(WANTED, Wanted(since=now_ms, until=now_ms + round(length_s * 1000), who=who).to_json())


def remove_wanted(storage: Storage) -> None:
    """Lets writers go on: there is a plan, or nothing to plan."""
    storage.delete(WANTED)
