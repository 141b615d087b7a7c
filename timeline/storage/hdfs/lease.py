"""A lease in files, for a storage without locks: which process holds it, by the clock of the storage.

    <lease>/<number>          one holder's file, put if absent; its holder puts it anew now and then
    <lease>/<number>.over     its holder has given the lease back

The highest number counts. It is free when it is over, or was not put anew for `VALID_S`. Then the next number is put:
one process succeeds. Numbers are never used twice, so a holder that slept finds a higher one.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import structlog

from ...elapsed import Since
from ...errors import LockError, MissingFileError, PhantombaseError, StorageError

_log = structlog.get_logger()

VALID_S = 45.0
"""How long a holder that died keeps others out."""
RENEW_S = 9.0
_POLL_S = 0.2, 2.0
_MARGIN_S = 5.0
"""How long before the end of its time a holder stops: a step that was begun must be done before another holds it."""
_OVER = ".over"


class Leased(Protocol):
    """What a lease needs of its storage: see `Storage`."""

    @property
    def base_path(self) -> str: ...

    def list(self, folder: str) -> Any: ...

    def find(self, path: str) -> Any: ...

    def put_if_absent(self, path: str, data: bytes) -> bool: ...

    def overwrite(self, path: str, data: bytes) -> None: ...

    def delete(self, path: str) -> None: ...


class _Lease:
    """One holder's view of its lease. `number`: that of its file."""

    def __init__(self, number: int, since: Since) -> None:
        self.number = number
        self.lost = False
        self._renewed = since

    def renewed(self, since: Since) -> None:
        """Its file was put anew after that moment."""
        self._renewed = since

    def is_held(self) -> bool:
        """See `Storage.hold`; false already a little before its time ends."""
        return not self.lost and self._renewed.seconds() < VALID_S - _MARGIN_S


@contextmanager
def hold_lease(
    storage: Leased, path: str, timeout_s: float, busy: LockError, now_ms: Callable[[], int]
) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`. `now_ms`: the clock that gives files their times."""
    try:
        lease = _take(storage, path, timeout_s, busy, now_ms)
    except StorageError as error:
        raise LockError("the lease cannot be used", path=f"{storage.base_path}/{path}", found=str(error)) from error
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(storage, path, lease, ended), name=f"lease-{path}", daemon=True)
    keeper.start()
    try:
        yield lease.is_held
    finally:
        ended.set()
        keeper.join()
        try:
            storage.put_if_absent(f"{path}/{lease.number}{_OVER}", b"")
        except PhantombaseError as error:  # its time ends
            _log.warning("lock_not_released", path=path, error=str(error))


def _take(storage: Leased, path: str, timeout_s: float, busy: LockError, now_ms: Callable[[], int]) -> _Lease:
    deadline, pause_s = time.monotonic() + timeout_s, _POLL_S[0]
    while True:
        numbers, over = _look(storage, path)
        last = max(numbers, default=0)
        if last in over or last == 0 or _age_s(storage, f"{path}/{last}", now_ms) > VALID_S:
            mine, since = last + 1, Since()
            # Another process may have taken and removed this number meanwhile: then there is a higher one.
            if storage.put_if_absent(f"{path}/{mine}", _holder()) and max(_look(storage, path)[0], default=0) == mine:
                _remove_below(storage, path, numbers | over, mine)
                return _Lease(mine, since)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise busy
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1)))
        pause_s = min(2 * pause_s, _POLL_S[1])


def _look(storage: Leased, path: str) -> tuple[set[int], set[int]]:
    """The numbers that were taken, and those that are over."""
    try:
        names = [entry.name for entry in storage.list(path)]
    except MissingFileError:
        return set(), set()
    taken = {int(name) for name in names if name.isdecimal()}
    return taken, {int(name.removesuffix(_OVER)) for name in names if name.endswith(_OVER)}


def _age_s(storage: Leased, path: str, now_ms: Callable[[], int]) -> float:
    """How long ago a holder put its file anew, by the clock of the storage."""
    entry = storage.find(path)
    if entry is None:  # removed since it was listed: there is a higher number
        return 0.0
    modified_ms: int = entry.modified_ms
    return (now_ms() - modified_ms) / 1000


def _remove_below(storage: Leased, path: str, numbers: set[int], mine: int) -> None:
    for number in sorted(numbers):
        if number < mine:
            storage.delete(f"{path}/{number}{_OVER}")
            storage.delete(f"{path}/{number}")


def _keep(storage: Leased, path: str, lease: _Lease, ended: threading.Event) -> None:
    """Puts the holder's file anew until the section ends, or another process has the lease."""
    while not ended.wait(RENEW_S):
        try:
            since = Since()
            if max(_look(storage, path)[0], default=0) != lease.number:
                lease.lost = True
                _log.warning("lock_lost", path=path)
                return
            storage.overwrite(f"{path}/{lease.number}", _holder())
            lease.renewed(since)
        except PhantombaseError as error:  # the next renewal may still be in time
            _log.warning("lock_not_renewed", path=path, error=str(error))


def _holder() -> bytes:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
