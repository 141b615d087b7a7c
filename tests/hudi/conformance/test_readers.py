"""We read every table of the matrix as the model says; the page shows what was recorded; real Hudi makes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hudi.conformance.ask import ours
from tests.hudi.conformance.history import HUDI, History
from tests.hudi.conformance.make import REFUSED, STATES, make
from tests.hudi.conformance.page import PAGE, page
from tests.hudi.conformance.record import ask_all, readers
from tests.hudi.conformance.stored import load_results, unpack
from tests.hudi.judge.fixtures import Judges
from tests.support.selection import ALL, deep

USUAL = {
    "compaction inflight",
    "two compactions pending",
    "log compaction completed",
    "clustering pending",
    "overlapping writers",
}
"""States that a usual run asks about; in the others what is pending here has ended, or the other way round."""


@pytest.mark.parametrize("version", [deep(6), deep(8), 9])
def test_we_are_right(version: int, tmp_path: Path) -> None:
    """In every cell, and no row comes again."""
    tables = unpack(version, tmp_path)
    assert set(tables) == {state for state in STATES if (version, state) not in REFUSED}
    for state, folder in ((one, of) for one, of in tables.items() if ALL or one in USUAL):
        asked = ask_all(folder, {"phantombase": ours})
        for kind, shapes in asked.answers["phantombase"].items():
            for shape, cell in shapes.items():
                assert (cell.right, cell.miss) == (cell.asked, None), (state, kind, shape, cell)
        batches = {cell.asked for cell in asked.answers["phantombase"]["streaming"].values()}
        assert batches == {len(History.load(folder / "history.json").writes)}, state
        recorded = load_results()[f"v{version}"][state].answers["phantombase"]
        assert recorded == asked.answers["phantombase"], state


def test_the_page_shows_what_was_recorded() -> None:
    """`python -m tests.hudi.conformance.page`."""
    assert PAGE.read_text() == page(load_results())


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("version", HUDI)
def test_made_anew_the_readers_answer_the_same(version: int, judges: Judges, tmp_path: Path) -> None:
    """Real Hudi makes all tables and is asked again, as hudi-rs is."""
    judge = judges(HUDI[version])
    assert make(judge, version, tmp_path, STATES) == []
    recorded = load_results()[f"v{version}"]
    for state in recorded:
        found = ask_all(tmp_path / state.replace(" ", "_"), readers(judge)).answers
        for reader, kinds in recorded[state].answers.items():
            for kind, shapes in kinds.items():
                for shape, cell in shapes.items():
                    assert found[reader][kind][shape].comparable() == cell.comparable(), (state, reader, kind, shape)
