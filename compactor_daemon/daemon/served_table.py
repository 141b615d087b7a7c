"""A table on storage, as a daemon serves it: see `control.Served`.

Each method may be called from any thread. A table that cannot be opened is in trouble like any other one, and is tried
again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.overview import Clock
from phantombase.timeline.errors import (
    MalformedError,
    MissingFileError,
    PausedError,
    PhantombaseError,
    StoppedError,
    UnknownStateError,
    UnsupportedError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.instant import SERVICES, Instant
from phantombase.timeline.format.replace_request import ClusterPlan
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.instant_files import states_by_names
from phantombase.timeline.instants.reserved_times import record_names
from phantombase.timeline.instants.table_clock import TimelineMark
from phantombase.timeline.instants.timeline import Timeline, pending_writer
from phantombase.timeline.instants.triggers import Trigger
from phantombase.timeline.locks.pause import COMPACTION, SILENCE, KnownPauses, Pause, pauses, refuse_paused
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.planning.options import Pace, ScheduleOptions, past_runs
from phantombase.timeline.planning.schedule import Scheduled, read_lag, schedule_compaction
from phantombase.timeline.planning.survey import is_due
from phantombase.timeline.storage.contract import Storage, list_of_table
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot

from ..attempt.attempt import WaitScope, keep_slot
from ..attempt.compact_or_resume import Compacted, compact_instant, pending_instants, preflight
from ..attempt.failures import (
    CLUSTERING,
    FailureClass,
    Parked,
    Paused,
    Ready,
    RetryOptions,
    classify,
    failure_of,
    read_failures,
    readiness,
    readiness_of,
    record_failure,
    release_failures,
)
from ..attempt.finish import sweep_table
from ..attempt.inputs import check_record_ttl
from ..attempt.pending_clusterings import work_left
from ..attempt.slice_task import Runner
from ..clustering.cluster import resume_clustering
from ..clustering.options import ClusterOptions
from ..fleet.budget import USUAL, Gain, PastWork
from ..fleet.claims import Claims, HeldClaim, while_held
from ..options import AttemptOptions, BenefitOptions
from ..services.options import LOCK, Policies, Service, ServiceOptions, read_policies
from ..services.serve import ServiceDone, last_runs, note_runs, serve_table
from ..services.serve import due as due_services
from ..status.lag import LagTracker, row_ms
from ..unit_of_work import Limit, ServiceMeans
from .table_state import DaemonOrder, Pending, SeenLag, SeenTable

_ASK_AGAIN_S = 300.0
"""How soon to check again whether a compaction is due: time alone can make it so, without new writes."""
_SETTINGS_S = 300.0
"""How soon a change of the table's settings and policies counts, where nothing else reads them."""
_SWEPT_S = 3600.0
_REST_GOAL_S = 600.0
"""A table with a goal of freshness below that is listed at each poll: a minute would be too much of the goal."""
_BY_LAG = Trigger(fired=False, why="the goal of freshness does not need a plan yet")
_NUMBERS = re.compile(r"\d+")
"""The parts of the reason that no plan is due that change with each commit, and each second."""
_EXECUTED = SERVICES | {"replacecommit"}
_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """How tables are served. `who`: the daemon's name. `schedule` None: it requests no plans. `clock`: see `Table`.
    `services`: those that `serve` runs. `given`: options that count more than those of the table (`Policies.over`).
    `sizes`: the bytes of pending instants must be known. `gains`: what they gain and cost, too; `plans`: also what a
    plan would gain that is due. `clusters`: pending clusterings are executed too; all writers share the table's
    lock. `began_ms`: when the daemon began."""

    who: str
    output: OutputOptions
    attempt: AttemptOptions
    retry: RetryOptions
    order: DaemonOrder
    schedule: ScheduleOptions | None = None
    services: ServiceOptions = ServiceOptions()
    clock: ClockOptions = ClockOptions()
    storage_options: StorageOptions = StorageOptions()
    benefit: BenefitOptions = BenefitOptions()
    sizes: bool = False
    gains: bool = False
    plans: bool = False
    clusters: bool = False
    given: frozenset[str] = frozenset()
    began_ms: int = field(default_factory=clock_ms)

    def over(self, policies: Policies) -> DaemonSettings:
        """The same with the options of a table. UsageError: see `Policies.over`."""
        schedule = None if self.schedule is None else policies.over(self.schedule, self.given)
        chosen = {service: policies.over(own, self.given) for service, own in self.services.chosen.items()}
        counted = schedule.max_delta_commits if schedule is not None else self.services.counted_commits
        return replace(
            self,
            schedule=schedule,
            output=policies.over(self.output, self.given),
            attempt=policies.over(self.attempt, self.given),
            benefit=policies.over(self.benefit, self.given),
            services=ServiceOptions(chosen=chosen, counted_commits=counted),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calm:
    """A snapshot that found nothing to do, and nothing that time alone changes, but for a trigger. It holds `until` a
    time at most, with these settings, while the timeline is as it was."""

    seen: SeenTable
    table: Snapshot
    mark: TimelineMark
    settings: DaemonSettings
    until: float


class TableOnStorage:
    """See the module. The first call that touches the table is `open`."""

    def __init__(
        self,
        path: str,
        claims: Claims,
        lock: TableLock,
        runner: Runner,
        settings: DaemonSettings,
        choose_lock: Callable[[Storage], TableLock] | None = None,
    ) -> None:
        """`choose_lock`: the lock where the table got another one. None: it stays."""
        self.path = path
        self.claims = claims
        self._lock, self._kept, self._choose_lock = lock, "", choose_lock
        self._runner = runner
        self._given = self._settings = settings
        self._policies_at = 0.0
        self._plans: dict[str, CompactionPlan] = {}
        self._refused: tuple[Instant, ...] = ()
        self._swept: tuple[Instant, ...] = ()
        self._ask_at = self._sweep_at = 0.0
        self._said: dict[str, str] = {}
        self._parked = False
        self._paused: tuple[Pause, ...] = ()
        self._lags = LagTracker()
        self._past = PastWork()
        self._opened: Table | None = None
        self._calm: _Calm | None = None
        self.timeline: Timeline | None = None

    def open(self) -> None:
        """Verifies the guarantees of the storage. StorageError: it does not give them."""
        open_storage(self.path, self._settings.storage_options).verify()

    def _open(self) -> Table:
        return Table.open(self.path, self._settings.storage_options).with_clock(self._settings.clock)

    def _opened_with_policies(self) -> Table:
        """The table; the options that it has now count from here on."""
        table = self._open()
        self._take_policies(table.storage)
        return table

    def _take_policies(self, storage: Storage) -> None:
        """MalformedError, UsageError: the policies of the table cannot be read, or another process has other ones."""
        policies = read_policies(storage)
        self._settings, kept = self._given.over(policies), policies.values.get(LOCK, "")
        if self._choose_lock is not None and kept != self._kept:
            self._lock, self._kept = self._choose_lock(storage), kept
        self._policies_at = time.monotonic() + _SETTINGS_S

    def snapshot(self) -> SeenTable:
        """Lists the timeline once, and the records too if an instant is pending; of a table at rest, as `_Calm` says,
        nothing else. Errors of the tree."""
        calm, until = self._calm, time.monotonic() + _SETTINGS_S
        is_same = calm is not None and calm.settings is self._settings and calm.seen.parked == self._parked
        holds = calm is not None and is_same and time.monotonic() < calm.until
        if calm is not None and holds and not (calm.mark.is_passed or self._asks(calm.table, None)):
            return calm.seen
        self._calm = None
        self._opened = table = self._opened.snapshot(cached=False) if self._opened is not None else self._open()
        if time.monotonic() >= self._policies_at:
            self._take_policies(table.storage)
        check_keepable(table, moves_rows=False)
        entries = list_of_table(table.storage, table.config.timeline_folder)
        seen = table.with_timeline(timeline := table.timelines.of(entries))
        self.timeline = timeline
        instants = [i.requested_time for i in timeline.pending_merges]
        plans = self._clusterings(seen)
        clusterings = list(plans)
        if (instants or clusterings) and table.layout.has_completion_times:
            table.times.check_zone(timeline)
        now, settings, lag = clock_ms(), self._settings, self._lag(seen)
        due = self._asks(seen, lag)
        # A table with nothing to do is not asked for pauses; once it is paused, each time.
        names = record_names(table.storage) if instants or clusterings or due or self._paused else ()
        ready = readiness_of(table.storage, instants + clusterings, now, settings.retry, names)
        held = (one for one in pauses(table.storage, names) if not one.is_over(now))
        self._paused = tuple(one for one in held if one.services != (SILENCE,))
        for service, ones in ((COMPACTION, instants), (Service.CLUSTER.value, clusterings)):
            if (pause := next((one for one in self._paused if one.holds(service, now)), None)) is not None:
                ready |= dict.fromkeys(ones, Paused(pause.words))
                due = due and service != COMPACTION
                if isinstance(lag, SeenLag) and service == COMPACTION:
                    lag = replace(lag, free_ms=None, held=pause.words)
        if self._is_news("paused", "; ".join(one.words for one in self._paused)):
            _log.info("paused", table=self.path, why=[one.words for one in self._paused])
        self._plans = {i: p for i, p in self._plans.items() if i in instants}
        needs_sizes = settings.sizes or settings.gains or settings.order is DaemonOrder.LARGEST
        sizes = {i: self._log_bytes(table, i) for i in instants} if needs_sizes else {}
        pending = [
            Pending(
                instant=i,
                requested_ms=None if (age := table.age_s(i)) is None else now - round(age * 1000),
                readiness=ready[i],
                log_bytes=sizes.get(i, 0),
                gain=Gain.of(plans.get(i) or self._plans.get(i), sizes.get(i, 0)) if settings.gains else None,
            )
            for i in sorted(instants + clusterings)
        ]
        needs_plan = due or (isinstance(lag, SeenLag) and lag.free_ms is not None)  # sooner or later
        plan = self._plan_gain(seen) if settings.plans and needs_plan else None
        found = SeenTable(
            pending=tuple(pending),
            claimed=self.claims.names(),
            due=due,
            oldest_s=Clock.of(table).oldest([p.instant for p in pending]),
            parked=self._parked,
            paused=bool(self._paused),
            lag=None if isinstance(lag, PhantombaseError) else lag,
            costs=self._past.costs(table.storage, settings.benefit.reads_per_hour)
            if settings.gains and (pending or due or plan)
            else USUAL,
            plan=plan,
            before=self._past.spent(table.storage, settings.began_ms) if settings.gains else (0.0, 0.0),
        )
        schedule = settings.schedule or ScheduleOptions()
        has_rows = schedule.freshness_s is not None and not (isinstance(lag, SeenLag) and lag.oldest is None)
        if not (due or has_rows or schedule.any_radical or found.paused or _unfinished(timeline.instants)):
            mark = table.timelines.mark(entries, timeline)
            found = replace(found, rests=mark.is_old and (schedule.freshness_s or _REST_GOAL_S) >= _REST_GOAL_S)
            rest = replace(found, before=(0.0, 0.0)) if any(found.before) else found  # it counts once
            self._calm = _Calm(seen=rest, table=seen, mark=mark, settings=settings, until=until)
        return found

    def _asks(self, table: Snapshot, lag: SeenLag | PhantombaseError | None) -> bool:
        """Whether a plan is due. A goal of freshness is not of this table alone: `dispatch` decides, by its lag."""
        schedule = self._settings.schedule
        is_open = table.timeline.instants != self._refused or time.monotonic() >= self._ask_at
        if schedule is None or not is_open:
            return False
        asked = is_due(table, schedule, None if schedule.freshness_s is None else _BY_LAG)
        self._note_why_not("" if asked else f"not due: {asked.why}")
        return bool(asked) or isinstance(lag, PhantombaseError)

    def _lag(self, table: Snapshot) -> SeenLag | PhantombaseError | None:
        """The lag against the goal; None: there is no goal, or the table changed at each try. An error: it cannot be
        read. No plan can be made then, and the request says why."""
        schedule = self._settings.schedule
        if schedule is None or schedule.freshness_s is None:
            return None
        try:
            found = self._lags.at(table, schedule)
        except PhantombaseError as error:
            return error
        if found is None:
            return None
        writer = pending_writer(table.timeline)
        return SeenLag(
            goal_s=schedule.freshness_s,
            oldest=found.oldest,
            oldest_ms=row_ms(table, found.oldest),
            free_ms=row_ms(table, found.free),
            source_bytes=found.source_bytes,
            runs=past_runs(table.timeline),
            writer=None if writer is None else writer.requested_time,
        )

    def _clusterings(self, table: Snapshot) -> dict[str, ClusterPlan]:
        """The pending clusterings that may be executed here, by this machine's clock: a snapshot puts nothing on
        storage. One whose plan cannot be read stops no compaction."""
        error, found = "", dict[str, ClusterPlan]()
        try:
            found = {one.time: one.plan for one in work_left(table, clock_ms)} if self._settings.clusters else {}
        except MalformedError as unreadable:
            error = str(unreadable)
        if self._is_news("clusterings_unknown", error):
            _log.warning("clusterings_unknown", table=self.path, error=error)
        return found

    def _pending(self, table: Table) -> frozenset[str]:
        return _unfinished(table.load_timeline().instants)

    def request(self, pace: Pace | None = None) -> Scheduled:
        """Requests a compaction; after none, the next check follows a change of the timeline, or `_ASK_AGAIN_S`."""
        table, self._calm = self._opened_with_policies(), None
        assert self._settings.schedule is not None
        seen = table.load_timeline().instants
        if pace is not None:  # a snapshot does not ask for pauses of a table with nothing to do
            now, self._paused = clock_ms(), pauses(table.storage)
            if (pause := next((one for one in self._paused if one.holds(COMPACTION, now)), None)) is not None:
                return Scheduled(requested=(), why=pause.words)
        check = partial(check_record_ttl, self._settings.output)
        scheduled = schedule_compaction(table, self._lock, self._settings.schedule, pace=pace, check=check)
        self._lags.planned(scheduled.notes, found=scheduled.instant is not None)
        self._refused = () if scheduled.instant else seen
        self._note_why_not("" if scheduled.instant else scheduled.why)
        self._ask_at = time.monotonic() + _ASK_AGAIN_S
        return scheduled

    def _note_why_not(self, why: str) -> None:
        """Logs why nothing is requested; empty: a plan is requested. That none is due is no event."""
        if self._is_news("not_requested", _NUMBERS.sub("", why)):
            (_log.debug if why.startswith("not due") else _log.info)("not_requested", table=self.path, why=why)

    def _is_news(self, event: str, state: str) -> bool:
        """Whether to log an event: once for each change of its state; "": there is nothing to be said."""
        before, self._said[event] = self._said.get(event, ""), state
        return state not in ("", before)

    def sweep(self) -> None:
        """Finishes instants that are not pending any more, except those that another process has claimed. A table at
        rest on which nothing was left needs no other search for an hour."""
        seen, calm = () if self.timeline is None else self.timeline.instants, self._calm
        if calm is not None and calm.table.timeline.instants == self._swept and time.monotonic() < self._sweep_at:
            return
        is_clean = sweep_table(self._opened or self._open(), self._lock, self.claims.take)
        self._swept, self._sweep_at = seen if is_clean else (), time.monotonic() + _SWEPT_S

    def serve(
        self, every_s: float, stopping: Callable[[], bool], handing_over: Callable[[], bool] = lambda: False
    ) -> tuple[ServiceDone, ...]:
        """See `Served`. The daemons of a fleet learn from the record of the last runs that one of them ran a service.
        Concurrent runs of a service are harmless: each service decides under the table lock. Clusterings take long, and
        run under a claim; they wait after a failure."""
        table = self._opened_with_policies()
        due = due_services(self._settings.services.services, last_runs(table.storage), every_s, clock_ms())
        known = KnownPauses(table.storage)
        due = tuple(one for one in due if known.held_by(one.value) is None)
        claim = self._claim_clusterings(table) if Service.CLUSTER in due else None
        try:
            runner = self._runner if claim is None else partial(while_held, claim, handing_over, self._runner)
            chosen = [one for one in due if one is not Service.CLUSTER or claim]
            return self._serve(table, chosen, runner, stopping, known)
        finally:
            if claim is not None:
                claim.release()

    def _claim_clusterings(self, table: Table) -> HeldClaim | None:
        """The claim on the clusterings that this table's daemons plan. None: another one has it, or they wait."""
        failures = read_failures(table.storage, CLUSTERING)
        now = readiness(failures, clock_ms(), self._settings.retry)
        self._parked = isinstance(now, Parked)
        waits = "" if isinstance(now, Ready) else f"{len(failures)} {type(now).__name__}"
        if self._is_news("clusterings_wait", waits):
            todo = f"compactor-daemon release {self.path} {CLUSTERING}" if self._parked else None
            _log.warning("clusterings_wait", table=self.path, failures=len(failures), last=failures[-1].what, todo=todo)
        if waits:
            return None
        try:
            return self.claims.take(CLUSTERING)
        except UnknownStateError as error:
            _log.warning("claim_failed", table=self.path, error=str(error))
            return None

    def _serve(
        self, table: Table, due: Sequence[Service], runner: Runner, stopping: Callable[[], bool], known: KnownPauses
    ) -> tuple[ServiceDone, ...]:
        if not due:
            return ()
        stopped: list[Service] = []

        def note_failure(service: Service, error: Exception) -> None:
            if isinstance(error, (StoppedError, PausedError)):
                stopped.append(service)
            elif service is Service.CLUSTER and classify(error) is not FailureClass.NOTHING:
                with suppress(PhantombaseError):  # the error itself is returned all the same
                    record_failure(table.storage, CLUSTERING, failure_of(error, self._settings.who, clock_ms()))

        means = ServiceMeans(output=self._settings.output, runner=runner, resumes=not self._settings.clusters)
        done = serve_table(table, self._settings.services, self._lock, due, stopping, means, note_failure, known)
        if any(one.service is Service.CLUSTER and not one.failed for one in done) and Service.CLUSTER not in stopped:
            release_failures(table.storage, CLUSTERING)
        try:
            # What was stopped is due at once: another daemon goes on.
            note_runs(table.storage, self._settings.who, [one for one in done if one.service not in stopped])
        except PhantombaseError as error:  # what the services did, and why they failed, must be returned all the same
            _log.warning("runs_not_recorded", table=self.path, error=str(error))
        return done

    def done_among(self, instant: str, near: Iterable[str] = ()) -> frozenset[str]:
        """See `Served`: its ledger is in the audit log, and it is not pending again, as after a rollback by Hudi. One
        listing of names shows this of all. Of an instant that it does not show, which is archived or moved by an
        upgrade, a fresh timeline does."""
        storage = open_storage(self.path, self._settings.storage_options)
        if storage.find(audit_path(instant)) is None:
            return frozenset()
        asked = frozenset((instant, *near))
        seen = () if self._opened is None else states_by_names(storage, self._opened.config, asked)
        gone = frozenset(i.requested_time for i in seen if i.completed) - _unfinished(seen)
        if instant not in {i.requested_time for i in seen}:
            gone = asked - self._pending(self._open())
        if instant not in gone:
            return frozenset()
        return frozenset(i for i in gone if i == instant or storage.find(audit_path(i)) is not None)

    def execute(
        self, instant: str, held: HeldClaim, limit: Limit, wait_scope: WaitScope = keep_slot
    ) -> Compacted | None:
        """Brings a claimed instant to its end; None: another process has done so. Errors: as `compact_instant`."""
        table = self._opened_with_policies()
        self._past.forget()
        seen = table.snapshot()
        how: dict[str, Any] = {
            "lock": self._lock,
            "runner": self._runner,
            "progress": lambda done, total: None,
            "output": self._settings.output,
            "options": self._settings.attempt,
            "limit": limit,
            "on_note": held.report,
            "wait_scope": wait_scope,
        }
        is_compaction = instant in pending_instants(seen)
        refuse_paused(seen.storage, COMPACTION if is_compaction else Service.CLUSTER.value)
        if not is_compaction:
            given = self._settings.services.chosen.get(Service.CLUSTER, ClusterOptions())
            return resume_clustering(table, instant, given, **how)
        check_keepable(seen, moves_rows=False)
        for error in preflight(seen, [instant], self._settings.output).values():
            raise error
        return compact_instant(table, instant, **how)

    def failed(self, instant: str, error: Exception) -> None:
        """Records a failure in the table, unless the instant is not pending any more."""
        table = self._open()
        if instant in self._pending(table):
            record_failure(table.storage, instant, failure_of(error, self._settings.who, clock_ms()))

    def close(self) -> None:
        self.claims.close()

    def _plan_gain(self, table: Snapshot) -> Gain | None:
        """What a plan of all that waits would gain; None: nothing. Errors: as `read_lag`; no plan can be requested."""
        options = self._settings.schedule or ScheduleOptions()
        found = from_one_snapshot(lambda: read_lag(table.snapshot(), options=options))
        if not found.log_files:
            return None
        return Gain(log_files=found.log_files, log_bytes=found.log_bytes, read_bytes=found.source_bytes)

    def _log_bytes(self, table: Table, instant: str) -> int:
        """The bytes of the planned logs; 0 if a plan of Hudi does not state them. 0 also if the plan cannot be read:
        that error is raised when the plan is executed."""
        try:
            plan = self._plans.get(instant) or self._plans.setdefault(instant, table.compaction_plan(instant))
        except (MalformedError, UnsupportedError, MissingFileError):
            return 0
        return round(sum(o.log_bytes or 0.0 for o in plan.operations))


def _unfinished(instants: Iterable[Instant]) -> frozenset[str]:
    """The times of pending compactions, log compactions and clusterings among instants."""
    return frozenset(i.requested_time for i in instants if not i.completed and i.action in _EXECUTED)
