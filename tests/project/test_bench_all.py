"""`bench.all`: what it flags, and that the page shows what was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from bench.all import BENCHES, goals_table, recorded, rows_of, with_goals
from tests.support.places import ROOT


def document(goal: str, value: float) -> dict[str, Any]:
    """The last line of a bench with one figure."""
    return {"goal": {"ratio": goal}, "ratio": value, "machine": {"cores": 2, "memory_gib": 23.5, "load": 1.5}}


@pytest.mark.parametrize(
    ("goal", "value", "last", "met", "worse"),
    [
        (">= 5, then 10", 5.0, 6.2, True, False),
        (">= 5, then 10", 4.9, 6.2, False, True),
        ("<= 1.5", 1.5, 1.3, True, False),
        ("<= 1.5", 1.6, 1.3, False, True),
        (">= 3", 4.0, None, True, False),
    ],
)
def test_a_figure_a_fifth_worse_is_flagged(goal: str, value: float, last: float | None, met: bool, worse: bool) -> None:
    """Whichever way is better; a new figure has no last time."""
    (row,) = rows_of({"a": document(goal, value)}, {} if last is None else {"a": document(goal, last)})
    assert (row.met, row.worse) == (met, worse)


def test_the_page_shows_the_record() -> None:
    """`python -m bench.all --quick --record` writes both."""
    page = (ROOT / "bench" / "recorded" / "goals.md").read_text()
    assert with_goals(page, goals_table(recorded(quick=True))) == page


def test_the_table_replaces_the_one_before() -> None:
    """And nothing around it."""
    page = "a\n<!-- made by bench.all: goals -->\nold\n<!-- end -->\nb\n"
    once = with_goals(page, goals_table({"a": document("<= 2", 3)}))
    assert once.startswith("a\n<!--")
    assert once.endswith("<!-- end -->\nb\n")
    assert "| a | `ratio` | 3 | <= 2 | **missed** |" in once
    assert "old" not in once
    assert with_goals(once, goals_table({"a": document("<= 2", 3)})) == once


def test_every_bench_is_in_it() -> None:
    """Each file that makes a report."""
    files = {p.stem for p in (ROOT / "bench").glob("*.py") if "report = Report(bench=" in p.read_text()}
    assert sorted(BENCHES) == sorted(files)
