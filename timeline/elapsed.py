"""How long ago a moment of this process was, also if the process or its machine slept, or a clock was set."""

from __future__ import annotations

import time

_SET_S = 2.0


class Since:
    """A moment: that of its making."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def seconds(self) -> float:
        """How long ago it was, by the clock that says longer: one of them may stand while the machine sleeps."""
        return max(self._by_wall(), self._by_steady())

    def was_set(self) -> bool:
        """Whether the wall clock was set since, or the machine slept: the two clocks do not say the same."""
        return abs(self._by_wall() - self._by_steady()) > _SET_S

    def _by_wall(self) -> float:
        return time.time() - self._wall

    def _by_steady(self) -> float:
        return time.monotonic() - self._steady
