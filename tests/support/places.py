"""Where things lie in a checkout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The project: packages, deploy, docs, README.md."""

GOLDEN_FOLDER = ROOT / "tests" / "golden"
"""Tables that real Hudi wrote, one zip file each."""


def memory() -> str | None:
    """A folder in memory that has room for the files of tests; None where there is none.

    A synced file costs 11 ms on a disk, and 0.1 ms there.
    """
    return _MEMORY if os.path.isdir(_MEMORY) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES else None


_MEMORY, _MEMORY_BYTES = "/dev/shm", 4 * 2**30
