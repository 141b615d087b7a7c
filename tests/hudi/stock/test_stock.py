"""Stock tables are served as the page says (real Hudi; all that are recorded with all tests)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.judge.fixtures import Judges
from tests.hudi.stock.cases import CASES
from tests.hudi.stock.page import PAGE, page
from tests.hudi.stock.verdict import judged, load_results
from tests.support.selection import deep

SAMPLE = ((9, "dms"),)
RECORDED = load_results()
ALL = [
    (version, name)
    for version in sorted(HUDI, reverse=True)
    for name in CASES
    if name in RECORDED.get(f"v{version}", {})
]


@pytest.mark.interop
@pytest.mark.parametrize(("version", "name"), [one if one in SAMPLE else deep(*one) for one in ALL])
def test_a_stock_table(version: int, name: str, judges: Judges, tmp_path: Path) -> None:
    """What becomes of it is what was recorded."""
    found = judged(CASES[name], judges(HUDI[version]), tmp_path / name, version)
    assert found.outcome is RECORDED[f"v{version}"][name].outcome, found.why


def test_the_page_shows_what_was_recorded() -> None:
    """`python -m tests.hudi.stock.page` makes it."""
    assert PAGE.read_text() == page(load_results())
