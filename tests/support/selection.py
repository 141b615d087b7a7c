"""Which tests and how many samples a run takes: all of them with `PHANTOMBASE_ALL=1`, as `deploy/test.sh --all` sets.

The usual run has every rule once, and is the same run each time. What it leaves out asks the same rule again: on
another table version, with another setting, beside a real engine that the usual run has recorded answers of. Those
tests have the mark `deep`, or lie in a place of `ONLY_ALL`; those of `STILL_USUAL` lie in such a place and are usual.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

_MORE = {"PHANTOMBASE_HISTORIES", "PHANTOMBASE_METADATA_HISTORIES", "PHANTOMBASE_INDEX_HISTORIES"}
"""Who asks for more random histories wants them of all table versions."""
ALL = os.environ.get("PHANTOMBASE_ALL") == "1" or bool(_MORE & os.environ.keys())

ONLY_ALL = {
    "hudi/cases/": "hudi/journeys; the folders of the packages have our half; golden tables",
    "hudi/judge/": "hudi/journeys",
    "hudi/cases/test_archiving.py": "hudi/journeys; archiving/test_archive.py",
    "hudi/cases/test_cleaning.py": "hudi/journeys; cleaning/test_golden.py: what Hudi's cleaner kept",
    "hudi/cases/test_cluster.py": "STILL_USUAL; clustering/test_concurrent.py",
    "hudi/stock/test_stock.py::test_a_stock_table": "the recorded answers that hudi/stock/results.json keeps",
    "hudi/conformance/test_continuous.py": "read/test_listing_in_pages.py; write/test_interleaved_writers.py",
    "outside/containers/test_fleet.py": "daemon/test_fleet.py; chaos/test_dead_decision.py",
    "outside/containers/test_image.py": "containers/test_files.py: what the image is made of",
    "outside/containers/test_kubeconform.py": "containers/test_files.py: the fields of each manifest",
    "outside/containers/test_promtool.py": "containers/test_files.py: the names in alerts and dashboard",
    "world/chaos/": "the simulation; STILL_USUAL",
    "outside/test_spark_cluster.py": "attempt/test_slice_task.py: a task run twice; execution/test_split.py",
    "compactor_daemon/execution/test_spark_start.py::test_one_context_after_the_other": "hudi/journeys",
    "compactor_daemon/execution/test_spark_start.py::test_refusal_while_spark": "the stop while the JVM starts",
    "outside/test_newcomer.py": "project/test_docs.py: the same calls",
    "project/test_package.py::test_the_wheel": "project/test_package.py: the packages that setuptools finds",
    "timeline/storage/s3/test_modes.py::test_a_job_on_spark": "engine/test_writer_spark.py",
    "timeline/storage/s3/test_modes.py::test_a_fleet": "daemon/test_fleet.py",
    "outside/test_on_hdfs.py": "timeline/storage: the contract; attempt/test_place_moves.py",
    "outside/test_hdfs_store.py": "attempt/test_place_moves.py: a store that moves files",
    "outside/test_in_chromium.py": "dashboard/test_pages.py, dashboard/test_pages.py",
    "writer_hooks/commit/test_streaming.py": "write/test_writer_faults.py; s3/test_modes.py: batches count once",
    "compactor_daemon/attempt/test_processes": "attempt/test_faults.py: a death a call; daemon/test_fleet.py: SIGKILL",
}
"""Beginnings of names below `tests` that only a run of all tests takes, and what asks their rule in the usual one."""

STILL_USUAL = {
    "hudi/cases/test_cluster.py::test_while_the_files_are_made[9": "Hudi's cleaner passes a clustering",
    "hudi/cases/test_cluster.py::test_a_plan_of_a_dead_process[9": "Hudi's cleaner passes a pending clustering",
    "world/chaos/test_dead_decision.py": "SIGSTOP of a real process with real locks",
}
"""Beginnings of the names of tests that are usual although `ONLY_ALL` names their place, and their rule."""

PARTS = (
    "hudi/cases/test_[a-i] hudi/cases/test_pyspark35",
    "hudi/cases/test_(?!pyspark35)[j-q] hudi/judge/ hudi/stock/",
    "hudi/cases/test_[r-z] hudi/conformance/ hudi/effects/ hudi/journeys/ hudi/pasted/ hudi/sync/",
    "outside/ project/ pyspark_phantombase/ world/chaos/"
    " timeline/dashboard/ timeline/service/ timeline/storage/s3/"
    " compactor_daemon/daemon/ compactor_daemon/fleet/ compactor_daemon/status/",
    "world/fuzz/ world/mutations/ world/simulation/"
    " timeline/audit/ timeline/filter/ timeline/read/ timeline/storage/test_ timeline/view/"
    " compactor_daemon/attempt/ compactor_daemon/execution/",
    "writer_hooks/ timeline/test_"
    " timeline/cli/ timeline/codec/ timeline/format/ timeline/instants/ timeline/locks/ timeline/merge/"
    " timeline/metadata_table/ timeline/planning/ timeline/table/ timeline/terminal/"
    " compactor_daemon/archiving/ compactor_daemon/catalogs/ compactor_daemon/cleaning/ compactor_daemon/cli/"
    " compactor_daemon/clustering/ compactor_daemon/metadata_services/ compactor_daemon/services/"
    " compactor_daemon/undo/",
)
"""The parts of a run of all tests: each has patterns of the beginnings of its tests' names below `tests`."""


PIECES = (8, 10, 10, 6, 12, 18)
"""How many pieces each part has, see `pieces.py`."""
COLLECTED = pytest.StashKey[dict[str, bool]]()
"""Where the configuration of a run keeps the tests that were found, and whether the usual run takes them."""


def place(nodeid: str) -> str:
    """The name of a test below `tests`."""
    return nodeid.removeprefix("tests/")


def is_usual(nodeid: str) -> bool:
    """Whether the usual run has this test, as far as its place says."""
    name = place(nodeid)
    return not name.startswith(tuple(ONLY_ALL)) or name.startswith(tuple(STILL_USUAL))


def parts_of(nodeid: str) -> list[int]:
    """The parts of a run of all tests, from 1, that have this test: one, or a new folder is in none of `PARTS`."""
    name = place(nodeid)
    return [number for number, patterns in enumerate(PARTS, 1) if any(re.match(one, name) for one in patterns.split())]


def asked_part() -> str | None:
    """`PHANTOMBASE_PART`: the one part of a run of all tests that is run, as `5`, or a piece of it, as `5.1`; None for
    all."""
    asked = os.environ.get("PHANTOMBASE_PART")
    if asked is None:
        return None
    known = {str(part) for part in range(1, len(PARTS) + 1)}
    known |= {f"{part}.{piece}" for part, count in enumerate(PIECES, 1) for piece in range(1, count + 1)}
    if asked not in known:
        counts = ", ".join(f"{part}.1 to {part}.{count}" for part, count in enumerate(PIECES, 1))
        what = f"a number from 1 to {len(PARTS)}, or a piece of that part: {counts}"
        raise pytest.UsageError(f"PHANTOMBASE_PART is {what}; not {asked!r}")
    return asked


def deep(*values: object, id: str | None = None) -> Any:
    """Values for `pytest.mark.parametrize` that only a run of all tests takes."""
    return pytest.param(*values, marks=pytest.mark.deep, id=id)


def versions(*usual: int, deep: Sequence[int] = ()) -> pytest.MarkDecorator:
    """Parametrizes the fixture `version` with the table versions of a usual run, and those of a run of all tests."""
    found = [*usual, *(pytest.param(version, marks=pytest.mark.deep) for version in deep)]
    return pytest.mark.parametrize("version", found, indirect=True, ids="v{}".format)


def for_each(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Makes one test that goes through all cases, each a value or a tuple of them; a failure names its case. For cases
    that take milliseconds each and ask one rule."""

    all_cases = list(cases)
    assert all_cases

    def over(test: Callable[..., None]) -> Callable[[], None]:
        def of_all() -> None:
            for case in all_cases:
                values = case if isinstance(case, tuple) else (case,)
                try:
                    test(*values)
                except BaseException as error:
                    error.add_note(f"the case: {', '.join(str(value)[:80] for value in values)}")
                    raise

        of_all.__name__, of_all.__doc__, of_all.__module__ = test.__name__, test.__doc__, test.__module__
        return of_all

    return over
