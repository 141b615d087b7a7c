"""What needs care on a table: each finding with the evidence and the command that mends it; nothing is changed.

check_table      reads a table: what is pending, what is due, files that no compaction can read, signs of Hudi
check_tables     many tables, the worst first; one that cannot be read is a finding
care_of          the findings of what was read (pure)

The verdict is that of the most severe finding: DANGER is broken, WARNING needs care, INFO is well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import NotATableError, PhantombaseError, TableChangedError
from phantombase.timeline.format.table_config import has_only_records
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerOptions, triggered, unplanned
from phantombase.timeline.locks.pause import COMPACTION
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.records.keys import FILES
from phantombase.timeline.option import check_finite, least_of, option, spelled_class
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import Given
from phantombase.timeline.table.table import BUILD_AGAIN, Snapshot, Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import human_duration, plural
from phantombase.timeline.view.view import GroupDebt, debt_of

from ..options import AttemptOptions
from ..services.options import Service
from .coexistence import Finding, Severity, coexistence, find_hudi_signs, in_the_future
from .pending import Claimed, PendingCompaction, StatusOptions
from .status import InProgress, PendingWrite, ServiceRun, TablePause, TableStatus, table_status


class TableVerdict(Enum):
    """Worst first. The exit code of `check` is 2, 1 or 0."""

    BROKEN = "broken"
    CARE = "needs care"
    WELL = "well"

    @property
    def exit_code(self) -> int:
        return 2 - list(TableVerdict).index(self)


_THREADS = 8
_LOCK = "--lock LOCK"
"""Of commands that change what other processes may change, too: the lock that all of them share."""
_NEEDS = {Service.ORPHANS: f"--remove {_LOCK}", Service.SYNC: "--to CATALOG"}
"""What the command of a service needs, unless it is `_LOCK`."""
_VERDICTS = {
    Severity.DANGER: TableVerdict.BROKEN,
    Severity.WARNING: TableVerdict.CARE,
    Severity.INFO: TableVerdict.WELL,
}


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """From when on something needs care."""

    patience_s: float = option(
        3600.0, "what is due, pending or in progress for longer, with no process at work, needs care", least=1
    )
    log_files: int = option(50, "log files in one file group that need care: each read merges them", least=1)
    instants: int = option(100, "completed instants on the active timeline that need care: all read them", least=1)

    def __post_init__(self) -> None:
        check_finite(self, least_of(CheckOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheck(Shown):
    table: str
    name: str
    verdict: TableVerdict
    findings: tuple[Finding, ...]

    @staticmethod
    def of(table: str, name: str, findings: Iterable[Finding]) -> TableCheck:
        found = sorted(findings, key=lambda f: list(Severity).index(f.severity))
        verdict = _VERDICTS[found[0].severity] if found else TableVerdict.WELL
        return TableCheck(table=table, name=name, verdict=verdict, findings=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class CareFacts:
    """What was read of a table that is compacted here. `due`: why a plan is due. `due_s`: since when, None if unknown.
    `unmergeable`: file groups that no compaction can read, with the reason. `completed`: instants that are active."""

    status: TableStatus
    due: str | None
    due_s: float | None
    unmergeable: Mapping[str, str]
    debts: tuple[GroupDebt, ...]
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckMeans:
    """How tables are read, and when a compaction is due. `claims`: see `Claimed`."""

    storage: Given = None
    trigger: TriggerOptions = TriggerOptions()
    clock: ClockOptions = ClockOptions()
    attempt: AttemptOptions = AttemptOptions()
    claims: Claimed = None


_OPTIONS, _MEANS = CheckOptions(), CheckMeans()


def check_tables(
    paths: Mapping[str, str], options: CheckOptions = _OPTIONS, means: CheckMeans = _MEANS
) -> list[TableCheck]:
    """`paths`: of tables, by name. The worst first, then by name."""
    with ThreadPoolExecutor(_THREADS) as threads:
        rows = threads.map(lambda name: check_table(name, paths[name], options, means), paths)
        return sorted(rows, key=lambda row: (-row.verdict.exit_code, row.name))


def check_table(name: str, path: str, options: CheckOptions = _OPTIONS, means: CheckMeans = _MEANS) -> TableCheck:
    """One table, by the name that the result has. An error of the tree is a finding."""
    found: list[Finding] = []
    try:
        found += _findings(path, options, means)
    except TableChangedError as error:  # nothing shows that it is sick: much is written to it
        busy = _of_error("changing", "the table changed at every try to read it", error, path)
        found.append(replace(busy, severity=Severity.WARNING))
    except PhantombaseError as error:
        if isinstance(error, NotATableError) and _has_only_rows(path, means):
            return TableCheck.of(path, name, [_NOT_MADE])
        found.append(_of_error("unreadable", "the table cannot be read", error, path))
    return TableCheck.of(path, name, found)


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


def _findings(path: str, options: CheckOptions, means: CheckMeans) -> Iterator[Finding]:
    readable = Table.open(path, means.storage, reading=True).with_clock(means.clock)
    living = list(from_one_snapshot(readable.load_view).living())
    flawed = [group for group in living if group.flaws]
    if flawed:
        what = f"{plural(len(flawed), 'file group')} with files that are lost or damaged: reads of it fail"
        yield _of_error("files", what, flawed[0].flaws[0].error(), path)
    else:
        yield from _of_metadata(readable, path)
    if not readable.config.has_logs:
        yield _not_compacted(readable)
        return
    table = Table.open(path, means.storage).with_clock(means.clock)
    debts = tuple(debt_of(group) for group in living if group.slices)
    seen = from_one_snapshot(lambda: _seen(table.snapshot(), debts, options, means))
    known = {join(*group.key) for group in flawed}
    left = {name: why for name, why in seen.unmergeable.items() if name not in known}
    yield from care_of(replace(seen, unmergeable=left), path, options)
    signs = from_one_snapshot(lambda: find_hudi_signs(table.snapshot()))
    yield from in_the_future(table.with_timeline(signs.timeline))
    for one in coexistence(signs, clock_ms(), means.attempt):
        yield replace(one, todo=one.todo.replace("TABLE", path))


def _of_metadata(table: Table, path: str) -> Iterator[Finding]:
    """Whether the metadata table names the files of the table: Hudi reads those that it names, and no others."""
    if FILES not in table.config.built_metadata_partitions:
        return
    from phantombase.timeline.metadata_table.validate import validate  # late: `status` starts without pyarrow

    name, todo = "metadata-files", BUILD_AGAIN.replace("TABLE", path)
    try:
        different = validate(table).differences
    except TableChangedError:
        raise
    except PhantombaseError as error:
        yield _of_error(name, "the metadata table cannot be read: reads by Hudi fail", error, path)
        return
    timeline = table.load_timeline()
    if different and not any(timeline.pending(action) for action in ("clean", "rollback", "restore")):
        first = join(different[0].partition, different[0].name or "")
        yield Finding(
            name=name,
            severity=Severity.DANGER,
            what="the metadata table names other files than the table has: Hudi leaves out rows, or fails",
            found=f"{plural(len(different), 'difference')}, such as {first}: {different[0].what}",
            todo=f"`timeline validate {path}` has each. {todo}",
        )


def _seen(table: Snapshot, debts: tuple[GroupDebt, ...], options: CheckOptions, means: CheckMeans) -> CareFacts:
    from phantombase.timeline.planning.schedule import schedule_compaction  # late: `status` starts without pyarrow

    timeline, now = table.timeline, table.now()
    asked = triggered(timeline, now, means.trigger)
    plan = schedule_compaction(table, ProcessLock(table.storage.location), PLAN_NOW, dry_run=True)
    left = plan.notes.unmergeable if plan.notes is not None else ()
    return CareFacts(
        status=table_status(table, means.claims, StatusOptions(slo_s=options.patience_s, attempt=means.attempt)),
        due=asked.why if asked.fired else None,
        due_s=unplanned(timeline, now)[1],
        unmergeable={join(one.partition, one.file_id): one.why for one in left},
        debts=debts,
        completed=len(timeline.completed),
    )


def care_of(seen: CareFacts, path: str, options: CheckOptions) -> Iterator[Finding]:
    """The findings of a table, in no order (pure)."""
    status = seen.status
    if seen.unmergeable:
        first, why = next(iter(seen.unmergeable.items()))
        yield Finding(
            name="cannot-be-merged",
            severity=Severity.DANGER,
            what=f"{plural(len(seen.unmergeable), 'file group')} that no compaction can merge: its log files grow",
            found=f"{first}: {why}",
            todo=f"`compactor-daemon schedule {path} --dry-run` has each reason, `timeline validate {path}` the files.",
        )
    for pause in status.paused:
        yield _of_pause(pause, path, options)
    is_paused = any(not one.problem and (not one.services or COMPACTION in one.services) for one in status.paused)
    for one in (*status.pending, *status.clusterings):
        yield from _of_pending(one, path, is_paused=is_paused)
    for write in status.writes:
        yield from _of_write(write)
    for action in status.in_progress:
        yield from _of_action(action, path, options)
    for run in status.services:
        yield from _of_service(run, path)
    yield from _of_backlog(seen, path, options, is_paused=is_paused)


def _of_pause(pause: TablePause, path: str, options: CheckOptions) -> Finding:
    """A pause that ends by itself, or has just begun, is what a person has decided."""
    if pause.problem is not None:
        return _of_error("paused", "whether the table is paused is unknown", pause.problem, path)
    is_long = pause.ends_s is None and (pause.since_s or 0.0) >= options.patience_s
    return Finding(
        name="paused",
        severity=Severity.WARNING if is_long else Severity.INFO,
        what=pause.what,
        found=f"since {human_duration(pause.since_s or 0.0)}",
        todo=f"`compactor-daemon resume {path}` ends it.",
    )


def _of_pending(one: PendingCompaction, path: str, *, is_paused: bool) -> Iterator[Finding]:
    named = f"{one.action} {one.instant}"
    if one.problem is not None:
        yield _of_error("pending-unknown", f"the state of {named} is unknown", one.problem, path)
    elif one.state == "parked":
        yield Finding(
            name="parked",
            severity=Severity.WARNING,
            what=f"{named} has failed too often and is not tried any more",
            found=one.why or one.state,
            todo=f"Mend the reason, then `compactor-daemon release {path} {one.instant}`.",
        )
    elif one.overdue and one.work is None and not is_paused and not (one.foreign and one.foreign.live):
        command = f"compact {path}" if one.action != "clustering" else f"cluster {path} {_LOCK}"
        yield Finding(
            name="no-process",
            severity=Severity.WARNING,
            what=f"no process works on {named}",
            found=f"{one.state} for {human_duration(one.age_s or 0.0)}" + (f": {one.why}" if one.why else ""),
            todo=f"Start a daemon (`compactor-daemon run {path}`), or `compactor-daemon {command}`.",
        )


def _of_write(write: PendingWrite) -> Iterator[Finding]:
    if write.alive is False:
        held = f"; compactions wait for it: {', '.join(write.holds)}" if write.holds else ""
        yield Finding(
            name="dead-writer",
            severity=Severity.WARNING,
            what=f"the writer of {write.instant} has died{held}",
            found=f"last heartbeat {human_duration(write.heartbeat_s or 0.0)} ago",
            todo="The next write to the table rolls it back.",
        )


def _of_action(one: InProgress, path: str, options: CheckOptions) -> Iterator[Finding]:
    if one.age_s is None or one.age_s >= options.patience_s:
        yield Finding(
            name="left-off",
            severity=Severity.WARNING,
            what=f"{one.action} {one.instant} has begun and not ended: it blocks other work",
            found=f"for {human_duration(one.age_s or 0.0)}",
            todo=f"If its process is dead: {one.todo.replace('TABLE', path)}.",
        )


def _of_service(run: ServiceRun, path: str) -> Iterator[Finding]:
    if run.failed:
        yield Finding(
            name="service-failed",
            severity=Severity.WARNING,
            what=f"{run.service.value} has failed for {human_duration(run.failing_s or 0.0)}",
            found=f"{run.what}, by {run.by}, {human_duration(run.ago_s or 0.0)} ago",
            todo=f"`compactor-daemon {run.service.value} {path} {_NEEDS.get(run.service, _LOCK)}` shows the error.",
        )


def _of_backlog(seen: CareFacts, path: str, options: CheckOptions, *, is_paused: bool) -> Iterator[Finding]:
    waiting = [debt for debt in seen.debts if debt.log_files and debt.pending_compaction is None]
    late = seen.due_s is None or seen.due_s >= options.patience_s
    if seen.due is not None and waiting and not seen.status.pending and late and not is_paused:
        yield Finding(
            name="not-scheduled",
            severity=Severity.WARNING,
            what="a compaction is due, and not requested",
            found=f"{seen.due}; {plural(sum(debt.log_files for debt in waiting), 'log file')} in no plan",
            todo=f"Start a daemon with --schedule, or `compactor-daemon schedule {path} --lock LOCK`, then `compact`.",
        )
    deepest = max(seen.debts, key=lambda debt: debt.log_files, default=None)
    if deepest is not None and deepest.log_files >= options.log_files:
        yield Finding(
            name="log-depth",
            severity=Severity.WARNING,
            what="a file group has more log files than fast reads merge",
            found=f"{plural(deepest.log_files, 'log file')} in {join(deepest.partition, deepest.file_id)}",
            todo=f"`compactor-daemon schedule {path} --lock LOCK`, then `compact`; a daemon with --schedule does both.",
        )
    if seen.completed >= options.instants:
        yield Finding(
            name="not-archived",
            severity=Severity.WARNING,
            what="the active timeline is long: every read and write lists it",
            found=plural(seen.completed, "completed instant"),
            todo=f"`compactor-daemon archive {path} --lock LOCK` archives the oldest, or says what keeps them.",
        )


def _not_compacted(table: Table) -> Finding:
    kind = table.config.properties["hoodie.table.type"]
    return Finding(
        name="not-compacted",
        severity=Severity.INFO,
        what="tables of this type have no log files to compact: phantombase only reads it",
        found=kind,
        todo="Nothing needs to be done here.",
    )


def _of_error(name: str, what: str, error: PhantombaseError, path: str) -> Finding:
    todo = (error.todo or "`timeline validate TABLE` shows more.").replace("TABLE", path)
    return Finding(name=name, severity=Severity.DANGER, what=what, found=str(error.advising("")), todo=todo)
