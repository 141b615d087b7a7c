"""A table at a glance: settings, instants, pending instants, the progress of each trigger.

A report is a tree of frozen dataclasses. Sizes are bytes, ages are seconds, instants are digit strings as on disk; None
means unknown or not applicable. Texts, pages and metrics are drawn from its JSON, so that all show the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from ..clocks import clock_ms
from ..errors import MalformedError, PhantombaseError, UnsupportedError
from ..format.compaction_plan import CompactionPlan, decode_plan
from ..format.instant import MERGES, SERVICES, Instant, State
from ..format.table_config import TableConfig
from ..instants.timeline import Timeline, commits_since_compaction
from ..instants.triggers import TriggerOptions, TriggerStrategy, triggered
from ..locks.heartbeat import is_live, read_heartbeat
from ..locks.pause import readable_pauses
from ..shown import Shown
from ..table.table import Table, open_metadata_table
from ..terminal.text_table import moment
from .verdict import TablePause, Unfinished

FLAT = {"json": "flat"}
"""Metadata of a field whose own fields stand in its place; None: it has none."""
OPTIONAL = {"json": "optional"}
"""Metadata of a field that JSON lacks while it is None."""
Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(Generic[Fact]):
    """A fact, or the problem that hides it: other facts are shown all the same."""

    fact: Fact | None = field(default=None, metadata=FLAT)
    problem: PhantombaseError | None = None

    @staticmethod
    def of(ask: Callable[[], Fact | None]) -> Known[Fact]:
        try:
            return Known(fact=ask())
        except PhantombaseError as error:
            return Known(problem=error)


def as_json(value: object) -> Any:
    """A value as JSON has it: a dataclass is an object with its fields, an error its text, a member of an enum its
    value. Fields with `FLAT` or `OPTIONAL`: see there."""
    if is_dataclass(value):
        found: dict[str, Any] = {}
        for one in fields(value):
            inner, rule = getattr(value, one.name), one.metadata.get("json")
            if rule is None or (rule == "optional" and inner is not None):
                found[one.name] = as_json(inner)
            elif inner is not None:
                found |= as_json(inner)
        return found
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PhantombaseError):
        return str(value)
    if isinstance(value, Mapping):
        return {name: as_json(inner) for name, inner in value.items()}
    return [as_json(inner) for inner in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Clock:
    """One moment: `now_ms` since the epoch, and `now` in the zone of the table's instants, naive as they are."""

    now_ms: int
    now: datetime

    @staticmethod
    def of(table: Table) -> Clock:
        return Clock(clock_ms(), table.now().replace(tzinfo=None))

    def since(self, ms: int | None) -> float | None:
        """Seconds since a time in milliseconds since the epoch."""
        return None if ms is None else round((self.now_ms - ms) / 1000, 3)

    def age(self, instant: str) -> float | None:
        """Seconds since an instant; None if its name is no time."""
        then = moment(instant)
        return None if then is None else round((self.now - then).total_seconds(), 3)

    def oldest(self, instants: Iterable[str]) -> float | None:
        """The greatest age; None without any, or if no name is a time."""
        return max((age for one in instants if (age := self.age(one)) is not None), default=None)


def is_late(age_s: float | None, slo_s: float | None) -> bool | None:
    """Whether a compaction has been pending for longer than the goal, if there is one; None: its age is unknown."""
    return False if slo_s is None else None if age_s is None else age_s > slo_s


_SHOWN = (TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST, TriggerStrategy.NUM_COMMITS, TriggerStrategy.TIME_ELAPSED)
"""Elementary triggers; the others combine them and add no information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerProgress(Shown):
    """Whether a trigger fires, and how far it is."""

    trigger: TriggerStrategy
    due: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPlan(TriggerProgress):
    """The progress of the configured trigger, and of each elementary one."""

    triggers: tuple[TriggerProgress, ...]


def next_plan(timeline: Timeline, now: datetime, options: TriggerOptions) -> NextPlan:
    """When the next plan is due. `now`: in the table's zone."""
    asked = triggered(timeline, now, options)
    rows = []
    for strategy in _SHOWN:
        found = triggered(timeline, now, replace(options, strategy=strategy, max_pending=None))
        rows.append(TriggerProgress(trigger=strategy, due=found.fired, why=found.why))
    return NextPlan(trigger=options.strategy, due=asked.fired, why=asked.why, triggers=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The settings of a table. `metadata_commits_since_compaction`: delta commits of its metadata table."""

    name: str
    database: str | None
    path: str
    version: int
    type: str
    merge_mode: str
    ordering_fields: tuple[str, ...]
    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    metadata_table: bool
    metadata_partitions: tuple[str, ...]
    metadata_commits_since_compaction: int | None
    metadata_problem: PhantombaseError | None
    timezone: str


def _settings(table: Table) -> TableSettings:
    config, commits = table.config, metadata_commits(table)
    return TableSettings(
        name=config.name,
        database=config.database or None,
        path=table.storage.base_path,
        version=config.version,
        type=config.properties["hoodie.table.type"],
        merge_mode=_merge_mode(config),
        ordering_fields=config.ordering_fields,
        record_key_fields=config.record_key_fields,
        partition_fields=config.partition_fields,
        metadata_table=bool(config.metadata_partitions),
        metadata_partitions=config.metadata_partitions,
        metadata_commits_since_compaction=commits.fact,
        metadata_problem=commits.problem,
        timezone="UTC" if config.utc_timezone else "LOCAL",
    )


def _merge_mode(config: TableConfig) -> str:
    if not config.has_logs:
        return "none: no log files"
    try:
        config.check_mergeable()
    except UnsupportedError as error:
        return str(error)
    return config.merge_mode.value


def commits_to_compact(table: Table) -> int:
    """Delta commits of a data table's metadata table since its last compaction, as Hudi counts them."""
    return commits_since_compaction(open_metadata_table(table).load_timeline())


def metadata_commits(table: Table) -> Known[int]:
    """The commits to compact; None without a metadata table."""
    return Known.of(lambda: commits_to_compact(table)) if table.config.metadata_partitions else Known()


Kinds: TypeAlias = Mapping[tuple[str, str], str]
"""By requested time and family: the service that an instant is of, which completes under the name of a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantReport:
    """An instant. `kind`: its action or service; None: its action, as far as the timeline shows."""

    instant: str
    action: str
    state: str
    completion_time: str | None
    archived: bool
    kind: str | None = field(default=None, metadata=OPTIONAL)


def instant_reports(
    timeline: Timeline, *, pending_only: bool = False, kinds: Kinds | None = None
) -> tuple[InstantReport, ...]:
    """The loaded instants, archived ones included, by requested time."""
    active = {i.identity for i in timeline.instants}
    # Hudi archives by copying, then deleting: between the two steps an instant is in both places.
    archived = [i for i in timeline.archived if i.identity not in active]
    both = [*((i, True) for i in archived), *((i, False) for i in timeline.instants)]
    both.sort(key=lambda pair: (pair[0].requested_time, pair[0].family))
    return tuple(
        InstantReport(
            instant=i.requested_time,
            action=i.action,
            state=i.state.name.lower(),
            completion_time=i.completion_time
            or (timeline.legacy_completions.get(i.requested_time) if i.completed else None),
            archived=gone,
            kind=_kind(i, kinds, timeline),
        )
        for i, gone in both
        if not (pending_only and i.completed)
    )


def _kind(instant: Instant, kinds: Kinds | None, timeline: Timeline) -> str | None:
    """Without `kinds` no metadata was read: only what the timeline shows is known."""
    if kinds is not None:
        return kinds.get(instant.identity, instant.action)
    return "compaction" if instant.completed and timeline.is_compaction(instant) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSize:
    """The size of a plan. `log_bytes`: None if a plan of Hudi does not state it."""

    file_groups: int
    log_files: int
    log_bytes: int | None

    @staticmethod
    def of(plan: CompactionPlan) -> PlanSize:
        """Of the log files as the plan names them."""
        known = [int(o.log_bytes) for o in plan.operations if o.log_bytes is not None]
        return PlanSize(
            file_groups=len(plan.operations),
            log_files=sum(len(o.delta_file_paths) for o in plan.operations),
            log_bytes=sum(known) if len(known) == len(plan.operations) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReport:
    """A pending instant: its age, its plan if it is a compaction, and its process. `heartbeat`: none, fresh or stale.
    `problem`: its plan cannot be read; the other instants are shown all the same."""

    instant: str
    action: str
    state: str
    age_s: float | None
    plan: PlanSize | None
    heartbeat: str
    heartbeat_age_s: float | None
    problem: PhantombaseError | None
    kind: str | None = field(default=None, metadata=OPTIONAL)


def _pending(table: Table, instant: Instant, clock: Clock, kinds: Kinds | None) -> PendingReport:
    beat, plan = read_heartbeat(table.storage, instant.requested_time), _plan_size(table, instant)
    return PendingReport(
        instant=instant.requested_time,
        action=instant.action,
        state=instant.state.name.lower(),
        age_s=clock.age(instant.requested_time),
        plan=plan.fact,
        heartbeat="none" if beat is None else "fresh" if is_live(beat, clock.now_ms) else "stale",
        heartbeat_age_s=None if beat is None else max(0.0, round((clock.now_ms - beat.beat_ms) / 1000, 3)),
        problem=plan.problem,
        kind=None if kinds is None else kinds.get(instant.identity, instant.action),
    )


def _plan_size(table: Table, instant: Instant) -> Known[PlanSize]:
    if instant.action not in MERGES:
        return Known()
    path = table.instant_path(replace(instant, state=State.REQUESTED, file_name=""))
    return Known.of(lambda: PlanSize.of(decode_plan(table.storage.read(path), path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A table at a glance. `pending_only`: `instants` has only pending ones."""

    table: TableSettings
    pending_only: bool
    instants: tuple[InstantReport, ...]
    pending: tuple[PendingReport, ...]


def overview(
    table: Table, *, archived: bool = False, pending_only: bool = False, kinds: Kinds | None = None
) -> Overview:
    """MissingFileError: a writer moved a file during the read, see `from_one_snapshot`."""
    timeline, clock = table.load_timeline(archived=archived), Clock.of(table)
    return Overview(
        table=_settings(table),
        pending_only=pending_only,
        instants=instant_reports(timeline, pending_only=pending_only, kinds=kinds),
        pending=tuple(_pending(table, i, clock, kinds) for i in timeline.instants if not i.completed),
    )


def table_pauses(table: Table, clock: Clock) -> Iterator[TablePause]:
    """The pauses of a table that are not over."""
    for one in readable_pauses(table.storage):
        if isinstance(one, MalformedError):
            yield TablePause(what=str(one), problem=one)
        elif not one.is_over(clock.now_ms):
            ends_s = None if one.until_ms is None else (one.until_ms - clock.now_ms) / 1000
            since_s = clock.since(one.since_ms)
            yield TablePause(
                what=one.words, who=one.who, reason=one.reason, since_s=since_s, ends_s=ends_s, services=one.services
            )


_BLOCKING = frozenset({"clean", "rollback", "restore"})


def unfinished(one: PendingReport) -> Unfinished:
    """What the timeline and the heartbeat show of a pending instant."""
    is_write = one.action not in SERVICES
    return Unfinished(
        action=one.action,
        instant=one.instant,
        state=one.state,
        age_s=one.age_s,
        at_work=one.heartbeat == "fresh",
        is_compaction=one.action in MERGES,
        blocks=one.action in _BLOCKING,
        problem=one.problem,
        silent_s=one.heartbeat_age_s if is_write and one.heartbeat == "stale" else None,
    )
