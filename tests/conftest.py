"""Fixtures and settings for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest_plugins = ["tests.judge.fixtures", "tests.zookeeper", "tests.ensemble", "tests.spark_cluster"]

# No deadline: on a shared machine it fails tests at random. A failure prints how to run it again.
settings.register_profile("phantombase", deadline=None, print_blob=True)
settings.load_profile("phantombase")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (`-n 2 --dist loadgroup`): a file is one worker's, and all that needs real Hudi one's."""
    with_hudi = {item.path for item in items if _needs_hudi(item)}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("hudi" if item.path in with_hudi else str(item.path)))


def _needs_hudi(item: pytest.Item) -> bool:
    """Real Hudi is a JVM of some GiB: there is one."""
    return item.get_closest_marker("interop") is not None or "judges" in getattr(item, "fixturenames", ())
