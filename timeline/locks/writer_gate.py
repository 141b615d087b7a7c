"""The version 6 gate: when a compaction is due, writers pause briefly so that the table has no pending delta commit.

On version 6 no plan is possible while a delta commit is pending, so writers that always overlap would delay the plan
forever. A scheduler that finds a compaction due and a delta commit pending puts one small record:

    .hoodie/.phantombase/scheduling-wanted     {"since": ms, "until": ms, "who": text}, ms since the epoch

    since        until                 until + (until - since)
      | writers wait | writers continue, and | a new record may be put
      |              | no record may be put  |

A writer reads the record before it starts, outside the lock. The process that plans removes the record. Only progress
depends on it: a record that is lost, unreadable, or from another clock may delay a plan, but never loses a row."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..clocks import clock_ms
from ..errors import MissingFileError
from ..instants.triggers import GATE_S_MAX
from ..storage.contract import Storage
from ..storage.folders import RECORDS
from .heartbeat import process_name

WANTED = f"{RECORDS}/scheduling-wanted"
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request for a plan: writers wait from `since` to `until` (ms since the epoch). `who`: the scheduler."""

    since: int
    until: int
    who: str

    @property
    def length_ms(self) -> int:
        return self.until - self.since

    def holds(self, now_ms: int) -> bool:
        return self.since <= now_ms < self.until

    def is_over(self, now_ms: int) -> bool:
        """Whether the record is expired: the wait's length after `until`, or at once if its clock was far ahead."""
        return now_ms >= self.until + self.length_ms or now_ms < self.since - round(GATE_S_MAX * 1000)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @staticmethod
    def from_json(data: bytes) -> Wanted | None:
        """Inverse of `to_json`; None if it is not such a record, or asks for more than the longest time."""
        try:
            fields = json.loads(data)
            found = Wanted(since=int(fields["since"]), until=int(fields["until"]), who=str(fields["who"]))
        except (ValueError, KeyError, TypeError):
            return None
        return found if 0 < found.length_ms <= GATE_S_MAX * 1000 else None


def wait_while_wanted(
    storage: Storage, now: Callable[[], int] = clock_ms, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Waits before a writer starts a delta commit, outside the lock; returns the seconds of the wait. The wait ends
    when the record is removed, at its `until`, or after its length, whatever the clock does. A later record does not
    extend it: every call ends within GATE_S_MAX."""
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
    """The record; None if it does not exist. An expired or unreadable record is removed."""
    try:
        found = Wanted.from_json(storage.read(WANTED))
    except MissingFileError:
        return None
    if found is None or found.is_over(now_ms):
        storage.delete(WANTED)
        return None
    return found


def put_wanted(storage: Storage, length_s: float, now_ms: int) -> None:
    """Asks writers to wait, unless a record is valid or expired shortly before (the caller holds the table lock)."""
    if length_s > 0 and read_wanted(storage, now_ms) is None:
        who = process_name()
        storage.put_if_absent(WANTED, Wanted(since=now_ms, until=now_ms + round(length_s * 1000), who=who).to_json())


def remove_wanted(storage: Storage) -> None:
    """Lets writers continue: there is a plan, or nothing to plan."""
    storage.delete(WANTED)
