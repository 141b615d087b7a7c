"""`tests/hudi/stock/tables.md`, made of what was recorded: `python -m tests.hudi.stock.page`.

`cases` says how each table is made, `verdict` walks it through, `record` keeps what was seen."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hudi.stock.cases import CASES
from tests.hudi.stock.verdict import Outcome, Results, Verdict, load_results
from tests.support.places import ROOT

PAGE = ROOT / "tests/hudi/stock/tables.md"

_HEAD = """# Stock tables

Tables as Hudi's users have them: each is made by real Hudi on Spark 3.5 with Hudi's own defaults on (metadata table,
cleaning, archiving), 0.15.0 for version 6, 1.2.0 for versions 8 and 9. Then both read it, phantombase requests a
compaction and executes it, both read it again, Hudi writes on top of it with all its services, and both read it once
more. Every column of every row is compared each time; `timeline validate` compares the metadata table with storage.

The tables are small, of one process and of local files. `python -m tests.hudi.stock.record` makes them, and
`python -m tests.hudi.stock.page` makes this page of what was seen; `tests/hudi/stock/cases.py` says how each
table is written.

| mark | meaning |
| --- | --- |
| ✓ 6 | served; phantombase compacted 6 file groups |
| ✓ | served; Hudi had left nothing to compact |
| read | read only: there is nothing to compact |
| refused | refused by name, and nothing was written |
| ✗ | something differs, see below |
| – | Hudi of that version has no such table, or failed to make or to read it |
| · | not recorded |

"""


def page(results: Results) -> str:
    """The whole page."""
    return _HEAD + "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield "| table | version 9 | version 8 | version 6 |"
    yield "| --- | --- | --- | --- |"
    columns = [results.get(f"v{version}", {}) for version in (9, 8, 6)]
    for name, stock in CASES.items():
        cells = (
            _cell(found.get(name)) if version in stock.versions else "–"
            for version, found in zip((9, 8, 6), columns, strict=True)
        )
        yield f"| {name.replace('_', ' ')} | {' | '.join(cells)} |"
    yield ""
    counts = [_counts(found) for found in columns]
    yield "| | version 9 | version 8 | version 6 |"
    yield "| --- | --- | --- | --- |"
    for outcome in Outcome:
        yield f"| {outcome.value} | {' | '.join(str(count.get(outcome, 0)) for count in counts)} |"
    for title, outcome in (
        ("What is refused", Outcome.REFUSED),
        ("What differs", Outcome.DIFFERS),
        ("What Hudi did not make, or cannot read", Outcome.NOT_MADE),
    ):
        yield f"\n## {title}\n"
        found = [(v, n, r.why) for v, cases in results.items() for n, r in cases.items() if r.outcome is outcome]
        yield from (f"- {version}, {name.replace('_', ' ')}: {_short(why)}" for version, name, why in found)
        if not found:
            yield "Nothing."


def _cell(found: Verdict | None) -> str:
    if found is None:
        return "·"
    if found.outcome is Outcome.SERVED:
        return f"✓ {found.groups}" if found.groups else "✓"
    return {Outcome.READ: "read", Outcome.REFUSED: "refused", Outcome.DIFFERS: "✗", Outcome.NOT_MADE: "–"}[
        found.outcome
    ]


def _counts(found: dict[str, Verdict]) -> dict[Outcome, int]:
    return {outcome: sum(one.outcome is outcome for one in found.values()) for outcome in Outcome}


def _short(why: str) -> str:
    return " ".join(why.replace("`", "").replace("|", "/").replace("<", "(").replace(">", ")").split())[:160]


if __name__ == "__main__":
    PAGE.write_text(page(load_results()))
