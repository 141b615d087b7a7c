"""Pauses between tries."""

from __future__ import annotations

import random
from collections.abc import Iterator


def doubling_pauses(first_s: float, most_s: float) -> Iterator[float]:
    """Seconds, each twice the one before, up to `most_s`; of each a random half to all, so that tries come apart."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1)
        pause_s = min(2 * pause_s, most_s)
