"""The pytest plugin that hands out real Hudi: `pytest_plugins = ["tests.hudi.judge.fixtures"]`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.hudi.judge.client import BRIEF, INTERPRETED, Judge
from tests.hudi.judge.s3 import s3_conf
from tests.support.selection import ALL
from tests.support.servers.s3_server import S3Server


class Judges:
    """Starts each version when it is first asked for, and keeps the most recently used ones running. A JVM takes 1 to 2
    GiB: asking for one more version closes the one that was asked for longest ago. So get the judge from here again
    rather than keep it across a change of version."""

    def __init__(self, start: Callable[[str], Judge], alive_max: int = 2) -> None:
        self.start = start
        self.alive_max = alive_max
        self._alive: OrderedDict[str, Judge] = OrderedDict()

    def __call__(self, version: str) -> Judge:
        """The running judge of this Hudi version."""
        judge = self._alive.pop(version, None)
        judge = judge if judge is not None and judge.session.is_open else None
        while len(self._alive) >= self.alive_max:
            self._alive.popitem(last=False)[1].close()
        self._alive[version] = judge or self.start(version)
        return self._alive[version]

    def close(self) -> None:
        """End all of them."""
        while self._alive:
            self._alive.popitem()[1].close()


@pytest.fixture(scope="session")
def judges() -> Iterator[Judges]:
    """Real Hudi by version: `judges("1.2.0").upsert(...)`."""
    brief = Judge if ALL else partial(Judge, more=INTERPRETED, keeps_names=True)
    factory = Judges(lambda version: brief(version, java_options=BRIEF))
    yield factory
    factory.close()


@pytest.fixture(scope="session")
def s3_judges(shared_s3: S3Server) -> Iterator[Judges]:
    """The same for tables at `s3a://` URLs of the test server; one at a time."""
    access = shared_s3.environment()

    def start(version: str) -> Judge:
        return Judge(version, java_options=BRIEF, more=s3_conf(access, version), variables=access)

    factory = Judges(start, alive_max=1)
    yield factory
    factory.close()
