"""The pytest plugin that hands out real Hudi: `pytest_plugins = ["tests.judge.fixtures"]`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from tests.judge.client import BRIEF, Judge


class Judges:
    """Starts each version when it is first asked for, and keeps the most recently used ones running.

    A JVM takes 1 to 2 GiB: asking for one more version closes the one that was asked for longest ago. So get the
    judge from here again rather than keep it across a change of version.
    """

    def __init__(self, alive_max: int = 2) -> None:
        self.alive_max = alive_max
        self._alive: OrderedDict[str, Judge] = OrderedDict()

    def __call__(self, version: str) -> Judge:
        """The running judge of this Hudi version."""
        judge = self._alive.pop(version, None)
        while len(self._alive) >= self.alive_max:
            self._alive.popitem(last=False)[1].close()
        self._alive[version] = judge or Judge(version, java_options=BRIEF)
        return self._alive[version]

    def close(self) -> None:
        """End all of them."""
        while self._alive:
            self._alive.popitem()[1].close()


@pytest.fixture(scope="session")
def judges() -> Iterator[Judges]:
    """Real Hudi by version: `judges("1.2.0").upsert(...)`."""
    factory = Judges()
    yield factory
    factory.close()
