"""Servers of tests while they run: threads that serve, and processes that are waited for. Whom a process runs as."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from socketserver import BaseServer

import pytest

_POLL_S = 0.2
_DROPS = os.geteuid() == 0 and shutil.which("setpriv") is not None
AS_A_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if _DROPS else ()
"""Before a command: takes from root what other users do not have."""
as_a_user = pytest.mark.skipif(os.geteuid() == 0 and not _DROPS, reason="root may do everything, and has no setpriv")
"""The mark of a test that needs it."""


@contextmanager
def serving(listening: BaseServer) -> Iterator[None]:
    """Serves in a thread of this process."""
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@contextmanager
def started(
    command: Sequence[str],
    ask: Callable[[], object],
    unready: tuple[type[Exception], ...],
    most_s: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A process that answers. `ask` raises one of `unready` until it does, and for good if the process ended."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + most_s
        while True:
            try:
                ask()
                break
            except unready:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        yield
    finally:
        process.terminate()
        process.wait()
