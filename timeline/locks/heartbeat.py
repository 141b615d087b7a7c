"""What processes show each other without the lock: heartbeats of writers and compactors, and the version 6 gate.

A heartbeat is `.hoodie/.heartbeat/<instant>` in all table versions. Hudi's clients (0.15.0 and 1.2.0) write an empty
file and touch it every 60 s (`hoodie.client.heartbeat.interval_in_ms`). They treat its writer as dead if the file is
older than two such intervals (`...tolerable.misses`), or does not exist. A process that completes its instant removes
the file. A failed Hudi writer stops refreshing the file and keeps it. phantombase does the same (`keep_on_error`): a
stale file means "dead" just as no file does, and a single Hudi writer rolls back an instant with later completed
commits only if the file exists. A phantombase heartbeat names its process, so other processes on the same machine need
not wait until it is stale. The optional note describes what the process did for the instant at its last beat:

    phantombase
    {"boot": ..., "host": ..., "pid": ..., "started": ..., "note": {...}}

The gate: on version 6 no plan is possible while a delta commit is pending, so writers that always overlap would delay
the plan forever. A scheduler that finds a compaction due and a delta commit pending puts one small record:

    .hoodie/.phantombase/scheduling-wanted     {"since": ms, "until": ms, "who": text}, ms since the epoch

    since        until                 until + (until - since)
      | writers wait | writers continue, and | a new record may be put
      |              | no record may be put  |

A writer reads the record before it starts, outside the lock. The process that plans removes the record. Only progress
depends on it: a record that is lost, unreadable, or from another clock may delay a plan, but never loses a row."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..clocks import Stopwatch, clock_ms
from ..errors import MalformedError, MissingFileError, PhantombaseError
from ..event_log import get_logger
from ..instants.triggers import GATE_S_MAX
from ..prefetch import Threads
from ..record_fields import Fields
from ..storage.contract import Storage
from ..storage.folders import HEARTBEATS, RECORDS

_log = get_logger()
_OURS = b"phantombase\n"
BEAT_S = 30.0
"""How often a heartbeat is refreshed: twice within one Hudi interval."""
EXPIRY_S = 120.0
"""A heartbeat older than this does not count as alive: two missed intervals of 60 s (Hudi's defaults)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, described so that other processes on its machine can find it. `boot`: the machine's boot and the
    process's pid namespace (each container numbers its own processes); "" if unknown. `started`: clock ticks from boot
    to its start, which distinguish it from later processes with its pid."""

    host: str
    boot: str
    pid: int
    started: int

    @staticmethod
    def current() -> Process:
        return Process(host=socket.gethostname(), boot=_boot(), pid=os.getpid(), started=_start(os.getpid()) or 0)

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; False if it is not visible from this machine or container."""
        if not self.boot or (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):  # the process exists, but belongs to another user
            pass
        started = _start(self.pid)
        return started is not None and started != self.started


def process_name() -> str:
    """The name of this process in records and claims."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _boot() -> str:
    """Linux only: on other systems no process is declared dead by its pid."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> int | None:
    """The start of a process in clock ticks after boot; -1 for a zombie, None if it cannot be read."""
    try:
        # The name, in parentheses, may contain anything; after it: state (field 3) ... start time (field 22).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A heartbeat as read. `beat_ms`: since the epoch. `ours`: phantombase wrote it. `owner_gone`: see `Process`.
    `owner` and `note` (the owner's note at that beat): None if the file does not contain them."""

    beat_ms: int
    ours: bool
    owner_gone: bool
    owner: Process | None = None
    note: Mapping[str, Any] | None = None


def heartbeat_path(instant: str) -> str:
    """The heartbeat file of an instant. For work without an instant, which Hudi must not see, a path stands for it."""
    return instant if "/" in instant else f"{HEARTBEATS}/{instant}"


def read_heartbeat(storage: Storage, instant: str) -> Heartbeat | None:
    """The heartbeat of an instant, None where there is no file."""
    path = heartbeat_path(instant)
    entry = storage.find(path)
    if entry is None:
        return None
    try:
        data = storage.read(path)
    except MissingFileError:  # its owner has just completed
        return None
    ours = data.startswith(_OURS)
    owner, note = _content(data) if ours else (None, None)
    return Heartbeat(
        beat_ms=entry.modified_ms, ours=ours, owner_gone=owner is not None and owner.is_gone(), owner=owner, note=note
    )


def _content(data: bytes) -> tuple[Process | None, Mapping[str, Any] | None]:
    """Owner and note; None if missing or malformed. Unknown fields are ignored."""
    with suppress(MalformedError):
        fields = Fields.parse(data.removeprefix(_OURS), "heartbeat", "unreadable heartbeat")
        owner, note = fields.of(Process), fields.values.get("note")
        if owner.pid > 0:
            return owner, note if isinstance(note, dict) else None
    return None, None


def is_live(beat: Heartbeat | None, now_ms: int, expiry_s: float = EXPIRY_S) -> bool:
    """Whether the owner of this heartbeat may still work (Hudi's rule; exactly `expiry_s` old counts as live).
    `now_ms`: by the clock of the storage, which dates the file (`storage_ms`): this process's may be wrong. No file
    means dead. A phantombase process that is known to have ended is dead at once. A time more than `expiry_s` ahead of
    that clock means dead too: the clock was set back, and a live process would have refreshed the file since."""
    return beat is not None and not beat.owner_gone and abs(now_ms - beat.beat_ms) <= expiry_s * 1000


def may_be_written(storage: Storage, path: str, instant: str, now_ms: int, expiry_s: float = EXPIRY_S) -> bool:
    """Whether a process may still be writing a file of an instant: the file is young, or the instant's heartbeat is
    live. `now_ms`: by the storage's clock."""
    entry = storage.find(path)
    is_young = entry is not None and now_ms - entry.modified_ms < expiry_s * 1000
    return is_young or is_live(read_heartbeat(storage, instant), now_ms, expiry_s)


class Heartbeats:
    """The lapses of a heartbeat. After one its process may have been declared dead, and must not complete the instant.
    `keep_on_error`: after an error the file is kept, as by Hudi, for who rolls the instant back. Set it once there is
    something to. `end` stops it: who removes the file then, with others, says so by `is_removed`."""

    def __init__(self, end: Callable[[], None] = lambda: None) -> None:
        self.keep_on_error = self.is_removed = False
        self.end = end
        self._first: Future[None] | None = None
        self._last = Stopwatch()
        self._longest_s = 0.0

    def begin(self, beat: Callable[[], None], *, at_once: bool) -> None:
        """The first beat. `at_once`: it goes on in a thread, until `check_begun`, which raises its error."""
        if at_once:
            pool = Threads(1)
            self._first = pool.submit(beat)
            pool.shutdown(wait=False)
        else:
            beat()

    def check_begun(self) -> None:
        if self._first is not None:
            self._first.result()

    def settle(self) -> None:
        """Waits for the first beat: its file must not appear after it was removed."""
        if self._first is not None:
            wait((self._first,))

    def felt(self) -> None:
        self._longest_s, self._last = max(self._longest_s, self._last.seconds()), Stopwatch()

    def lapsed(self, expiry_s: float = EXPIRY_S) -> bool:
        """Whether there was any period of `expiry_s` without a beat, up to now."""
        return max(self._longest_s, self._last.seconds()) >= expiry_s


@contextmanager
def first_beat(storage: Storage, instant: str) -> Iterator[None]:
    """Puts a heartbeat for the steps before `heartbeat`, which continues it. Removes it on an error. If the process
    dies during these steps, other processes of its machine see at once that it has ended."""
    _put(storage, instant, asdict(Process.current()))
    try:
        yield
    except PhantombaseError:
        with _logged(instant):
            storage.delete(heartbeat_path(instant))
        raise


@contextmanager
def heartbeat(
    storage: Storage,
    instant: str,
    interval_s: float,
    *,
    note: Callable[[], Mapping[str, Any] | None] = lambda: None,
    at_once: bool = False,
) -> Iterator[Heartbeats]:
    """Keeps a heartbeat for an instant, and removes it at the end; after an error, see `Heartbeats`. `note`: called at
    each beat, in another thread; returns a few plain values for the file; it must not raise. StorageError: the first
    beat failed; work without one counts as dead at once. A later one that fails is logged: see `Heartbeats` for the
    consequence. After a kill the heartbeat becomes stale. `at_once`: an object store is asked for the first beat while
    the body begins, which calls `check_begun` before it changes what others see."""
    stop = threading.Event()
    process = asdict(Process.current())

    def beat() -> None:
        content = note()
        fields = process if content is None else {**process, "note": content}
        _put(storage, instant, fields)
        heartbeats.felt()

    def keep() -> None:
        while not stop.wait(interval_s):
            with _logged(instant):
                beat()

    def remove() -> None:
        with _logged(instant):
            storage.delete(heartbeat_path(instant))

    def end() -> None:
        stop.set()
        thread.join()

    thread, heartbeats = threading.Thread(target=keep, name=f"heartbeat-{instant}", daemon=True), Heartbeats(end)
    try:
        heartbeats.begin(beat, at_once=at_once and not storage.is_file_system)
    except PhantombaseError:
        remove()
        raise
    thread.start()
    failed = True
    try:
        yield heartbeats
        failed = False
    finally:
        end()
        heartbeats.settle()
        if not (failed and heartbeats.keep_on_error) and not heartbeats.is_removed:
            remove()


def _put(storage: Storage, instant: str, fields: Mapping[str, Any]) -> None:
    storage.overwrite(heartbeat_path(instant), _OURS + json.dumps(fields, sort_keys=True).encode())


@contextmanager
def _logged(instant: str) -> Iterator[None]:
    try:
        yield
    except PhantombaseError as error:
        _log.warning("heartbeat_failed", instant=instant, error=str(error))


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
