"""Random histories of writes and table services by Hudi and us: after every step both read the same.

What a write of ours did to the rows is also checked against a model: which rows of the batch have won.

`PHANTOMBASE_HISTORIES=50 pytest tests/hudi/cases/test_random_history.py` tries 50 seeds a table version, and
`-k "v6 and seed7"` one of them again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.read import table_read
from tests.hudi.cases import mixed_history
from tests.hudi.cases.operated_history import OperatedHistory
from tests.hudi.cases.random_history import SEEDS, History, tell
from tests.hudi.judge.client import Judge
from tests.support.selection import ALL, versions

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_both_read_the_same_after_every_step(judge: Judge, version: int, seed: int, tmp_path: Path) -> None:
    """And at the end our compaction equals Hudi's, in the snapshot and in the base files."""
    tell(History(judge, version, seed, tmp_path / "table"), seed)


@pytest.mark.deep
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_so_it_is_with_log_compactions(judge: Judge, version: int, seed: int, tmp_path: Path) -> None:
    """Minor ones, major ones, and what Hudi does between them. Not on version 6: Hudi 0.15 reads them wrong."""
    tell(History(judge, version, seed, tmp_path / "table", merges=True), seed)


PAIRS = {9: 300, 6: 500}
"""By version, the first seed."""


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
@versions(deep=tuple(PAIRS))
def test_so_it_is_with_pairs_of_features(
    judge: Judge, version: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And Hudi does the same to a copy. `python -m tests.hudi.cases.mixed_history 9 300 50` tries more."""
    monkeypatch.setattr(table_read, "LEAST_FILES", 1)
    mixed_history.tell(judge, version, PAIRS[version] + seed, tmp_path, 8)


# Random histories in which operators take part: after every step all judges read the same, and nothing pends for ever.
#
# `PHANTOMBASE_HISTORIES=50 pytest tests/hudi/cases/test_random_history.py` tries 50 seeds a table version, and
# `-k "v6 and stock and seed7"` one of them again; `PHANTOMBASE_STEPS=20` takes more steps.


STEPS = int(os.environ.get("PHANTOMBASE_STEPS", "8" if ALL else "5"))
MANY = len(SEEDS) > 1
STOCK_OR_QUIET = [True, False] if MANY else [True]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
@pytest.mark.parametrize("stock", STOCK_OR_QUIET, ids=lambda stock: "stock" if stock else "quiet")
@versions(9, deep=[8, 6])
def test_all_read_the_same_after_every_step(judge: Judge, version: int, stock: bool, seed: int, tmp_path: Path) -> None:
    """`stock`: with the services that Hudi's writers run by default; without them, and on version 8, where many seeds
    are tried."""
    tell(OperatedHistory(judge, version, seed, tmp_path / "table", stock=stock), seed, STEPS)


@pytest.fixture
def hours_ahead(judge: Judge, local_zone: Callable[[str], None]) -> ClockOptions:
    """This process is five hours ahead of the judge, which is in UTC: what is chosen here would hide Hudi's writes."""
    assert judge.version  # started before: it has the zone of the process that starts it
    local_zone("Asia/Karachi")
    return ClockOptions(timezone="UTC")


@pytest.mark.skipif(time.timezone != 0, reason="the judge has this machine's zone, which is to be UTC here")
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
@versions(deep=(6, 8, 9))
def test_so_it_is_with_hudi_in_another_zone(
    judge: Judge, version: int, hours_ahead: ClockOptions, seed: int, tmp_path: Path
) -> None:
    """Given the zone. Without it we neither plan nor write."""
    tell(OperatedHistory(judge, version, seed, tmp_path / "table", stock=False, clock=hours_ahead), seed, STEPS)
