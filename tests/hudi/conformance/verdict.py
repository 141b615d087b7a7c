"""What one reader got right of one table: its answers beside the model's, by kind of query and by shape (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.hudi.conformance.ask import Query
from tests.hudi.conformance.history import SHAPES, History
from tests.hudi.conformance.model import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A wrong answer, by rows. `again`: of the extra ones, those that a log compaction has given its own instant."""

    query: str
    expected: int
    missing: int = 0
    extra: int = 0
    again: int = 0
    refused: str | None = None

    @property
    def only_again(self) -> bool:
        """All rows are there, and what is too much comes again."""
        return self.refused is None and not self.missing and self.extra == self.again


@dataclass(slots=True, kw_only=True)
class Cell:
    """Of one reader, the queries of one kind on one shape. `right`: also those with rows that come again. `miss`: the
    first wrong answer; where none is wrong, the first with rows that come again."""

    asked: int = 0
    right: int = 0
    refused: int = 0
    miss: Miss | None = None

    @staticmethod
    def of(saved: dict[str, Any]) -> Cell:
        """Of what was saved, where what is so by default is left out."""
        return Cell(**{**saved, "miss": Miss(**saved["miss"]) if "miss" in saved else None})

    def note(self, miss: Miss | None) -> None:
        """One more answer."""
        self.asked += 1
        self.right += miss is None or miss.only_again
        self.refused += miss is not None and miss.refused is not None
        if self.miss is None or (self.miss.only_again and miss is not None and not miss.only_again):
            self.miss = miss

    def comparable(self) -> tuple[object, ...]:
        """Without times and messages, which differ from run to run."""
        miss = self.miss and (self.miss.expected, self.miss.missing, self.miss.extra, self.miss.again)
        return (self.asked, self.right, self.refused, miss)


def judge_rows(history: History, query: Query, rows: pa.Table) -> dict[str, Miss | None]:
    """For each shape, how an answer is wrong; None if it is right."""
    expected = Counter(query.expected(history))
    columns = [rows.column(name).to_pylist() for name in ("p", "id", "ts", "v", "_hoodie_commit_time")]
    given = Counter(zip(*columns, strict=True))
    return {shape: _miss(history, query, _of(expected, shape), _of(given, shape)) for shape in SHAPES}


def refusal(history: History, query: Query, error: Exception) -> dict[str, Miss | None]:
    """A reader that gives an error is not right, unless there is nothing to read."""
    expected = Counter(query.expected(history))
    text = str(error).splitlines()[0][:200]
    return {
        shape: Miss(query=str(query), expected=_of(expected, shape).total(), refused=text or type(error).__name__)
        for shape in SHAPES
    }


def _of(rows: Counter[Row], shape: str) -> Counter[Row]:
    return Counter({row: count for row, count in rows.items() if row[0] == shape})


def _miss(history: History, query: Query, expected: Counter[Row], given: Counter[Row]) -> Miss | None:
    again = 0
    if history.restamped is not None:
        wanted, stamped = _without_stamps(expected), history.restamped
        again = (_without_stamps(r for r in given.elements() if r[-1] == stamped) - wanted).total()
        missing, extra = wanted - _without_stamps(given.elements()), _without_stamps(given.elements()) - wanted
    else:
        missing, extra = expected - given, given - expected
    if not missing and not extra:
        return None
    return Miss(query=str(query), expected=expected.total(), missing=missing.total(), extra=extra.total(), again=again)


def _without_stamps(rows: Iterable[Row]) -> Counter[Row]:
    return Counter((*row[:-1], "") for row in rows)
