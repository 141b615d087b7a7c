"""Fixtures and settings for all tests."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from phantombase.compactor_daemon.execution import spark_session
from phantombase.timeline.clocks import Retry
from phantombase.timeline.codec import parquet_write
from phantombase.timeline.codec.bloom import BloomBuilder
from phantombase.timeline.event_log import NAME
from phantombase.timeline.instants import instant_files
from phantombase.timeline.table import history
from tests.support import pieces
from tests.support.places import SEED, memory
from tests.support.selection import ALL, COLLECTED, PIECES, asked_part, is_usual, parts_of, place

pytest_plugins = [
    "tests.support.servers.s3_server",
    "tests.hudi.judge.fixtures",
    "tests.support.servers.gcs_server",
    "tests.support.servers.fault_proxy",
    "tests.support.servers.hdfs_cluster",
    "tests.support.servers.zookeeper_server",
    "tests.support.servers.zookeeper_ensemble",
    "tests.support.servers.spark_cluster",
    "tests.support.warm_spark",
    "tests.support.servers.azure_server",
    "tests.support.servers.real_s3_server",
    "tests.support.servers.hive_metastore",
    "tests.support.servers.glue_catalog",
]

# Until all tests are collected next to nothing is garbage; searching for it takes two fifths of that time.
gc.disable()

# JVMs of Spark that tests start live for seconds: a compiler that makes code fast costs more than it saves.
# So do full collections of garbage while classes are loaded, and proofs that those are sound.
_BRIEF = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=200m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

if (_MEMORY := memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)

# Nothing is judged by how long it takes: on a shared machine that fails tests at random. A failure prints how to run it
# again. The usual run draws the same examples each time.
settings.register_profile(
    "phantombase", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, derandomize=not ALL
)
settings.load_profile("phantombase")


def pytest_configure(config: pytest.Config) -> None:
    """The environment of the processes that tests start, until the run ends."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("SPARK_SUBMIT_OPTS", _BRIEF)
    patch.setenv("SPARK_LAUNCHER_OPTS", _BRIEF)
    patch.setattr(history, "ASKED_EVERY", 1 << 62)  # by chance: a test makes the same calls each time


@pytest.fixture
def local_zone() -> Iterator[Callable[[str], None]]:
    """Sets this process's time zone, until the test ends."""
    with pytest.MonkeyPatch.context() as patch:

        def decision(name: str) -> None:
            patch.setenv("TZ", name)
            time.tzset()

        yield decision
    time.tzset()


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
def _nothing_is_written_in_place(request: pytest.FixtureRequest) -> Iterator[None]:
    """Who reads a torn file reads it again, without the pauses in which Hudi would write the rest."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("interop"):
            patch.setattr(instant_files, "TORN_AGAIN", Retry((0.0,) * 3))
        yield


@pytest.fixture(autouse=True)
def _small_filters(request: pytest.FixtureRequest) -> Iterator[None]:
    """Filters in base files are small, but in tests that go by the size of files (`default_filters`), and with `ALL`.

    One for 60,000 keys is half a MiB in each file, and a sixth of the time of tests that write some."""
    with pytest.MonkeyPatch.context() as patch:
        if place(request.node.nodeid).startswith(_SMALL_FILTERS) and not (
            ALL or "default_filters" in request.fixturenames
        ):
            patch.setattr(parquet_write, "BloomBuilder", partial(BloomBuilder, entries=1000, max_entries=2000))
        yield


@pytest.fixture
def default_filters() -> None:
    """Filters in base files are as large as Hudi's. See `_small_filters`."""


@pytest.fixture(autouse=True)
def _spark_has_stopped() -> Iterator[None]:
    """Commands do not wait for the end of their Spark, but a process has one context at a time."""
    yield
    spark_session.wait_until_stopped()


def pytest_report_header() -> str:
    """Which of the runs this is, and its seed."""
    which = "every rule once; all tests with deploy/test.sh --all"
    if ALL:
        part = asked_part()
        which = "all tests" if part is None else f"part {part} of all tests"
    return f"selection: {which}; seed {SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this run does not take; what takes long comes first, so that no worker is left with it."""
    part, _, piece = ((ALL and asked_part()) or "").partition(".")
    usual = {item.nodeid: is_usual(item.nodeid) and not item.get_closest_marker("deep") for item in items}
    config.stash[COLLECTED] = usual

    def taken(item: pytest.Item) -> bool:
        if not ALL:
            return usual[item.nodeid]
        return not part or (int(part) in parts_of(item.nodeid) and not (usual[item.nodeid] and _same_in_all(item)))

    left_out = [item for item in items if not taken(item)]
    if piece:
        its = {item.nodeid for item in items} - {item.nodeid for item in left_out}
        shares = pieces.shares(its, PIECES[int(part) - 1], pieces.noted())
        left_out = [item for item in items if shares.get(item.nodeid) != int(piece) - 1]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    items.sort(key=lambda item: _LONG.index(_folder(item.nodeid)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What tests have freed goes back to the system when the process has grown: else it stays in the heap, three
    quarters of a GiB of it. Not after each test: a collection of all garbage takes half a second."""
    if report.when == "teardown" and _resident_mib() > _GREW_TO[0] + _MAY_GROW_MIB:
        gc.collect()
        if (trim := getattr(_LIBC, "malloc_trim", None)) is not None:
            trim(0)
        _GREW_TO[0] = _resident_mib()


def _resident_mib() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as told:
            return int(told.read().split()[1]) * _PAGE >> 20
    except OSError:
        return 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What was imported and collected stays until the end: collections of garbage need not go through it again."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def _same_in_all(item: pytest.Item) -> bool:
    """Whether a usual test takes no more samples in a run of all tests: its module names no seed and no `ALL`."""
    return not {"ALL", "SEED"} & vars(getattr(item, "module", None) or object).keys()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Where the time of a run went, by file of tests, set-up and end included; and what tests have measured."""
    seconds, tests = defaultdict[str, float](float), defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
                tests[report.nodeid] += report.duration
                if report.when == "call":
                    for name, value in report.user_properties:
                        terminalreporter.line(f"{name}: {value}")
    terminalreporter.section(f"seconds of {sum(seconds.values()):.0f}, by file")
    for path, taken in sorted(seconds.items(), key=lambda item: -item[1])[:_FILES]:
        terminalreporter.line(f"{taken:7.1f} {path}")
    if ALL and os.environ.get("PHANTOMBASE_SECONDS") == "1":
        pieces.note(tests)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With several workers (`-n 2`): a file is one worker's; the containers have one engine, so they are one's too.

    The tests with real Hudi go by its version: each worker then keeps one JVM running from file to file. So do those
    of Spark."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    _halves: Mapping[str, int] | None = None

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if _is_of_hudi(nodeid):
            if re.search(r"[-[]v?6\b", test):
                return "Hudi 0.15"
            if not ALL:
                return "Hudi 1.2"
            if self._halves is None:  # one worker would have them too long
                self._halves = pieces.shares(list(filter(_is_of_hudi, self.collection)), 2, pieces.noted(), whole=True)
            return f"Hudi 1.2, half {self._halves[nodeid]}"
        if "hdfs" in path:
            return "hdfs"  # one cluster
        of_spark = path.endswith("/test_writer_spark.py") or test.startswith(("test_spark_gives", "test_spark_jobs"))
        if of_spark or place(path).startswith("pyspark_phantombase/"):
            return "Spark"  # one JVM
        return "containers" if place(path).startswith("outside/containers/") else path


_SMALL_FILTERS = ("compactor_daemon/", "timeline/", "writer_hooks/", "world/")
"""Beginnings of names below `tests` that write small filters."""
_LIBC, _PAGE = ctypes.CDLL(None), os.sysconf("SC_PAGE_SIZE")
_MAY_GROW_MIB, _GREW_TO = 128, [0]
_FILES = 40
"""Files of tests whose time a run shows."""
_LONG = ("hudi/", "pyspark_phantombase/", "outside/", "project/", "world/", "compactor_daemon/", "writer_hooks/", "")
"""Folders below `tests` in the order of their work; the rest is quick."""


def _is_of_hudi(nodeid: str) -> bool:
    return place(nodeid).startswith(("hudi/journeys/", "hudi/cases/", "hudi/judge/", "hudi/stock/"))


def _folder(nodeid: str) -> str:
    """One of those."""
    return next(folder for folder in _LONG if place(nodeid).startswith(folder))
