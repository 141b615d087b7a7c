"""Whether the tables of a long round stay small: their files and instants are counted all the time."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.world.chaos.crew_child import Subject

_ENOUGH = 40
"""Samples of a table from which on a trend can be seen."""
_GROWTH = 1.5


class Growth:
    """Samples of tables."""

    def __init__(self, subjects: list[Subject]) -> None:
        self._subjects = subjects
        self._samples: defaultdict[str, list[int]] = defaultdict(list)

    def sample(self) -> None:
        """Counts all files of each table, and the instants on its timeline."""
        for subject in self._subjects:
            hoodie = subject.path / ".hoodie"
            self._samples[f"{subject.name} files"].append(_files_below(subject.path))
            self._samples[f"{subject.name} timeline"].append(
                len(list(hoodie.glob("*commit*"))) + len(list((hoodie / "timeline").glob("*commit*")))
            )

    def check(self) -> dict[str, int]:
        """AssertionError: there is more of something in the last third than in the middle one. The last medians."""
        found = {}
        for what, counts in self._samples.items():
            third = len(counts) // 3
            middle, last = median(counts[third : 2 * third]), median(counts[2 * third :])
            assert len(counts) < _ENOUGH or last <= _GROWTH * middle, f"{what}: {middle}, then {last}: it grows"
            found[what] = round(last)
        return found


def _files_below(path: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(path))
