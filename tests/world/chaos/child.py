"""How every process of the test begins."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG"""


def begin(log: Path) -> None:
    """What it says goes to a file; it ends with the server that forked it, however the test ends."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
