"""Log compactions as tests request them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import TypeAlias

from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, encode_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.planning.log_compaction import LOG_STRATEGY, log_operation
from phantombase.timeline.planning.log_runs import LogPiece, LogRun, runs_of
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.triggers import TriggerStrategy
from phantombase.timeline.planning.universal import Picking
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.read.table_rules import slice_rules
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice
from tests.support.change_feeds import moments_of, services_of

MERGE_LOGS = ScheduleOptions(
    strategy=TriggerStrategy.ALWAYS,
    picking=Picking.UNIVERSAL,
    compaction_trigger=2,
    size_ratio=200,
    max_size_amplification=100_000,
)
"""Mostly log compactions."""
Choose: TypeAlias = Callable[[Sequence[LogRun]], Sequence[LogPiece]]
"""Picks neighbours among the pieces of a slice; less than two: the slice is left alone."""


def longest(runs: Sequence[LogRun]) -> Sequence[LogPiece]:
    """All of the longest run."""
    return max((run.pieces for run in runs), key=len, default=())


def at(start: int, end: int | None = None) -> Choose:
    """Some pieces of the longest run."""
    return lambda runs: longest(runs)[start:end]


def slice_runs(table: Table) -> list[tuple[FileSlice, Sequence[LogRun]]]:
    """The runs of every newest slice that no compaction is planned for."""
    view = table.load_view()
    rules = slice_rules(table, view.timeline, table.newest_schema(view.timeline))
    pending = view.timeline.pending_delta_commits
    slices = [g.slices[-1] for g in view.groups if g.slices and g.pending_compaction is None]
    return [(s, runs_of(table.storage, s, rules, pending)) for s in slices]


def operations(table: Table, choose: Choose = longest) -> list[CompactionOperation]:
    """One for each slice with something to merge."""
    chosen = [(slice_, choose(runs)) for slice_, runs in slice_runs(table)]
    return [log_operation(slice_, pieces) for slice_, pieces in chosen if len(pieces) > 1]


def request(table: Table, choose: Choose = longest) -> str:
    """A log compaction of what is chosen, whatever the planner would pick, also on version 6."""
    table = table.reload()
    timeline = table.load_timeline()
    time = table.next_time(timeline)
    plan = CompactionPlan(
        operations=operations(table, choose),
        extra_metadata={},
        strategy=LOG_STRATEGY,
        preserve_hoodie_metadata=True,
        missing_schedule_partitions=(),
    )
    requested = Instant(requested_time=time, action="logcompaction", state=State.REQUESTED)
    assert table.storage.put_if_absent(table.instant_path(requested), encode_plan(plan))
    return time


COMMIT_TIME, KEY = "_hoodie_commit_time", "_hoodie_record_key"


def window(table: Table, begin: str, end: str, **more: object) -> dict[str, str]:
    """The commit times of a window's rows by their keys."""
    options = ReadOptions(query=Query.INCREMENTAL, begin=begin or "earliest", end=end, **more)  # type: ignore[arg-type]
    rows = read_table(table, options)
    found = dict(zip(rows.column(KEY).to_pylist(), rows.column(COMMIT_TIME).to_pylist(), strict=True))
    assert len(found) == rows.num_rows
    return found


def check(table: Table) -> None:
    """A window between neighbours holds one write or service; from these follows what every longer one holds."""
    moments = moments_of(table)
    steps = {end: window(table, begin, end) for begin, end in pairwise(moments)}
    services = services_of(table)
    assert not services & {time for step in steps.values() for time in step.values()}
    for begin, end in combinations([m for m in moments if m], 2):
        last: dict[str, str] = {}
        for moment in moments:
            if begin < moment <= end:
                last |= steps[moment]
        alive = set(window(table, "earliest", end))
        assert window(table, begin, end) == {key: time for key, time in last.items() if key in alive}
