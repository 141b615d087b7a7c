"""Heartbeats of writers and compactors: `.hoodie/.heartbeat/<instant>`, the same place in all table versions.

Hudi's clients (0.15.0 and 1.2.0) write an empty file, touch it every 60 s (`hoodie.client.heartbeat.interval_in_ms`)
and take its writer for dead once the file is older than two such intervals (`...tolerable.misses`), or is not there.
Whoever completes removes it; Hudi's failed writers stop beating and leave it. So do ours (`keep_on_error`): a stale
file says "dead" just as none does, and it is what allows Hudi's single writers to roll back an instant that others
have completed commits after. A heartbeat of ours names its process, so on the same machine nobody waits for it to
grow old:

    phantombase
    {"boot": ..., "host": ..., "pid": ..., "started": ..., "note": {...}}

The note, where there is one, says what the process does at the instant, as of its last beat.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from ..errors import MalformedError, MissingFileError, PhantombaseError
from ..record_fields import Fields
from ..storage.contract import Storage
from ..storage.folders import HOODIE

_log = structlog.get_logger()

_OURS = b"phantombase\n"
BEAT_S = 30.0
"""How often a heartbeat is refreshed: twice within an interval of Hudi's."""
EXPIRY_S = 120.0
"""A heartbeat older than this is no sign of life: two missed intervals of 60 s (Hudi's defaults)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as others on its machine can find it again.

    `boot`: the machine's boot and the process's pid namespace (containers of one machine number their own); "" where
    unknown. `started`: clock ticks from boot to its start, which tells it from a later one with the same number.
    """

    host: str
    boot: str
    pid: int
    started: int

    @staticmethod
    def current() -> Process:
        """This process."""
        return Process(host=socket.gethostname(), boot=_boot(), pid=os.getpid(), started=_start(os.getpid()) or 0)

    def is_gone(self) -> bool:
        """Whether it has certainly ended; False for processes that cannot be seen from here."""
        if not self.boot or (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):  # somebody else's: it is there
            pass
        started = _start(self.pid)
        return started is not None and started != self.started


def process_name() -> str:
    """How this process is called in records and claims."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _boot() -> str:
    """Linux only: elsewhere nobody is declared dead by its number."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> int | None:
    """A process's start in clock ticks after boot; -1 for a zombie, None where it cannot be read."""
    try:
        # The name, in parentheses, may hold anything; behind it: state (field 3) ... start time (field 22).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A heartbeat as found. `beat_ms` since the epoch; `ours`: phantombase made it; `owner_gone`: see `Process`.

    `owner` and `note` (what its owner said of its work at that beat): None where the file does not tell.
    """

    beat_ms: int
    ours: bool
    owner_gone: bool
    owner: Process | None = None
    note: Mapping[str, Any] | None = None


def heartbeat_path(instant: str) -> str:
    """The heartbeat file of an instant."""
    return f"{HOODIE}/.heartbeat/{instant}"


def read_heartbeat(storage: Storage, instant: str) -> Heartbeat | None:
    """The heartbeat of an instant, None where there is no file."""
    path = heartbeat_path(instant)
    entry = storage.find(path)
    if entry is None:
        return None
    try:
        data = storage.read(path)
    except MissingFileError:  # its owner has just ended well
        return None
    ours = data.startswith(_OURS)
    owner, note = _content(data) if ours else (None, None)
    return Heartbeat(
        beat_ms=entry.modified_ms, ours=ours, owner_gone=owner is not None and owner.is_gone(), owner=owner, note=note
    )


def _content(data: bytes) -> tuple[Process | None, Mapping[str, Any] | None]:
    """Owner and note; None for what is not there or not understood. Unknown fields are ignored."""
    with suppress(MalformedError):
        fields = Fields.parse(data.removeprefix(_OURS), "heartbeat", "unreadable heartbeat")
        owner = Process(
            host=fields.text("host"), boot=fields.text("boot"), pid=fields.whole("pid"), started=fields.whole("started")
        )
        note = fields.values.get("note")
        if owner.pid > 0:
            return owner, note if isinstance(note, dict) else None
    return None, None


def is_live(beat: Heartbeat | None, now_ms: int, expiry_s: float = EXPIRY_S) -> bool:
    """Whether whoever keeps this heartbeat may still be at work (Hudi's rule; exactly `expiry_s` old is live).

    No file is no sign of life. A process of ours that is known to be gone is dead at once. One that lives beats again
    long before a time ahead of ours by as much is reached: a clock was put back.
    """
    return beat is not None and not beat.owner_gone and abs(now_ms - beat.beat_ms) <= expiry_s * 1000


class Pulse:
    """How regularly a heartbeat was kept. One that lapsed may have been declared dead: it must not complete."""

    def __init__(self) -> None:
        self._last = time.time()  # the clock others judge the file's age by
        self._longest_s = 0.0

    def felt(self) -> None:
        """A beat has reached storage."""
        now = time.time()
        self._longest_s, self._last = max(self._longest_s, now - self._last), now

    def lapsed(self, expiry_s: float = EXPIRY_S) -> bool:
        """Whether there was ever, or is now, a time of `expiry_s` without a beat."""
        return max(self._longest_s, time.time() - self._last) >= expiry_s


@contextmanager
def heartbeat(
    storage: Storage,
    instant: str,
    interval_s: float,
    *,
    note: Callable[[], Mapping[str, Any] | None] = lambda: None,
    keep_on_error: bool = False,
) -> Iterator[Pulse]:
    """Keeps a heartbeat at an instant, and removes it at the end.

    `note`: asked at each beat, in another thread, for a few plain values to put into the file; it must not raise.
    `keep_on_error`: after an error the file stays, as Hudi leaves it, for whoever rolls the pending instant back.
    A beat that fails is logged, not raised: see `Pulse` for what follows. That of a killed process goes stale.
    """
    stop, pulse = threading.Event(), Pulse()
    process = asdict(Process.current())

    def beat() -> None:
        said = note()
        fields = process if said is None else {**process, "note": said}
        with _logged(instant):
            storage.overwrite(heartbeat_path(instant), _OURS + json.dumps(fields, sort_keys=True).encode())
            pulse.felt()

    def keep() -> None:
        while not stop.wait(interval_s):
            beat()

    beat()
    thread = threading.Thread(target=keep, name=f"heartbeat-{instant}", daemon=True)
    thread.start()
    keep_file = keep_on_error
    try:
        yield pulse
        keep_file = False
    finally:
        stop.set()
        thread.join()
        if not keep_file:
            with _logged(instant):
                storage.delete(heartbeat_path(instant))


@contextmanager
def _logged(instant: str) -> Iterator[None]:
    try:
        yield
    except PhantombaseError as error:
        _log.warning("heartbeat_failed", instant=instant, error=str(error))
