"""Fixtures and settings for all tests."""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from phantombase.compactor_daemon.execution import spark_session as spark_start
from phantombase.timeline.event_log import NAME
from tests.support.selection import ALL

pytest_plugins = [
    "tests.judge.fixtures",
    "tests.support.gcs_server",
    "tests.support.s3_server",
    "tests.support.fault_proxy",
    "tests.support.hdfs_cluster",
    "tests.support.zookeeper_server",
    "tests.support.zookeeper_ensemble",
    "tests.support.spark_cluster",
    "tests.support.azure_server",
    "tests.support.minio_server",
    "tests.support.hive_metastore",
]

# JVMs of Spark that tests start live for seconds: a compiler that makes code fast costs more than it saves.
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_LAUNCHER_OPTS"] = _BRIEF

# No deadline: on a shared machine it fails tests at random. A failure prints how to run it again.
settings.register_profile("phantombase", deadline=None, print_blob=True)
settings.load_profile("phantombase")


@pytest.fixture(autouse=True)
def _logging_untouched() -> Iterator[None]:
    """Commands configure logging for their process: here every test starts without it."""
    root, own = logging.getLogger(), logging.getLogger(NAME)
    handlers, level, own_level = list(root.handlers), root.level, own.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)


@pytest.fixture(autouse=True)
def _spark_has_stopped() -> Iterator[None]:
    """Commands do not wait for the end of their Spark, but a process has one context at a time."""
    yield
    if spark_start._stopping is not None:
        spark_start._stopping.join()


def pytest_report_header() -> str:
    """Which of the two runs this is."""
    return "selection: all tests" if ALL else "selection: every rule; all tests with deploy/test.sh --all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only a run of all tests takes; what takes long comes first, so that no worker is left with it."""
    if not ALL:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("deep")])
        items[:] = [item for item in items if not item.get_closest_marker("deep")]
    items.sort(key=lambda item: _LONG.index(_folder(item.nodeid)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Where the time of a run went: the files of tests that took most of it, set-up and end included."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"seconds of {sum(seconds.values()):.0f}, by file")
    for path, taken in sorted(seconds.items(), key=lambda item: -item[1])[:_FILES]:
        terminalreporter.line(f"{taken:7.1f} {path}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With several workers (`-n 2`): a file is one worker's; the containers have one engine, so they are one's too.

    The tests with real Hudi go by its version: each worker then keeps one JVM running from file to file. So do those
    of the Spark source.
    """
    config.option.loadscopereorder = False
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if _folder(nodeid) in ("interop", "judge") or "real_hudi" in path or "/stock/" in path:
            if re.search(r"[-[]v?6\b", test):
                return "Hudi 0.15"
            return "Hudi 1.2" if path.rpartition("/")[2] < _HALF else "Hudi 1.2, second half"
        if "hdfs" in path:
            return "hdfs"  # one cluster
        if _folder(nodeid) == "spark_source":
            return "spark_source"  # one JVM
        return "containers" if _folder(nodeid) == "containers" else path


_HALF = "test_n"
"""What the tests with Hudi 1.2 are parted at: one worker has them too long."""
_FILES = 40
"""Files of tests whose time a run shows."""
_LONG = ("interop", "judge", "spark_source", "containers", "project", "chaos", "fleet", "simulation", "writing", "")
"""Folders in the order of their work; the rest is quick."""


def _folder(nodeid: str) -> str:
    """One of those."""
    found = nodeid.split("/")[1]
    return found if found in _LONG else ""
