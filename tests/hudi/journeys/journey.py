"""A journey: one table and one JVM, which real Hudi and we go through step by step; each step asks a rule or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import IS_DELETED
from tests.hudi.cases.indexed_table import SKIPPING, IndexedTable
from tests.hudi.cases.rows import Rows, keys, same
from tests.hudi.cases.shared_table import SharedTable, check_rows

__all__ = ["LOCK", "Journey", "Stage", "Step", "check_keys", "look", "travel"]

LOCK = ProcessLock("journey")


@dataclass(frozen=True, kw_only=True)
class Journey:
    """The table of a journey, and the source of its rows."""

    table: IndexedTable
    source: Rows

    @property
    def path(self) -> Path:
        """Where the table lies."""
        return self.table.path

    def rows(self, numbers: Iterable[int], ts: int | Sequence[int], *, deleted: bool = False) -> pa.Table:
        """Rows of these keys."""
        made = self.source(numbers, ts)
        return made.append_column(IS_DELETED, pa.array([deleted] * made.num_rows))

    def we_upsert(self, rows: pa.Table, **options: object) -> str:
        """We upsert; the instant."""
        return self.table.writer(rows, **options).upsert(str(self.path)).instant

    def look(self, present: pa.Table | None = None, absent: Iterable[int] = ()) -> pa.Table:
        """Our snapshot, which is Hudi's, read through its metadata table where there is one. See `check_rows`."""
        found = look(self.table)
        check_rows(found, self.rows([], 0) if present is None else present, absent)
        return found

    def look_everywhere(self, present: pa.Table | None = None) -> pa.Table:
        """And as storage lists it, by the statistics of files and by the listing of the metadata table."""
        found = self.table.agree()
        check_rows(found, self.rows([], 0) if present is None else present)
        return found


def look(table: SharedTable) -> pa.Table:
    """Our snapshot, which is Hudi's through its metadata table."""
    ours = table.we_read()
    same(ours, table.judge.read(table.place, options=SKIPPING))
    return ours


def check_keys(rows: pa.Table, numbers: Iterable[int]) -> None:
    """Each of these keys is there once, and no other."""
    assert sorted(rows["id"].to_pylist()) == sorted(keys(numbers))


Step: TypeAlias = Callable[[Journey], None]
Stage: TypeAlias = tuple[Mapping[str, object], Sequence[Step]]
"""Options that both writers have from then on, and steps."""


def steps_of(table: IndexedTable, stages: Sequence[Stage]) -> list[tuple[Journey, Step]]:
    """The steps of all stages in order, each with the table as it is to be written then."""
    source = Rows(seed=table.version)
    return [
        (Journey(table=replace(table, options=options), source=source), step)
        for options, steps in stages
        for step in steps
    ]


def travel(table: IndexedTable, stages: Sequence[Stage]) -> None:
    """Takes the steps in order; a failure says in which step it was."""
    steps = steps_of(table, stages)
    for number, (journey, step) in enumerate(steps, start=1):
        table.judge.adopt(table.path, journey.table.options)
        try:
            step(journey)
        except BaseException as error:
            error.add_note(f"step {number} of {len(steps)}, {step.__name__}: {step.__doc__}")
            raise
