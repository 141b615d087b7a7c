"""Change feeds as tests check them: replayed over the state at the begin they give the state at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.format.commit_metadata import SERVICE_OPERATIONS, encode
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, encode_plan
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.instant import State as ChangeState
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.log_compaction import LOG_STRATEGY, LogPiece, LogRun, log_operation, runs_of
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.read.windows import earliest_whole
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden

META = {"_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"}
State: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""Rows by partition and key, without what a log compaction or the place of a row changes."""


def state(table: Table, moment: str) -> State:
    """The table at a moment, by an incremental read of everything before it."""
    if not moment:
        return {}
    window = ReadOptions(query=Query.INCREMENTAL, begin="earliest", end=moment, newest_columns=True)
    rows = read_table(table, window).to_pylist()
    found = {key(row): plain(row) for row in rows}
    assert len(found) == len(rows)
    return found


def key(row: dict[str, Any]) -> tuple[str, str]:
    """Partition and key."""
    return row["_hoodie_partition_path"], row["_hoodie_record_key"]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row as `State` has it."""
    return {name: repr(value) for name, value in row.items() if name not in META}


def feed(table: Table, begin: str, end: str | None = None, **more: Any) -> list[dict[str, Any]]:
    """The changes of a window; `begin`: "" is before everything."""
    options = ReadOptions(query=Query.CHANGES, begin=begin or "earliest", end=end, **more)
    return plan(table, options).to_table().to_pylist()  # type: ignore[no-any-return]


def replay(changes: list[dict[str, Any]], at: State) -> State:
    """The state after the changes; each must fit what it meets."""
    now = dict(at)
    for change in changes:
        before, after = change["before"], change["after"]
        assert (before is None, after is None) == {"i": (True, False), "u": (False, False), "d": (False, True)}[
            change["op"]
        ]
        if before is not None:
            assert now.pop(key(before)) == plain(before)
        if after is not None:
            assert key(after) not in now
            now[key(after)] = plain(after)
    return now


def moments_of(table: Table) -> list[str]:
    """The moments of a table whose states are whole, earliest first."""
    timeline = table.load_timeline(archived=True)
    earliest = earliest_whole(table.with_timeline(timeline))
    found = sorted({timeline.moment_of(w) for w in timeline.completed} | ({earliest} if earliest else set()))
    return ([] if earliest else [""]) + [m for m in found if m >= earliest]


def services_of(table: Table) -> set[str]:
    """Requested times of the table services that are not archived."""
    done = table.load_timeline().completed
    return {w.requested_time for w in done if table.commit_metadata(w).operation_type in SERVICE_OPERATIONS}


def check_window(table: Table, begin: str, end: str, states: dict[str, State], same: int = 0) -> None:
    """Write by write and net: the same end, no change by a service, and net each key once. `same`: how many times at
    most the window's writes have put a row in the place of an equal one."""
    services = services_of(table)
    for net in (False, True):
        changes = feed(table, begin, end, net=net, newest_columns=True)
        assert replay(changes, states[begin]) == states[end]
        assert not services & {change["instant"] for change in changes}
        updates = [change for change in changes if change["op"] == "u"]
        assert sum(plain(change["before"]) == plain(change["after"]) for change in updates) <= same
        if net:
            keys = Counter(key(change["after"] or change["before"]) for change in changes)
            assert set(keys.values()) <= {1}


def restamped_by_clustering(folder: Path) -> Table:
    """As with hoodie.clustering.preserve.commit.metadata=false: all its rows carry the time of the clustering."""
    path = unzip_golden("v9_clustered", folder)
    table = open_table(path)
    (clustering,) = services_of(table)
    for made in path.rglob(f"*_{clustering}.parquet"):
        rows = pq.read_table(made)
        at = rows.schema.get_field_index("_hoodie_commit_time")
        stamped = rows.set_column(at, rows.schema.field(at), pa.array([clustering] * rows.num_rows))
        pq.write_table(stamped, made)
        sizes = {str(made.relative_to(path)): made.stat().st_size}
        write = table.load_timeline().completed_writes[clustering]
        metadata = table.commit_metadata(write)
        stats = {
            partition: tuple(replace(s, file_size_in_bytes=sizes.get(str(s.path), s.file_size_in_bytes)) for s in of)
            for partition, of in metadata.partition_to_write_stats.items()
        }
        metadata = replace(metadata, partition_to_write_stats=stats)
        (path / table.instant_path(write)).write_bytes(encode(metadata, table.layout.encoding))
    return table


# Log compactions as tests request them.


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
    rules = slice_rules(table.with_timeline(view.timeline), table.with_timeline(view.timeline).newest_schema())
    pending = view.timeline.pending_delta_commits
    slices = [g.slices[-1] for g in view.groups if g.slices and g.pending_compaction is None]
    return [(s, runs_of(table.storage, s, rules, pending)) for s in slices]


def operations(table: Table, choose: Choose = longest) -> list[CompactionOperation]:
    """One for each slice with something to merge."""
    chosen = [(slice_, choose(runs)) for slice_, runs in slice_runs(table)]
    return [log_operation(slice_, pieces) for slice_, pieces in chosen if len(pieces) > 1]


def request(table: Table, choose: Choose = longest) -> str:
    """A log compaction of what is chosen, whatever the planner would pick, also on version 6."""
    table = table.snapshot(cached=False)
    timeline = table.load_timeline()
    time = table.with_timeline(timeline).next_time()
    plan = CompactionPlan(
        operations=operations(table, choose),
        extra_metadata={},
        strategy=LOG_STRATEGY,
        preserve_hoodie_metadata=True,
        missing_schedule_partitions=(),
    )
    requested = Instant(requested_time=time, action="logcompaction", state=ChangeState.REQUESTED)
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
