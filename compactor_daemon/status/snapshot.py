"""What `status` reads of a table, and of all tables of a catalog; nothing is changed.

table_snapshot  pending compactions: what storage shows, and ZooKeeper if it is asked. If one instant cannot be
                read, its error takes its place, and the others are still shown
outlook         logs that no plan holds yet, when the next plan is due, and what a clean could remove
catalog_rows    one row for each table of a catalog, the worst first. A table that cannot be read is a row too
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.compaction_plan import CompactionPlan, planned_paths
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.heartbeat import Heartbeat, read_heartbeat
from phantombase.timeline.report.overview import next_plan_row
from phantombase.timeline.storage.contract import Entry, Storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.in_progress import clustering_in_rollback, rollbacks_of_completed
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import Row
from phantombase.timeline.view.view import TableView, is_replaced, latest_slice

from ..attempt.failures import Failure, Parked, RetryOptions, Waits, read_failures, readiness
from ..attempt.hudi_executors import ForeignTrace, foreign_trace
from ..attempt.outcome import REVOKED, Outcome, is_revoked, read_outcomes, why_revoked
from ..attempt.validity import Assessment, Evidence, assess, evidence_of_planned, validity_of
from ..cleaning.choice import CleanOptions
from ..cleaning.plan import load_whole, would_clean
from ..fleet.claims import Claim
from ..fleet.pools import Pools
from ..services.last_run import LastRun, last_runs
from ..services.options import Service

Claimed: TypeAlias = Mapping[str, Claim] | PhantombaseError | None
"""The claims on a table by instant; None if ZooKeeper was not asked, an error if it did not answer."""


_IN_PROGRESS = {
    "restore": "compactor-daemon restore TABLE",
    "rollback": "the next write",
    "clean": "compactor-daemon clean TABLE, or Hudi's next clean",
    "clustering": "compactor-daemon cluster TABLE; a plan of Hudi: its clustering",
    "replacecommit": "a clustering: compactor-daemon cluster TABLE, or Hudi's; an overwrite: the next write",
}
"""Actions that block others while they are in progress, and what finishes each if its process is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantSnapshot:
    """What storage shows about a pending compaction.

    `input_bytes`: size of the planned files as they are now; an error if one is missing. `outcomes`: of its attempts by
    number, None while undecided; an error if they cannot be read. `assessment`: whether its decision is valid; without
    a decision, whether one could be made now; an error if that is unknown. `revoked_why`: why the decision of the last
    attempt was revoked.
    """

    file_groups: int
    input_bytes: int | PhantombaseError
    outcomes: Mapping[int, str | None] | PhantombaseError
    heartbeat: Heartbeat | None
    trace: ForeignTrace
    failures: tuple[Failure, ...]
    assessment: Assessment | PhantombaseError
    revoked_why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """What a snapshot found in a table.

    `pending`: by instant, earliest first; `actions`: their actions, compaction or logcompaction. `writes`: pending
    delta commits with their heartbeats. `recent`: the newest completed compactions, of phantombase or of Hudi, newest
    first. `in_progress`: cleans, restores, rollbacks, clusterings and overwrites that have begun and not completed, and
    a clustering whose rollback is in progress, each with what finishes it. `services`: the last run of each service by
    a daemon.
    """

    path: str
    pending: Mapping[str, InstantSnapshot | PhantombaseError]
    actions: Mapping[str, str]
    claims: Claimed
    writes: tuple[tuple[Instant, Heartbeat | None], ...]
    recent: tuple[tuple[Instant, CommitMetadata | PhantombaseError], ...]
    in_progress: tuple[tuple[Instant, str], ...]
    services: Mapping[Service, LastRun]


def table_snapshot(table: Table, claims: Claimed = None, *, recent: int = 0) -> TableSnapshot:
    """What a table shows; run it under `from_one_snapshot`. `recent`: the most completed compactions to show.

    `claims` were read before. So a claim that was released since then may still be shown, and a claim that was taken
    since is missing; the heartbeat shows its holder. An instant that completes during the snapshot is left out.
    """
    timeline = table.load_timeline()
    listings: dict[str, Mapping[str, Entry]] = {}
    seen = _seen(table)
    found = {i.requested_time: _instant(table, i, listings, seen) for i in timeline.pending_merges}
    writes = tuple((i, read_heartbeat(table.storage, i.requested_time)) for i in timeline.pending_delta_commits)
    after = table.reload().load_timeline()
    still = {i.requested_time for i in after.pending_merges}
    writing = {i.requested_time for i in after.pending_delta_commits}
    return TableSnapshot(
        path=table.storage.base_path,
        pending={time: one for time, one in found.items() if time in still},
        actions={i.requested_time: i.action for i in timeline.pending_merges},
        claims=claims,
        writes=tuple((i, beat) for i, beat in writes if i.requested_time in writing),
        recent=tuple(_recent(table, after, recent)),
        in_progress=tuple(_in_progress(table, after)),
        services=last_runs(table.storage),
    )


def _in_progress(table: Table, timeline: Timeline) -> Iterator[tuple[Instant, str]]:
    commands = {
        r.instant: f"compactor-daemon rollback TABLE {r.target}, or Hudi"
        for r in rollbacks_of_completed(table, timeline)
    }
    for action, finishes in _IN_PROGRESS.items():
        for instant in timeline.pending(action):
            yield instant, commands.get(instant.requested_time, finishes)
    if (clustering := clustering_in_rollback(table, timeline)) is not None:
        yield clustering, f"compactor-daemon rollback TABLE {clustering.requested_time}"


def _seen(table: Table) -> Evidence | PhantombaseError:
    try:
        return evidence_of_planned(table)
    except PhantombaseError as error:
        return error


def _instant(
    table: Table, pending: Instant, listings: dict[str, Mapping[str, Entry]], seen: Evidence | PhantombaseError
) -> InstantSnapshot | PhantombaseError:
    storage, instant = table.storage, pending.requested_time
    try:
        plan = table.compaction_plan(instant)
        partitions = {o.partition_path for o in plan.operations}
        for partition in partitions - listings.keys():
            listings[partition] = {e.name: e for e in storage.list(partition)}
        outcomes = _outcomes(storage, instant)
        revoked = {n for n in outcomes if is_revoked(storage, instant, n)} if isinstance(outcomes, dict) else set()
        return InstantSnapshot(
            file_groups=len(plan.operations),
            input_bytes=_input_bytes(plan, instant, listings),
            outcomes=_kinds(outcomes, revoked),
            heartbeat=read_heartbeat(storage, instant),
            trace=foreign_trace(table, instant, partitions),
            failures=read_failures(storage, instant),
            assessment=_assessment(table, pending, outcomes, revoked, seen),
            revoked_why=_revoked_why(storage, instant, outcomes, revoked),
        )
    except PhantombaseError as error:
        return error


_Outcomes: TypeAlias = dict[int, Outcome | None] | PhantombaseError


def _outcomes(storage: Storage, instant: str) -> _Outcomes:
    try:
        return read_outcomes(storage, instant)
    except MalformedError as error:
        return error


def _kinds(outcomes: _Outcomes, revoked: set[int]) -> Mapping[int, str | None] | PhantombaseError:
    if isinstance(outcomes, PhantombaseError):
        return outcomes
    return {n: REVOKED if n in revoked else outcome.kind if outcome else None for n, outcome in outcomes.items()}


def _assessment(
    table: Table, pending: Instant, outcomes: _Outcomes, revoked: set[int], seen: Evidence | PhantombaseError
) -> Assessment | PhantombaseError:
    """The assessment, read without the lock: like the entire snapshot, it may be out of date at once."""
    if isinstance(outcomes, PhantombaseError):
        return outcomes
    decided = [
        outcome.decision
        for n, outcome in outcomes.items()
        if n not in revoked and outcome is not None and outcome.decision is not None
    ]
    try:
        if decided:
            return validity_of(table, decided[0])
    except PhantombaseError as error:
        return error
    return seen if isinstance(seen, PhantombaseError) else assess(pending, (), "", seen)


def _revoked_why(storage: Storage, instant: str, outcomes: _Outcomes, revoked: set[int]) -> str | None:
    if isinstance(outcomes, PhantombaseError) or not outcomes or max(outcomes) not in revoked:
        return None
    try:
        return why_revoked(storage, instant, max(outcomes))
    except PhantombaseError as error:
        return f"the reason cannot be read: {error}"


def _input_bytes(
    plan: CompactionPlan, instant: str, listings: Mapping[str, Mapping[str, Entry]]
) -> int | PhantombaseError:
    size = 0
    for path in planned_paths(plan):
        partition, _, name = path.rpartition("/")
        entry = listings[partition].get(name)
        if entry is None:
            return MissingFileError("the compaction plan names a file that is not there", path=path, instant=instant)
        size += entry.size
    return size


def _recent(
    table: Table, timeline: Timeline, count: int
) -> Iterator[tuple[Instant, CommitMetadata | PhantombaseError]]:
    """Completed compactions, newest first. A commit may also be a write, from when the table was COPY_ON_WRITE."""
    for instant in reversed(timeline.completed):
        if count <= 0:
            return
        if instant.action != "commit":
            continue
        try:
            metadata = table.commit_metadata(instant)
        except PhantombaseError as error:
            yield instant, error
        else:
            if not metadata.compacted:
                continue
            yield instant, metadata
        count -= 1


def outlook(table: Table, trigger: TriggerOptions, clean: CleanOptions) -> Row:
    """The outlook of a table. `trigger`, `clean`: the options with which plans are requested, and cleans run."""
    seen = cache(lambda: from_one_snapshot(lambda: _with_view(table)))
    return {
        "backlog": _known(lambda: backlog_row(seen()[1])),
        "next_plan": _known(lambda: next_plan_row(table.snapshot().load_timeline(), table.now(), trigger)),
        "cleanable": _known(lambda: _cleanable(*seen(), clean)),
    }


def _with_view(table: Table) -> tuple[Table, TableView]:
    seen = table.snapshot()
    return seen, load_whole(seen)


def _known(snapshot: Callable[[], Row]) -> Row:
    try:
        return {**snapshot(), "problem": None}
    except PhantombaseError as error:
        return {"problem": str(error)}


def backlog_row(view: TableView) -> Row:
    """Log files that no pending plan holds: each read merges them until they are compacted (pure).

    MissingFileError, MalformedError: a file is lost or damaged.
    """
    for flaw in (f for group in view.groups if not is_replaced(group, view.facts) for f in group.flaws):
        raise flaw.error()
    newest = [
        found
        for group in view.groups
        if group.pending_compaction is None
        and not is_replaced(group, view.facts)
        and (found := latest_slice(group)) is not None
        and found.logs
    ]
    return {
        "file_groups": len(newest),
        "log_files": sum(len(one.logs) for one in newest),
        "log_bytes": sum(one.log_bytes for one in newest),
    }


def _cleanable(table: Table, view: TableView, options: CleanOptions) -> Row:
    found = would_clean(table, view, options)
    return {"files": found.files, "bytes": found.bytes, "why": found.why}


_THREADS = 16


def catalog_rows(
    paths: Mapping[str, str], pools: Pools, options: StorageOptions, clock: ClockOptions, retry: RetryOptions
) -> list[Row]:
    """A row for each table, by name and path. Ages in seconds."""

    def row(named: tuple[str, str]) -> Row:
        name, path = named
        slo_s = pools.of(name).slo_s
        found: Row = {"name": name, "table": path, "pool": pools.of(name).match, "slo_s": slo_s}
        try:
            counts = from_one_snapshot(lambda: _pending_counts(Table.open(path, options).with_clock(clock), retry))
            problem = None
        except PhantombaseError as error:
            counts, problem = _UNKNOWN, str(error)
        except Exception as error:  # one of thousands of tables may be in a state unknown to this release
            counts, problem = _UNKNOWN, f"internal error: {type(error).__name__}: {error}"
        oldest = counts["oldest_s"]
        return {**found, **counts, "late": bool(slo_s and oldest and oldest > slo_s), "problem": problem}

    with ThreadPoolExecutor(_THREADS) as threads:
        return sorted(threads.map(row, paths.items()), key=_worst_first)


_UNKNOWN: Row = {"pending": None, "oldest_s": None, "backing_off": None, "parked": None}


def _pending_counts(table: Table, retry: RetryOptions) -> Row:
    instants = [i.requested_time for i in table.load_timeline().pending_merges]
    recorded = set(recorded_instants(table.storage)) if instants else set()
    now = clock_ms()
    ready = [readiness(read_failures(table.storage, i), now, retry) for i in instants if i in recorded]
    return {
        "pending": len(instants),
        "oldest_s": table.age_s(instants[0]) if instants else None,
        "backing_off": sum(isinstance(one, Waits) for one in ready),
        "parked": sum(isinstance(one, Parked) for one in ready),
    }


def _worst_first(row: Row) -> tuple[bool, bool, bool, float, str]:
    return row["problem"] is None, not row["parked"], not row["late"], -(row["oldest_s"] or 0.0), row["name"]
