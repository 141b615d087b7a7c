"""The seed of a test run: `PHANTOMBASE_SEED`; else 1, and by chance in a run of all tests.

It is the same in all workers, which must collect alike.
"""

from __future__ import annotations

import os
import random

from tests.support.selection import ALL


def drawn(variable: str, below: int = 10**9) -> int:
    """What the environment says; else 1, or with all tests a number by chance, at least 1."""
    given = int(os.environ.get(variable, "0"))
    if given or not ALL:
        return given or 1
    return random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(1, below)


SEED = drawn("PHANTOMBASE_SEED")
