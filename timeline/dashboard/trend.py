"""How a table's debt went over the last day, as far as this process has seen it."""

from __future__ import annotations

from collections import defaultdict, deque

from ..terminal.plain import Row

_EVERY_S = 60.0
_KEPT = 24 * 60
_NAMES = ("log_bytes", "log_files", "read_amplification")


class Trends:
    """One sample a minute, for a day."""

    def __init__(self) -> None:
        self._samples: defaultdict[str, deque[Row]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def add(self, path: str, at_s: float, numbers: Row) -> None:
        """Keeps what `numbers` says, unless the last sample is younger than a minute."""
        samples = self._samples[path]
        if not samples or at_s - samples[-1]["at_s"] >= _EVERY_S:
            samples.append({"at_s": round(at_s, 3), **{name: numbers[name] for name in _NAMES}})

    def of(self, path: str) -> list[Row]:
        """The samples, oldest first."""
        return list(self._samples[path])
