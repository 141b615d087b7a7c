"""What needs care on tables: each finding with the evidence and the command that mends it; nothing is changed.

examine          reads a table: its state, what is pending and who works on it, signs of Hudi; and the verdict
check_table      the same; a table that cannot be read is a finding; of many tables see `catalog`
of_status        the findings of what daemons and writers do (pure); others are those of `timeline.dashboard.verdict`"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial

from phantombase.timeline.dashboard.compactions import Debt
from phantombase.timeline.dashboard.look import lag_s, look, of_metadata
from phantombase.timeline.dashboard.overview import FLAT, Clock, metadata_commits
from phantombase.timeline.dashboard.verdict import (
    CheckOptions,
    DuePlan,
    Finding,
    Freshness,
    Severity,
    TableFacts,
    TableVerdict,
    Unfinished,
    care_of,
    of_error,
)
from phantombase.timeline.errors import (
    ConflictError,
    MalformedError,
    MissingFileError,
    NotATableError,
    PhantombaseError,
    TableChangedError,
    UnknownStateError,
)
from phantombase.timeline.format.file_name import PARTITION_METADATA
from phantombase.timeline.format.table_config import has_only_records
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.pause import silence
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.records.keys import FILES
from phantombase.timeline.service.loading import state_at
from phantombase.timeline.service.table_state import ServedState
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.storage.storage_options import Given
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import human_bytes, plural

from ..cleaning.choice import CleanOptions
from ..cleaning.orphan_choice import Item
from ..services.options import NO_POLICIES, Policies, read_policies
from .coexistence import coexistence, find_hudi_signs
from .pending import Claimed, PendingCompaction, StatusOptions
from .snapshot import of_kept, of_service
from .status import InProgress, PendingWrite, TableStatus, freshness_of, outlook, table_status


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckMeans:
    """How tables are read, and when a compaction is due. `claims`: see `Claimed`. `status`: options of the daemons.
    `brief`: no partition is listed, and no file is looked into. `given`: see `Policies.over`."""

    storage: Given = None
    trigger: TriggerOptions = TriggerOptions()
    clock: ClockOptions = ClockOptions()
    status: StatusOptions = StatusOptions()
    claims: Callable[[Table], Claimed] = lambda table: None
    brief: bool = False
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheck(Shown):
    table: str
    name: str
    verdict: TableVerdict = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """`status` None: nothing is compacted here. `debt`, `lag_s` (see there) None: the partitions were not listed.
    `last_write_s`: how long ago the newest completed write was requested. `policies`: what the table keeps, if it can
    be read. `seen`, `state`: what all this was read from, of a table with log files; `state` None: see `debt`."""

    verdict: TableVerdict
    status: TableStatus | None = None
    debt: Debt | None = None
    lag_s: float | None = None
    last_write_s: float | None = None
    policies: Policies = NO_POLICIES
    seen: Snapshot | None = None
    state: ServedState | None = None


_OPTIONS, _MEANS = CheckOptions(), CheckMeans()


def check_table(
    name: str, path: str, options: CheckOptions = _OPTIONS, means: CheckMeans = _MEANS, slo_s: float | None = None
) -> TableCheck:
    """One table, by the name that the result has."""
    return TableCheck(table=path, name=name, verdict=examined_or_why(path, options, means, slo_s).verdict)


def examined_or_why(
    path: str, options: CheckOptions = _OPTIONS, means: CheckMeans = _MEANS, slo_s: float | None = None
) -> Examined:
    """As `examine`; an error of the tree is a finding."""
    try:
        return examine(Table.open(path, means.storage, reading=True), options, means, slo_s)
    except TableChangedError as error:  # nothing shows that it is sick: much is written to it
        busy = of_error("changing", "the table changed at every try to read it", error)
        finding = replace(busy, severity=Severity.WARNING)
    except PhantombaseError as error:
        finding = of_error("unreadable", "the table cannot be read", error)
        if isinstance(error, NotATableError) and _has_only_rows(path, means):
            finding = _NOT_MADE
    except Exception as error:  # one of thousands of tables may be in a state unknown to this release
        what = f"internal error: {type(error).__name__}: {error}"
        finding = of_error("unreadable", "the table cannot be read", UnknownStateError(what))
    return Examined(
        verdict=TableVerdict.of([finding], path, partial(silence, partial(open_storage, path, means.storage)))
    )


def _has_only_rows(path: str, means: CheckMeans) -> bool:
    """Whether a first write stages rows there, or left them. False: the path cannot be read, either."""
    try:
        return has_only_records(open_storage(path, means.storage))
    except PhantombaseError:
        return False


_NOT_MADE = Finding(
    name="not-made",
    severity=Severity.INFO,
    what="a first write by Spark stages rows here, or has died: it makes the table when it commits",
    found="no hoodie.properties, only folders of phantombase",
    todo="If it is dead, write again, or remove the folder.",
)


def examine(
    table: Table, options: CheckOptions = _OPTIONS, means: CheckMeans = _MEANS, slo_s: float | None = None
) -> Examined:
    """`table`: opened for reading. Errors of the tree: it cannot be read."""
    table = table.with_clock(means.clock)
    if table.config.has_logs:
        table.config.check_changeable()
        table = replace(table, reading=False)
    claims = means.claims(table) if table.config.has_logs else None

    def once(*, last: bool) -> Examined:
        return _examined(table, table.snapshot(records=table.config.has_logs), options, means, slo_s, claims, last)

    try:
        return from_one_snapshot(partial(once, last=False))
    except MissingFileError:
        return from_one_snapshot(partial(once, last=True))


def full_status(table: Table, means: CheckMeans) -> TableStatus:
    """The status of a table with its verdict and, unless it is `brief`, its outlook. UnsupportedError: a table without
    log files has none. Errors as in `examine`."""
    table.config.check_changeable()
    seen = examine(table, _OPTIONS, means, means.status.slo_s)
    assert seen.status is not None
    assert seen.seen is not None
    cleans = seen.policies.over(CleanOptions())
    ahead = None if means.brief else outlook(seen.seen, seen.state, means.trigger, cleans, seen.status.pending)
    return replace(seen.status, verdict=seen.verdict, outlook=ahead)


def _examined(
    table: Table,
    seen: Snapshot,
    options: CheckOptions,
    means: CheckMeans,
    slo_s: float | None,
    claims: Claimed,
    last: bool,
) -> Examined:
    """All from one snapshot; what must be newer says so. `last`: a file that is missing is a finding."""
    path, has_logs, said = seen.storage.base_path, seen.config.has_logs, partial(silence, lambda: seen.storage)
    found, kept, policies = list[Finding](), list[Finding](), NO_POLICIES
    try:
        policies = read_policies(seen.storage)
        status_of = replace(means.status, attempt=policies.over(means.status.attempt, means.given))
        means = replace(means, trigger=policies.over(means.trigger, means.given), status=status_of)
    except MalformedError as error:  # what is pending is shown all the same
        kept = [of_policies(error)]
    if not means.brief:
        list_ahead(seen.storage, ["", RECORDS] if has_logs else [""])
    facts, state = None, None
    items = _listed(seen) if has_logs and not means.brief else []
    moment = Clock.of(seen)  # of the heartbeats, which were just listed: to look into files may take longer than theirs
    if not means.brief:
        try:
            state = state_at(seen)
            facts, _ = look(seen, state, means.trigger, {}, None)
        except TableChangedError:
            raise
        except PhantombaseError as error:  # what is pending is shown all the same
            if isinstance(error, MissingFileError) and not last:
                raise
            found = [of_error("unreadable", "the table cannot be read", error)]
    facts = facts or _of_timeline(seen, means.trigger)
    timeline = seen.timeline if state is None else state.timeline
    writes = (i for i in reversed(timeline.completed) if i.is_write and not timeline.is_compaction(i))
    written_s = table.age_s(newest.requested_time) if (newest := next(writes, None)) is not None else None
    if not means.brief and not found:
        found += of_metadata(table, seen, facts)
    if not has_logs:
        verdict = TableVerdict.of([*kept, *found, *care_of(facts, options)], path, said)
        return Examined(verdict=verdict, debt=facts.debt, last_write_s=written_s)
    commits, asked = metadata_commits(seen), replace(means.status, slo_s=slo_s)
    later = cache(lambda: table.snapshot(cached=False).timeline)
    status = table_status(seen, claims, asked, moment, later)
    behind_s, goal_s = lag_s(facts, moment), means.trigger.freshness_s
    facts = replace(
        facts,
        freshness=fresh_fact(facts, behind_s, goal_s, timeline, status.pending),
        pending=tuple(unfinished_of(status)),
        paused=status.paused,
        metadata_commits=commits.fact or 0,
        metadata_problem=None if found else commits.problem,
        archiving=_archiving(table) if facts.completed >= options.instants else "",
    )
    found += [*kept, *care_of(facts, options, slo_s), *of_status(status)]
    with suppress(ConflictError):  # what is in progress is a finding
        found += _strays(seen, items, later())
    found += _unmarked(seen, state) if state is not None else ()
    found += of_kept(seen, moment, options.patience_s, brief=means.brief)
    found += coexistence(find_hudi_signs(seen, later()), moment.now_ms, means.status.attempt)
    return Examined(
        verdict=TableVerdict.of(found, path, said),
        status=status,
        debt=facts.debt,
        lag_s=behind_s,
        last_write_s=written_s,
        policies=policies,
        seen=seen,
        state=state,
    )


def of_policies(error: MalformedError) -> Finding:
    """What a table keeps is unreadable."""
    return of_error("policies", "the options that the table keeps cannot be read: no daemon serves it", error)


def _of_timeline(table: Snapshot, trigger: TriggerOptions) -> TableFacts:
    timeline, config = table.timeline, table.config
    return TableFacts(
        kind=config.properties.get("hoodie.table.type", "COPY_ON_WRITE"),
        has_logs=config.has_logs,
        completed=len(timeline.completed),
        due=DuePlan.of(timeline, table.now(), trigger) if config.has_logs else None,
        future=table.times.future(timeline),
    )


def _archiving(table: Table) -> str:
    """What keeps the archiver from archiving; "": nothing does, so none runs."""
    from ..archiving.archive import archive_table  # late: `status` starts without pyarrow
    from ..archiving.choice import ArchiveOptions

    try:
        return archive_table(table, ArchiveOptions(), ProcessLock(table.storage.location), dry_run=True).why
    except PhantombaseError as error:
        return str(error)


def _listed(seen: Snapshot) -> Sequence[Item]:
    from ..cleaning.orphan_facts import list_items  # late: `status` starts without pyarrow

    return list_items(seen)[0]


def _unmarked(seen: Snapshot, state: ServedState) -> Iterator[Finding]:
    """Partitions that Hudi does not find: it knows them by a file in each, or by the metadata table."""
    if FILES in seen.config.built_metadata_partitions:
        return
    live = [partition for partition, files in state.partitions.items() if partition and files.live]
    names = {one: [entry.name for entry in listed_if_there(seen.storage, one) or ()] for one in live}
    if lost := sorted(one for one in live if not any(name.startswith(PARTITION_METADATA) for name in names[one])):
        yield Finding(
            name="partition-metadata",
            severity=Severity.DANGER,
            what=f"partitions without their {PARTITION_METADATA}: Hudi does not find their rows",
            found=f"{plural(len(lost), 'partition')}, such as {lost[0]}",
            todo="The next write to the partition puts it, or copy the file of another one that is as deep.",
        )


def _strays(seen: Snapshot, items: Sequence[Item], later: Timeline) -> Iterator[Finding]:
    """Files of dead processes that no instant names. `items`: of the snapshot, listed before `later`."""
    if not items:
        return
    from ..cleaning.orphan_choice import OrphanOptions  # late: as above
    from ..cleaning.orphans import strays

    orphans = strays(seen, items, OrphanOptions(), later)
    if orphans:
        files, size = sum(one.files for one in orphans), sum(one.bytes for one in orphans)
        yield Finding(
            name="stray-files",
            what="files that dead processes left, and that no instant names",
            found=f"{plural(files, 'file')}, {human_bytes(size)}, such as {orphans[0].path}",
            todo="`compactor-daemon orphans TABLE` has each, and removes them with --remove --lock LOCK.",
        )


def fresh_fact(
    facts: TableFacts,
    behind_s: float | None,
    goal_s: float | None,
    timeline: Timeline,
    pending: Sequence[PendingCompaction] = (),
) -> Freshness | None:
    """The lag `behind_s` against the goal; None: there is no goal, or the lag is unknown."""
    if facts.lag is None or behind_s is None or goal_s is None:
        return None
    return freshness_of(facts.lag.oldest, behind_s, goal_s, timeline, pending)


def unfinished_of(status: TableStatus) -> Iterator[Unfinished]:
    """The pending instants, and what is known of the processes that work on them."""
    for one in (*status.pending, *status.clusterings):
        yield compaction_fact(one)
    yield from map(_write, status.writes)
    yield from map(_action, status.in_progress)


def compaction_fact(one: PendingCompaction) -> Unfinished:
    return Unfinished(
        action=one.action,
        instant=one.instant,
        state=one.state,
        age_s=one.age_s,
        at_work=one.work is not None or (one.foreign is not None and one.foreign.live),
        is_compaction=True,
        why=one.why,
        problem=one.problem,
    )


def _write(write: PendingWrite) -> Unfinished:
    return Unfinished(
        action="deltacommit",
        instant=write.instant,
        state=write.state,
        age_s=write.age_s,
        at_work=write.alive is True,
        silent_s=(write.heartbeat_s or 0.0) if write.alive is False else None,
        holds=write.holds,
    )


def _action(one: InProgress) -> Unfinished:
    return Unfinished(
        action=one.action, instant=one.instant, state="in progress", age_s=one.age_s, blocks=True, todo=one.todo
    )


def of_status(status: TableStatus) -> Iterator[Finding]:
    """What the services of a table are at (pure)."""
    for run in status.services:
        yield from of_service(run)
