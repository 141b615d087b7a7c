"""The seed of a test run: `PHANTOMBASE_SEED`, else by chance; the same in all workers, which must collect alike."""

from __future__ import annotations

import os
import random


def drawn(variable: str, below: int = 10**9) -> int:
    """What the environment says, or a number by chance, at least 1."""
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    return int(os.environ.get(variable, "0")) or chance.randrange(1, below)


SEED = drawn("PHANTOMBASE_SEED")
