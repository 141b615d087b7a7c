"""`tests/hudi/conformance/answers.md`, made of the recorded answers: `python -m tests.hudi.conformance.page`.

The matrix of readers: what each reader answers for tables in the states that Hudi's readers have got wrong. `make`
lets real Hudi make the tables; `history` is what was written to each, and `model` what a reader must answer by it.
`ask` asks one reader, `record` all of them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hudi.conformance.ask import KINDS
from tests.hudi.conformance.history import SHAPES
from tests.hudi.conformance.make import REFUSED, STATES
from tests.hudi.conformance.stored import Asked, Results, load_results
from tests.hudi.conformance.verdict import Cell
from tests.support.places import ROOT

PAGE = ROOT / "tests/hudi/conformance/answers.md"
READERS = ("phantombase", "Hudi", "hudi-rs")

_HEAD = """# What readers answer while a table service is pending

Several bugs of Hudi were readers that missed rows of a file slice whose compaction was pending. This page shows, for
small tables in each such state, what phantombase, real Hudi and hudi-rs 0.5.0 answer. It is made of recorded answers
(`python -m tests.hudi.conformance.page`).

**The tables.** Real Hudi made all of them: 0.15.0 those of version 6, 1.2.0 those of versions 8 and 9. A table has one
file group for each shape:

| shape | its file group |
| --- | --- |
| base + logs | a base file and log files; more log files are written after the table service is planned |
| log-only | log files only, from before and after that |
| phantom base only | a base file and log files; only the plan names the new slice (the last two states write to it) |
| all deleted | a base file; deletes before and after that leave no row |

Hudi refuses to write to file groups with a pending clustering, so nothing is written after it.

**What is right** comes from a model: the list of the writes, kept by the program that made the table. A snapshot holds
all writes; a read-optimized query what the newest completed base files hold; an incremental query the rows that the
window's writes have written, as of the end of the window; time travel the writes requested up to an instant; a stream
what its windows hold, one after the other; Hudi's stream has one window, from the first write to the newest. Each
table gets {least} to {most} queries; every value of every row is compared, and the commit time.

**A cell** has three marks, in this order: phantombase, Hudi, hudi-rs.

| mark | meaning |
| --- | --- |
| ✓ | all answers are right |
| ✗ 9/12 +2 | an answer is wrong: the first one gave 9 of 12 rows, and 2 rows that do not belong there |
| ↻ +4 | all rows are there; 4 are delivered again, because a log compaction gave them its own commit time |
| error | the reader refuses at least one query, and answers the others right |
| – | the reader has no such query |

"""

_TAIL = """
## Where others are wrong

{wrong}

- hudi-rs 0.5.0 does not read the logs of a pending compaction's slice on version 6.
- Hudi and hudi-rs merge the logs of a window alone: they deliver late rows that the table does not hold.
- On versions 8 and 9, the log of a write during which a compaction was requested lies on the slice of that compaction.
  Hudi 1.2 leaves the write out of time travel to its own instant, and out of the window that ends with it.

## Rows that are delivered again

A log compaction of Hudi 1.2 gives the rows that it merges its own commit time. Hudi and hudi-rs deliver all of them in
each window that holds the log compaction. phantombase reads the log files that went into it, where the rows have the
times of their writes. The exception: a compaction has put the rows into a base file, and a clean has removed the slice
before it, or has begun to. Then a window that begins before the oldest complete state delivers these rows again if it
holds one of the merged writes; none is missing.
"""


def page(results: Results) -> str:
    """The whole page."""
    asked = [
        sum(next(iter(cells.values())).asked for cells in one.answers[READERS[1]].values())
        for states in results.values()
        for one in states.values()
    ]
    head = _HEAD.replace("{least}", str(min(asked))).replace("{most}", str(max(asked)))
    parts = [part for version in sorted(results, reverse=True) for part in _version(version, results[version])]
    return head + "\n".join(parts) + _TAIL.replace("{wrong}", "\n".join(_evidence(results)))


def _version(version: str, states: dict[str, Asked]) -> Iterator[str]:
    yield f"## Table version {version[1:]}\n"
    yield f"| state | shape | {' | '.join(KINDS)} |"
    yield "|".join(["", *[" --- "] * (2 + len(KINDS)), ""])
    notes: dict[str, int] = {}
    for state in STATES:
        if state not in states:
            number = notes.setdefault(REFUSED[int(version[1:]), state], len(notes) + 1)
            yield f"| {state} ({number}) | all | {' | '.join(['cannot be made'] * len(KINDS))} |"
            continue
        one = states[state]
        note = f" ({notes.setdefault(one.forged, len(notes) + 1)})" if one.forged else ""
        for shape, name in SHAPES.items():
            cells = (" ".join(mark(one.answers[reader][kind][shape]) for reader in READERS) for kind in KINDS)
            yield f"| {state}{note} | {name} | {' | '.join(cells)} |"
    yield ""
    yield from (f"({number}) {forged}.\n" for forged, number in notes.items())


def mark(cell: Cell) -> str:
    """A cell in a few characters."""
    miss = cell.miss
    if miss is None:
        return "✓"
    if miss.refused is not None:
        return "–" if cell.refused == cell.asked and "no streaming reads" in miss.refused else "error"
    if miss.only_again:
        return f"↻ +{miss.again}"
    return f"✗ {miss.expected - miss.missing}/{miss.expected}" + (f" +{miss.extra}" if miss.extra else "")


def _evidence(results: Results) -> Iterator[str]:
    """The first wrong answer of each reader to each kind of query in each state."""
    yield "| version | state | reader | query | shapes | right answers | first wrong answer |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for version in sorted(results, reverse=True):
        for state in STATES:
            one = results[version].get(state)
            for reader in READERS if one else ():
                for kind in KINDS:
                    line = _wrong(one.answers[reader][kind]) if one else None
                    if line:
                        yield f"| {version[1:]} | {state} | {reader} | {kind} | {line} |"


def _wrong(cells: dict[str, Cell]) -> str | None:
    wrong = {shape: cell for shape, cell in cells.items() if cell.right < cell.asked and mark(cell) != "–"}
    if not wrong:
        return None
    shape, cell = next(iter(wrong.items()))
    assert cell.miss is not None
    miss = cell.miss
    if miss.refused is not None:
        answer = f"{miss.query}: `{miss.refused[:110]}`"
    else:
        answer = f"{miss.query}: {miss.expected} rows expected, {miss.missing} missing, {miss.extra} too many"
    right = sum(c.right for c in cells.values()), sum(c.asked for c in cells.values())
    return f"{', '.join(SHAPES[s] for s in wrong)} | {right[0]} of {right[1]} | {SHAPES[shape]}, {answer}"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(load_results()))


if __name__ == "__main__":
    main()
