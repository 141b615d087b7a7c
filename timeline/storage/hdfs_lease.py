"""A lease in files, for a storage without locks: which process holds it, by the clock of the storage.

    <lease>/<number>          one holder's file, put if absent; its holder puts it anew now and then
    <lease>/<number>.over     its holder has given the lease back

The highest number counts. It is free when it is over, or was not put anew for `VALID_S`. Then the next number is put:
one process succeeds. Numbers are never used twice, so a holder that slept finds a higher one.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..elapsed import Since
from ..errors import LockError, MissingFileError, PhantombaseError, StorageError
from ..event_log import get_logger
from ..pauses import doubling_pauses

_log = get_logger()

VALID_S = 45.0
"""How long a holder that died keeps others out."""
RENEW_S = 9.0
_POLL_S = 0.2, 2.0
_OVER = ".over"
_AHEAD_S = 1.0
"""How much longer a lease must last to count as held."""


class Leased(Protocol):
    """What a lease needs of its storage: see `Storage`."""

    @property
    def base_path(self) -> str: ...

    def list(self, folder: str) -> Any: ...

    def find(self, path: str) -> Any: ...

    def put_if_absent(self, path: str, data: bytes) -> bool: ...

    def overwrite(self, path: str, data: bytes) -> None: ...

    def delete(self, path: str) -> None: ...


@contextmanager
def hold_lease(
    storage: Leased, path: str, timeout_s: float, busy: LockError, clock_ms: Callable[[], int]
) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`. `clock_ms`: the clock that gives the storage's files their times."""
    try:
        number, since = _take(storage, path, timeout_s, busy, clock_ms)
    except StorageError as error:
        raise LockError("the lease cannot be used", path=f"{storage.base_path}/{path}", found=str(error)) from error
    kept = _Kept(storage, path, number, since)
    ended = threading.Event()
    keeper = threading.Thread(target=kept.keep, args=(ended,), name=f"lease-{path}", daemon=True)
    keeper.start()
    try:
        yield kept.is_held
    finally:
        ended.set()
        keeper.join()
        try:
            storage.put_if_absent(f"{path}/{number}{_OVER}", b"")
        except PhantombaseError as error:  # its time ends
            _log.warning("lock_not_released", path=path, error=str(error))


def _take(
    storage: Leased, path: str, timeout_s: float, busy: LockError, clock_ms: Callable[[], int]
) -> tuple[int, Since]:
    deadline, pauses = time.monotonic() + timeout_s, doubling_pauses(*_POLL_S)
    while True:
        numbers, over = _look(storage, path)
        since = Since()  # before the file gets its time
        last = max(numbers, default=0)
        if last in over or last == 0 or _age_s(storage, f"{path}/{last}", clock_ms) > VALID_S:
            mine = last + 1
            # Another process may have taken and removed this number meanwhile: then there is a higher one.
            if storage.put_if_absent(f"{path}/{mine}", _holder()) and max(_look(storage, path)[0], default=0) == mine:
                _remove_below(storage, path, numbers | over, mine)
                return mine, since
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise busy
        time.sleep(min(left_s, next(pauses)))


def _look(storage: Leased, path: str) -> tuple[set[int], set[int]]:
    """The numbers that were taken, and those that are over."""
    try:
        names = [entry.name for entry in storage.list(path)]
    except MissingFileError:
        return set(), set()
    taken = {int(name) for name in names if name.isdecimal()}
    return taken, {int(name.removesuffix(_OVER)) for name in names if name.endswith(_OVER)}


def _age_s(storage: Leased, path: str, clock_ms: Callable[[], int]) -> float:
    """How long ago a holder put its file anew, by the clock of the storage."""
    entry = storage.find(path)
    if entry is None:  # removed since it was listed: there is a higher number
        return 0.0
    modified_ms: int = entry.modified_ms
    return (clock_ms() - modified_ms) / 1000


def _remove_below(storage: Leased, path: str, numbers: set[int], mine: int) -> None:
    for number in sorted(numbers):
        if number < mine:
            storage.delete(f"{path}/{number}{_OVER}")
            storage.delete(f"{path}/{number}")


class _Kept:
    """A lease that was taken; `since`: not later than its file got its time."""

    def __init__(self, storage: Leased, path: str, number: int, since: Since) -> None:
        self._storage, self._path, self._number = storage, path, number
        self._since, self._lost = since, False

    def is_held(self) -> bool:
        """See `Storage.hold`."""
        return not self._lost and self._since.seconds() < VALID_S - _AHEAD_S

    def keep(self, ended: threading.Event) -> None:
        """Puts the holder's file anew until the section ends, or another process has the lease."""
        while not ended.wait(RENEW_S):
            try:
                since = Since()
                self._storage.overwrite(f"{self._path}/{self._number}", _holder())
                last = max(_look(self._storage, self._path)[0], default=0)
                # If its time was over before the new one was seen, another process may be about to take it.
                if last != self._number or not self.is_held():
                    self._lost = True
                    _log.warning("lock_lost", path=self._path)
                    return
                self._since = since
            except PhantombaseError as error:  # the next renewal may still be in time
                _log.warning("lock_not_renewed", path=self._path, error=str(error))


def _holder() -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
