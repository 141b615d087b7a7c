"""Readers of every kind beside writers and a compactor: each result is the model at some instant of the read."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.table.table import Table
from tests.hudi.conformance import model
from tests.hudi.conformance.ask import BEFORE_ALL, WINDOWS
from tests.hudi.conformance.crew import Crew, Done, Seen
from tests.hudi.conformance.history import History, Write
from tests.hudi.conformance.model import Row
from tests.support.places import SEED
from tests.support.selection import ALL, deep
from tests.support.written_tables import seed_note

SECONDS = float(os.environ.get("PHANTOMBASE_CONTINUOUS_SECONDS", "60" if ALL else "6"))


@pytest.mark.parametrize("version", [deep(6), deep(8), 9])
def test_each_result_is_the_model_at_some_instant(version: int, tmp_path: Path) -> None:
    """Snapshots through all engines, base files, windows, change feeds, time travel, the windows of a stream."""
    crew = Crew(path=tmp_path / "table", version=version, seed=SEED, seconds=SECONDS)
    with seed_note(SEED, version):
        crew.run()
        truth = Truth(crew)
        for seen in crew.seen:
            truth.check(seen)
        kinds = Counter(seen.query.kind for seen in crew.seen)
        assert kinds.keys() >= {"snapshot", "read-optimized", "incremental", "changes", "streaming"}, kinds
        assert crew.compactions
        batches = [seen.query for seen in crew.seen if seen.query.kind == "streaming"]
        assert [q.begin for q in batches] == [BEFORE_ALL, *(str(q.end) for q in batches[:-1])]
        print(f"{len(crew.writes)} writes, {len(crew.compactions)} compactions, {dict(kinds)}")


class Truth:
    """What a crew wrote, in the order in which it became visible."""

    def __init__(self, crew: Crew) -> None:
        timeline = Table.open(str(crew.path)).load_timeline()
        moments = {t: timeline.moment_of(w) for t, w in timeline.completed_writes.items()}
        self.done: Sequence[Done] = sorted(crew.writes, key=lambda done: moments[done.instant])
        writes = [
            Write(
                instant=done.instant,
                completed=moments[done.instant] if crew.version > 6 else None,
                deletes=done.deletes,
                rows=tuple((r["p"], r["id"], r["ts"], r["v"]) for r in done.rows.to_pylist()),
            )
            for done in self.done
        ]
        self.history = History(version=crew.version, made_by="phantombase", writes=writes)
        self.compactions = crew.compactions

    def check(self, seen: Seen) -> None:
        """AssertionError: rows that the table did not have at any instant of the read."""
        query = seen.query
        if query.kind in ("snapshot", "read-optimized"):
            self._at_some_instant(seen)
        elif query.kind == "changes":
            assert changes(seen) == self._changed(query.begin, str(query.end)), query
        else:
            wanted = (
                model.window(self.history, query.begin, query.end)
                if query.kind in WINDOWS
                else model.as_of(self.history, str(query.point))
            )
            assert rows(seen) == Counter(wanted), query

    def _at_some_instant(self, seen: Seen) -> None:
        """A snapshot as a whole, base files by partition: there is one file group in each."""
        latest = self._begun_before(seen.ended)
        found = rows(seen)
        if seen.query.kind == "snapshot":
            states = range(self._ended_before(seen.begun), latest + 1)
            assert any(found == Counter(self._state(count)) for count in states), (seen.query, list(states))
            return
        compacted = [asked for asked, done in self.compactions if done < seen.begun]
        earliest = self._ended_before(max(compacted, default=0.0))
        for part in {row[0] for row in self._state(len(self.done))}:
            given = Counter({row: count for row, count in found.items() if row[0] == part})
            states = range(earliest, latest + 1)
            assert any(given == Counter(r for r in self._state(c) if r[0] == part) for c in states), (
                part,
                list(states),
            )

    def _state(self, count: int) -> set[Row]:
        return model.snapshot(History(version=9, made_by="", writes=self.history.writes[:count]))

    def _ended_before(self, moment: float) -> int:
        """How many writes were surely visible: all up to the last that had returned."""
        return max((n for n, done in enumerate(self.done, 1) if done.ended < moment), default=0)

    def _begun_before(self, moment: float) -> int:
        """How many writes may have been visible: those before the first that had not begun."""
        return next((n for n, done in enumerate(self.done) if done.begun > moment), len(self.done))

    def _changed(self, begin: str, end: str) -> Counter[Any]:
        moments = [write.moment for write in self.history.writes]
        before, after = ({r[:2]: r for r in self._state(bisect_right(moments, at))} for at in (begin, end))
        found = ((before.get(key), after.get(key)) for key in before.keys() | after.keys())
        return Counter((old and old[:4], new and new[:4]) for old, new in found if old != new)


def rows(seen: Seen) -> Counter[Row]:
    """As the model has them."""
    columns = [seen.rows.column(name).to_pylist() for name in ("p", "id", "ts", "v", "_hoodie_commit_time")]
    return Counter(zip(*columns, strict=True))


def changes(seen: Seen) -> Counter[Any]:
    """Before and after of each change."""
    return Counter((_row(change["before"]), _row(change["after"])) for change in seen.rows.to_pylist())


def _row(image: dict[str, Any] | None) -> tuple[str, str, int, int] | None:
    return None if image is None else (image["p"], image["id"], image["ts"], image["v"])
