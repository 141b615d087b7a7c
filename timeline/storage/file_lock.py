"""A lock file: excludes every process on machines that share its (POSIX-locking) file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import filelock

from ..errors import LockError


@contextmanager
def hold_file(path: str, timeout_s: float, busy: LockError) -> Iterator[Callable[[], bool]]:
    """See `Storage.hold`. A lock file is held as long as its process lives."""
    lock = filelock.FileLock(path, thread_local=False)  # the thread that leaves may differ from the one that enters
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout as error:
        raise busy from error
    except OSError as error:
        raise LockError("the lock file cannot be used", path=path, found=f"{type(error).__name__}: {error}") from error
    try:
        yield lambda: True
    finally:
        lock.release()
