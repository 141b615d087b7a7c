"""Asks all readers about the stored tables: `python -m tests.hudi.conformance.record 9 6 8 [STATE ...]`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.hudi.conformance.ask import KINDS, Reader, hudi, hudi_rs, ours, queries
from tests.hudi.conformance.history import HUDI, SHAPES, History
from tests.hudi.conformance.make import named
from tests.hudi.conformance.stored import Answers, Asked, load_results, save_results, unpack
from tests.hudi.conformance.verdict import Cell, judge_rows, refusal
from tests.hudi.judge.client import BRIEF, Judge


def readers(judge: Judge) -> dict[str, Reader]:
    """All readers of the matrix."""
    return {"phantombase": ours, "Hudi": hudi(judge), "hudi-rs": hudi_rs}


def ask_all(folder: Path, asked: Mapping[str, Reader]) -> Asked:
    """What readers answer for the table of a folder."""
    history = History.load(folder / "history.json")
    found: Answers = {name: {kind: {shape: Cell() for shape in SHAPES} for kind in KINDS} for name in asked}
    for name, read in asked.items():
        for query in queries(history):
            try:
                judged = [judge_rows(history, part, rows) for part, rows in read(folder / "table", query)]
            except Exception as error:
                judged = [refusal(history, query, error)]
            for misses in judged:
                for shape, miss in misses.items():
                    found[name][query.kind][shape].note(miss)
    return Asked(made_by=history.made_by, forged=history.forged, answers=found)


def main() -> None:
    """Records the versions and states that are named, by default all."""
    versions, states = named(sys.argv[1:])
    for version in versions:
        with tempfile.TemporaryDirectory() as folder, Judge(HUDI[version], java_options=BRIEF) as judge:
            tables = unpack(version, Path(folder))
            found = {state: ask_all(tables[state], readers(judge)) for state in states if state in tables}
        results = load_results()
        known = {state: one for state, one in results.get(f"v{version}", {}).items() if state in tables}
        save_results({**results, f"v{version}": {**known, **found}})


if __name__ == "__main__":
    main()
