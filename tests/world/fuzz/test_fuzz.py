"""Mutated tables give errors of the project's own tree or a successful read, in bounded memory and time.

`PHANTOMBASE_FUZZ=100000 pytest tests/world/fuzz` is a soak; `PHANTOMBASE_FUZZ_SEED=7` takes other cases. A failure
prints seed and number: `python -m tests.world.fuzz.runner --seed 7 --only 4711` runs that case alone."""

from __future__ import annotations

import os

import pytest

from tests.support.selection import ALL
from tests.world.fuzz.runner import run

CASES = int(os.environ.get("PHANTOMBASE_FUZZ", "900" if ALL else "40"))
SEED = int(os.environ.get("PHANTOMBASE_FUZZ_SEED", "1"))


@pytest.mark.timeout(120 + CASES)
def test_mutated_tables() -> None:
    """No other exception, no crash, no hang, no memory without bounds, no trace of a failed compaction."""
    report = run(SEED, 0, CASES)
    assert report.cases == CASES
    assert not report.failures, "\n\n".join(f"{f.pop('detail')}\n{f}" for f in report.failures[:5])
    # Neither did everything fail at the first snapshot, nor nothing at all.
    assert min(report.outcomes["snapshot"], report.outcomes["snapshot:MalformedError"]) > CASES / 10
