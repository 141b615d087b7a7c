"""What storage shows about a pending compaction or clustering, about what holds old states, and about the last runs of
services; nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeAlias, TypeVar

from phantombase.timeline.dashboard.overview import Clock
from phantombase.timeline.dashboard.verdict import CheckOptions, Finding, Severity, of_error
from phantombase.timeline.errors import (
    ConflictError,
    MalformedError,
    MissingFileError,
    PhantombaseError,
    UnknownStateError,
)
from phantombase.timeline.format.compaction_plan import planned_paths
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.instant_files import retained_by
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import Heartbeat, read_heartbeat
from phantombase.timeline.locks.pause import held_by
from phantombase.timeline.read.pins import all_pins
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Entry, Storage, list_of_table
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.terminal.text_table import human_duration

from ..attempt.failures import Failure, read_failures
from ..attempt.hudi_executors import ForeignTrace, foreign_trace
from ..attempt.outcome import REVOKED, Outcome, is_revoked, read_outcomes, why_revoked
from ..attempt.pending_clusterings import is_of_hudi, planned_clustering
from ..attempt.validity import Assessment, Evidence, assess, evidence_of_planned, validity_of
from ..services.options import Service
from ..services.serve import LastRun, read_runs
from .coexistence import INLINE

T = TypeVar("T")


class PlanOwner(Enum):
    """Whose the plan of a clustering is."""

    PHANTOMBASE = "phantombase"
    HUDI = "hudi"
    HUDI_AT_WORK = "hudi at work"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantSnapshot:
    """What storage shows about a pending compaction or clustering. `file_groups`: those it reads. `input_bytes`: size
    of the planned files as they are now; an error if one is missing. `outcomes`: of its attempts by number, None while
    undecided; an error if they cannot be read. `assessment`: whether its decision is valid; without a decision, whether
    one could be made now; an error if that is unknown. `revoked_why`: of the last attempt. `clustering`: whose plan it
    is, if it is one. `cancelled`: by whom the last attempt was, and why."""

    file_groups: int
    input_bytes: int | PhantombaseError
    outcomes: Mapping[int, str | None] | PhantombaseError
    heartbeat: Heartbeat | None
    trace: ForeignTrace
    failures: tuple[Failure, ...]
    assessment: Assessment | PhantombaseError
    revoked_why: str | None
    clustering: PlanOwner | None = None
    cancelled: str | None = None


def pending_snapshots(table: Snapshot) -> dict[str, InstantSnapshot | PhantombaseError]:
    """The pending compactions by instant, earliest first. If one cannot be read, its error takes its place."""
    listings: dict[str, Mapping[str, Entry]] = {}
    seen = _or_error(partial(evidence_of_planned, table))
    return {
        i.requested_time: _or_error(partial(_compaction, table, i, listings, seen))
        for i in table.timeline.pending_merges
    }


def clustering_snapshots(table: Snapshot) -> dict[Instant, InstantSnapshot | PhantombaseError]:
    """The pending clusterings, earliest first. If one cannot be read, its error takes its place."""
    listings: dict[str, Mapping[str, Entry]] = {}
    found: dict[Instant, InstantSnapshot | PhantombaseError] = {}
    for instant in (i for i in table.timeline.instants if i.family == "replacecommit" and not i.completed):
        seen = _or_error(partial(_clustering, table, instant, listings))
        if seen is not None:  # else it is a write that replaces file groups
            found[instant] = seen
    return found


def _clustering(table: Table, instant: Instant, listings: dict[str, Mapping[str, Entry]]) -> InstantSnapshot | None:
    pending = planned_clustering(table, instant)
    if pending is None:
        return None
    planner = PlanOwner.PHANTOMBASE if pending.plan.is_own else PlanOwner.HUDI
    planner = PlanOwner.HUDI_AT_WORK if is_of_hudi(table, pending) else planner
    slices = [(group.partition, one) for group in pending.plan.groups for one in group.slices]
    paths = [join(partition, name) for partition, one in slices for name in one.names]
    seen = _or_error(partial(evidence_of_planned, table))
    found = _instant(table, pending.requested, listings, seen, len(slices), paths)
    if planner is not PlanOwner.HUDI_AT_WORK:  # the inflight file, if it is there, is phantombase's
        found = replace(found, trace=replace(found.trace, inflight_ms=None))
    return replace(found, clustering=planner)


def _compaction(
    table: Table, pending: Instant, listings: dict[str, Mapping[str, Entry]], seen: Evidence | PhantombaseError
) -> InstantSnapshot:
    plan = table.compaction_plan(pending.requested_time)
    return _instant(table, pending, listings, seen, len(plan.operations), planned_paths(plan))


def _or_error(read: Callable[[], T], kind: type[PhantombaseError] = PhantombaseError) -> T | PhantombaseError:
    try:
        return read()
    except kind as error:
        return error


def _instant(
    table: Table,
    pending: Instant,
    listings: dict[str, Mapping[str, Entry]],
    seen: Evidence | PhantombaseError,
    file_groups: int,
    paths: Sequence[str],
) -> InstantSnapshot:
    """`file_groups`, `paths`: what the plan reads."""
    storage, instant = table.storage, pending.requested_time
    partitions = {path.rpartition("/")[0] for path in paths}
    for partition in partitions - listings.keys():
        listings[partition] = {e.name: e for e in storage.list(partition)}
    outcomes = _or_error(partial(read_outcomes, storage, instant), MalformedError)
    revoked = {n for n in outcomes if is_revoked(storage, instant, n)} if isinstance(outcomes, dict) else set()
    return InstantSnapshot(
        file_groups=file_groups,
        input_bytes=_input_bytes(paths, instant, listings),
        outcomes=_kinds(outcomes, revoked),
        heartbeat=read_heartbeat(storage, instant),
        trace=foreign_trace(table, instant, partitions, pending if pending.family == "replacecommit" else None),
        failures=read_failures(storage, instant),
        assessment=_assessment(table, pending, outcomes, revoked, seen),
        revoked_why=_revoked_why(storage, instant, outcomes, revoked),
        cancelled=_cancelled(outcomes),
    )


_Outcomes: TypeAlias = dict[int, Outcome | None] | PhantombaseError


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
    valid = (outcome for n, outcome in outcomes.items() if n not in revoked and outcome is not None)
    if (decision := next((outcome.decision for outcome in valid if outcome.decision is not None), None)) is not None:
        return _or_error(partial(validity_of, table, decision))
    return seen if isinstance(seen, PhantombaseError) else assess(pending, (), "", seen)


def _cancelled(outcomes: _Outcomes) -> str | None:
    if isinstance(outcomes, PhantombaseError) or not outcomes:
        return None
    last = outcomes[max(outcomes)]
    return None if last is None else last.cancelled


def _revoked_why(storage: Storage, instant: str, outcomes: _Outcomes, revoked: set[int]) -> str | None:
    if isinstance(outcomes, PhantombaseError) or not outcomes or max(outcomes) not in revoked:
        return None
    try:
        return why_revoked(storage, instant, max(outcomes))
    except PhantombaseError as error:
        return f"the reason cannot be read: {error}"


def _input_bytes(
    paths: Sequence[str], instant: str, listings: Mapping[str, Mapping[str, Entry]]
) -> int | PhantombaseError:
    size = 0
    for path in paths:
        partition, _, name = path.rpartition("/")
        entry = listings[partition].get(name)
        if entry is None:
            return MissingFileError("the plan names a file that is not there", path=path, instant=instant)
        size += entry.size
    return size


def of_kept(seen: Snapshot, moment: Clock, patience_s: float, *, brief: bool = False) -> Iterator[Finding]:
    """What holds old states, or has them, and cannot be read: savepoints, pins, the last clean, the archive; writes
    with two completed files; and savepoints that were begun and not made. The time of one is that of the state that it
    keeps, so its age is that of its file. `brief`: without the archive."""
    from ..undo.savepoint import ACTION, savepoints  # late: as above

    for one in seen.timeline.pending(ACTION):
        instant, file = one.requested_time, seen.storage.find(seen.instant_path(one))
        if file is not None and (age_s := moment.since(file.modified_ms) or 0.0) >= patience_s:
            yield Finding(
                name="savepoint-left-off",
                severity=Severity.WARNING,
                what=f"the savepoint {instant} was begun and not made: it keeps no files, cleans remove them",
                found=f"for {human_duration(age_s)}",
                todo=f"`compactor-daemon savepoint create TABLE --instant {instant} --lock LOCK` makes it, "
                f"`savepoint delete TABLE {instant} --lock LOCK` drops it.",
            )
    parsed = (seen.layout.parse(entry.name) for entry in list_of_table(seen.storage, seen.config.timeline_folder))
    writes = Counter(one.requested_time for one in parsed if one is not None and one.completed and one.is_write)
    if twice := sorted(time for time, count in writes.items() if count > 1):
        yield Finding(
            name="completed-twice",
            severity=Severity.DANGER,
            what="a write or compaction has two completed files: two processes completed it",
            found=", ".join(twice),
            todo=f"Stop both, and retain the file whose data must count. In every Hudi writer: {INLINE}.",
        )
    try:
        savepoints(seen)
    except MalformedError as error:
        yield of_error("savepoint-unreadable", "a savepoint cannot be read: nothing can be cleaned", error)
    if (
        clean := next((i for i in reversed(seen.timeline.instants) if i.completed and i.action == "clean"), None)
    ) is not None:
        try:
            retained_by(seen.files, clean)
        except MalformedError as error:
            yield of_error("clean-unreadable", "the last clean cannot be read: nothing can be cleaned", error)
        except MissingFileError:  # archived meanwhile
            pass
    try:
        all_pins(seen.storage)
    except MalformedError as error:
        yield of_error("pin-unreadable", "a pin cannot be read: nothing can be cleaned", error)
    except ConflictError:  # much is read
        pass
    if brief:
        return
    from phantombase.timeline.instants.archived_timeline import check_archive  # late: `status` starts without pyarrow

    try:
        check_archive(seen.storage, seen.config)
    except UnknownStateError as error:
        what = "the archived timeline cannot be read: reads of the past by Hudi fail, and nothing is archived"
        yield of_error("archive-unreadable", what, error)


_LOCK = "--lock LOCK"
"""Of commands that change what other processes may change, too: the lock that all of them share."""
_NEEDS = {Service.ORPHANS: f"--remove {_LOCK}", Service.SYNC: "--to CATALOG"}
"""What the command of a service needs, unless it is `_LOCK`."""
_PATIENCE_S = CheckOptions().patience_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRun(Shown):
    """`failing_s`: for how long each run has failed; `behind_s`: for how long a catalog has lacked a write, though no
    sync failed. `service` None: the record of all services cannot be read; `what` says why."""

    service: Service | None
    ago_s: float | None
    by: str
    what: str
    failed: bool
    failing_s: float | None
    behind_s: float | None = None


def service_runs(storage: Storage, timeline: Timeline, clock: Clock) -> tuple[ServiceRun, ...]:
    """The last runs of the services, as recorded in the table."""
    runs, problem = read_runs(storage)
    if problem is not None:
        what = str(problem.advising(""))
        return (ServiceRun(service=None, ago_s=None, by="", what=what, failed=True, failing_s=None),)
    return tuple(
        ServiceRun(
            service=service,
            ago_s=clock.since(run.at_ms),
            by=run.who,
            what=run.what,
            failed=run.failed,
            failing_s=None if run.since_ms is None else clock.since(run.since_ms),
            behind_s=_behind_s(storage, timeline, run, clock) if service is Service.SYNC else None,
        )
        for service, run in runs.items()
    )


def _behind_s(storage: Storage, timeline: Timeline, run: LastRun, clock: Clock) -> float | None:
    """How old the first write is that completed after the last sync of a daemon. None: no write did, or each writer
    syncs, or the sync is paused."""
    ago_s = clock.since(run.at_ms) or 0.0
    writes = (i for i in timeline.completed if i.is_write and not timeline.is_compaction(i))
    later = [age_s for i in writes if (age_s := clock.age(timeline.completed_at(i))) is not None and age_s < ago_s]
    if run.failed or run.inline or not later or held_by(storage, Service.SYNC.value) is not None:
        return None
    return max(later)


def of_service(run: ServiceRun) -> Iterator[Finding]:
    """Whether the last runs of a service failed, or a catalog is behind all the same (pure)."""
    if run.service is None:
        yield Finding(
            name="services-unreadable",
            what="the record of the services cannot be read: whether they fail is unknown",
            found=run.what,
            todo="`compactor-daemon maintain TABLE --lock LOCK`, or a daemon with --services, writes it again.",
        )
    elif (run.behind_s or 0.0) >= _PATIENCE_S:
        yield Finding(
            name="catalog-behind",
            what="a catalog lacks writes, and no sync has failed: no process syncs the table any more",
            found=f"for {human_duration(run.behind_s or 0.0)}; the last sync was by {run.by}",
            todo="`compactor-daemon sync TABLE --to CATALOG`, or a daemon with --services sync.",
        )
    elif run.failed:
        yield Finding(
            name="service-failed",
            what=f"{run.service.value} has failed for {human_duration(run.failing_s or 0.0)}",
            found=f"{run.what}, by {run.by}, {human_duration(run.ago_s or 0.0)} ago",
            todo=f"`compactor-daemon {run.service.value} TABLE {_NEEDS.get(run.service, _LOCK)}` shows the error.",
        )
