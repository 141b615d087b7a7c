"""What needs care on tables: each finding with the evidence and the command that mends it; nothing is changed.

examine          reads a table: its state, what is pending and who works on it, signs of Hudi; and the verdict
check_table      the same; a table that cannot be read is a finding
check_tables     many tables, the worst first
of_status        the findings of what daemons and writers do (pure); others are those of `timeline.dashboard.verdict`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.dashboard.compactions import Debt
from phantombase.timeline.dashboard.look import look
from phantombase.timeline.dashboard.overview import FLAT, metadata_commits
from phantombase.timeline.dashboard.verdict import (
    CheckOptions,
    DuePlan,
    Finding,
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
    NotATableError,
    PhantombaseError,
    TableChangedError,
    UnknownStateError,
)
from phantombase.timeline.format.table_config import has_only_records
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.records.keys import FILES
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import Given
from phantombase.timeline.table.table import BUILD_AGAIN, Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import human_bytes, human_duration, plural

from ..attempt.failures import CLUSTERING
from ..fleet.pools import Pools
from ..services.options import Service
from ..services.policies import NO_POLICIES, Policies, read_policies
from .coexistence import coexistence, find_hudi_signs
from .pending import Claimed, PendingCompaction, StatusOptions
from .status import InProgress, PendingWrite, ServiceRun, TableStatus, table_status

_THREADS = 8
_LOCK = "--lock LOCK"
"""Of commands that change what other processes may change, too: the lock that all of them share."""
_NEEDS = {Service.ORPHANS: f"--remove {_LOCK}", Service.SYNC: "--to CATALOG"}
"""What the command of a service needs, unless it is `_LOCK`."""


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
    """`status` None: nothing is compacted here. `debt` None: the partitions were not listed. `last_write_s`: how long
    ago the newest completed write was requested. `policies`: what the table keeps, if it can be read."""

    verdict: TableVerdict
    status: TableStatus | None = None
    debt: Debt | None = None
    last_write_s: float | None = None
    policies: Policies = NO_POLICIES


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """`oldest_s`: of pending compactions and clusterings. `log_files`, `log_bytes`: in no plan. What is not known, or
    was not asked, is None."""

    name: str
    table: str
    pool: str
    slo_s: float | None
    verdict: TableVerdict = field(metadata=FLAT)
    pending: int | None = None
    oldest_s: float | None = None
    backing_off: int | None = None
    parked: int | None = None
    log_files: int | None = None
    log_bytes: int | None = None
    last_compaction_s: float | None = None
    last_write_s: float | None = None

    @property
    def rank(self) -> tuple[int, float, int, str]:
        """The worst table has the least."""
        return -self.verdict.health.code, -(self.oldest_s or 0.0), -(self.log_files or 0), self.name


_OPTIONS, _MEANS = CheckOptions(), CheckMeans()


def check_tables(
    paths: Mapping[str, str],
    options: CheckOptions = _OPTIONS,
    means: CheckMeans = _MEANS,
    slo_s: Callable[[str], float | None] = lambda name: None,
) -> list[TableCheck]:
    """`paths`: of tables, by name. `slo_s`: the goal of a table, by name. The worst first, then by name."""
    with ThreadPoolExecutor(_THREADS) as threads:
        rows = threads.map(lambda name: check_table(name, paths[name], options, means, slo_s(name)), paths)
        return sorted(rows, key=lambda row: (-row.verdict.health.code, row.name))


def catalog_rows(paths: Mapping[str, str], pools: Pools, means: CheckMeans = _MEANS) -> list[CatalogRow]:
    """A row for each table, by name and path, the worst first."""

    def row(name: str) -> CatalogRow:
        pool = pools.of(name)
        found = examined_or_why(paths[name], _OPTIONS, means, pool.slo_s)
        made = CatalogRow(
            name=name,
            table=paths[name],
            pool=pool.match,
            slo_s=pool.slo_s,
            verdict=found.verdict,
            log_files=None if found.debt is None else found.debt.log_files_waiting,
            log_bytes=None if found.debt is None else found.debt.log_bytes_waiting,
            last_write_s=found.last_write_s,
        )
        if (status := found.status) is None:
            return made
        works = (*status.pending, *status.clusterings)
        instants = [one for one in works if one.instant != CLUSTERING]
        return replace(
            made,
            pending=len(instants),
            oldest_s=max((one.age_s for one in instants if one.age_s is not None), default=None),
            backing_off=sum(one.state == "backing off" for one in works),
            parked=sum(one.state == "parked" for one in works),
            last_compaction_s=None if status.last_success is None else status.last_success.ago_s,
        )

    with ThreadPoolExecutor(_THREADS) as threads:
        return sorted(threads.map(row, paths), key=lambda one: one.rank)


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
    return Examined(verdict=TableVerdict.of([finding], path))


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
    table, path = table.with_clock(means.clock), table.storage.base_path
    found, kept, policies = list[Finding](), list[Finding](), NO_POLICIES
    try:
        policies = read_policies(table.storage)
        status_of = replace(means.status, attempt=policies.over(means.status.attempt, means.given))
        means = replace(means, trigger=policies.over(means.trigger, means.given), status=status_of)
    except MalformedError as error:  # what is pending is shown all the same
        kept = [of_error("policies", "the options that the table keeps cannot be read: no daemon serves it", error)]
    seen, timeline = from_one_snapshot(lambda: _of_timeline(table, means.trigger))
    if not means.brief:
        try:
            seen, timeline = from_one_snapshot(lambda: _of_files(table, means.trigger))
        except TableChangedError:
            raise
        except PhantombaseError as error:  # what is pending is shown all the same
            found = [of_error("unreadable", "the table cannot be read", error)]
    writes = (i for i in reversed(timeline.completed) if i.is_write and not timeline.is_compaction(i))
    written_s = table.age_s(last.requested_time) if (last := next(writes, None)) is not None else None
    if not means.brief and not found:
        found += _of_metadata(table, seen)
    if not seen.has_logs:
        verdict = TableVerdict.of([*kept, *found, *care_of(seen, options)], path)
        return Examined(verdict=verdict, debt=seen.debt, last_write_s=written_s)
    table.config.check_changeable()
    table = replace(table, reading=False)
    commits = metadata_commits(table)
    claims, asked = means.claims(table), replace(means.status, slo_s=slo_s)
    status = from_one_snapshot(lambda: table_status(table.snapshot(), claims, asked))
    seen = replace(
        seen,
        pending=tuple(unfinished_of(status)),
        paused=status.paused,
        metadata_commits=commits.fact or 0,
        metadata_problem=None if found else commits.problem,
        archiving=_archiving(table) if seen.completed >= options.instants else "",
    )
    found += [*kept, *care_of(seen, options, slo_s), *of_status(status)]
    if not means.brief:
        with suppress(ConflictError):  # what is in progress is a finding
            found += _strays(table)
    signs = from_one_snapshot(lambda: find_hudi_signs(table.snapshot()))
    found += coexistence(signs, clock_ms(), means.status.attempt)
    verdict = TableVerdict.of(found, path)
    return Examined(verdict=verdict, status=status, debt=seen.debt, last_write_s=written_s, policies=policies)


def _of_timeline(table: Table, trigger: TriggerOptions) -> tuple[TableFacts, Timeline]:
    timeline, config = table.load_timeline(), table.config
    facts = TableFacts(
        kind=config.properties.get("hoodie.table.type", "COPY_ON_WRITE"),
        has_logs=config.has_logs,
        completed=len(timeline.completed),
        due=DuePlan.of(timeline, table.now(), trigger) if config.has_logs else None,
        future=table.times.future(timeline),
    )
    return facts, timeline


def _of_files(table: Table, trigger: TriggerOptions) -> tuple[TableFacts, Timeline]:
    state = load_state(table)
    facts, _ = look(table, state, trigger, {}, None)
    return facts, state.timeline


def _of_metadata(table: Table, seen: TableFacts) -> Iterator[Finding]:
    """Whether the metadata table names the files of the table: Hudi reads those that it names, and no others."""
    if seen.flaws or FILES not in table.config.built_metadata_partitions:
        return
    from phantombase.timeline.metadata_table.validate import validate  # late: `status` starts without pyarrow

    name = "metadata-files"
    try:
        different = validate(table).differences
    except TableChangedError:
        raise
    except PhantombaseError as error:
        yield of_error(name, "the metadata table cannot be read: reads by Hudi fail", error)
        return
    timeline = table.load_timeline()
    if different and not any(timeline.pending(action) for action in ("clean", "rollback", "restore")):
        first = join(different[0].partition, different[0].name or "")
        yield Finding(
            name=name,
            severity=Severity.DANGER,
            what="the metadata table names other files than the table has: Hudi leaves out rows, or fails",
            found=f"{plural(len(different), 'difference')}, such as {first}: {different[0].what}",
            todo=f"`timeline validate TABLE` has each. {BUILD_AGAIN}",
        )


def _archiving(table: Table) -> str:
    """What keeps the archiver from archiving; "": nothing does, so none runs."""
    from ..archiving.archive import archive_table  # late: `status` starts without pyarrow
    from ..archiving.choice import ArchiveOptions

    try:
        return archive_table(table, ArchiveOptions(), ProcessLock(table.storage.location), dry_run=True).why
    except PhantombaseError as error:
        return str(error)


def _strays(table: Table) -> Iterator[Finding]:
    """Files of dead processes that no instant names."""
    from ..cleaning.orphan_choice import OrphanOptions  # late: `status` starts without pyarrow
    from ..cleaning.orphans import remove_orphans

    lock = ProcessLock(table.storage.location)
    found = remove_orphans(table.with_timeline(table.load_timeline()), OrphanOptions(), lock, dry_run=True)
    if found.orphans:
        yield Finding(
            name="stray-files",
            severity=Severity.WARNING,
            what="files that dead processes left, and that no instant names",
            found=f"{plural(found.files, 'file')}, {human_bytes(found.bytes)}, such as {found.orphans[0].path}",
            todo="`compactor-daemon orphans TABLE` has each, and removes them with --remove --lock LOCK.",
        )


def unfinished_of(status: TableStatus) -> Iterator[Unfinished]:
    """The pending instants, and what is known of the processes that work on them."""
    for one in (*status.pending, *status.clusterings):
        yield _compaction(one)
    yield from map(_write, status.writes)
    yield from map(_action, status.in_progress)


def _compaction(one: PendingCompaction) -> Unfinished:
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


def of_service(run: ServiceRun) -> Iterator[Finding]:
    """Whether the last runs of a service failed (pure)."""
    if run.failed:
        yield Finding(
            name="service-failed",
            severity=Severity.WARNING,
            what=f"{run.service.value} has failed for {human_duration(run.failing_s or 0.0)}",
            found=f"{run.what}, by {run.by}, {human_duration(run.ago_s or 0.0)} ago",
            todo=f"`compactor-daemon {run.service.value} TABLE {_NEEDS.get(run.service, _LOCK)}` shows the error.",
        )


def unlisted(listing: str, error: PhantombaseError) -> TableCheck:
    """The row of a root or catalog whose tables cannot be listed: how they are is unknown."""
    finding = of_error("not-listed", "the tables cannot be listed: how they are is unknown", error)
    return TableCheck(table=listing, name=listing, verdict=TableVerdict.of([finding], listing))


def worst(rows: Iterable[TableCheck]) -> int:
    """The exit code of `check`."""
    return max((row.verdict.health.code for row in rows), default=0)
