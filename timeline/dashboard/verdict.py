"""The verdict of a table: what was read of it becomes findings, each with the command that mends it (pure).

`check`, `status`, the pages, their JSON and the metrics render it. The verdict is that of the worst finding: DANGER is
broken, WARNING needs care, INFO is well. What needs no mending, as a COPY_ON_WRITE table, is INFO."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

from ..errors import PhantombaseError
from ..instants.timeline import Timeline, since_request
from ..instants.triggers import BY_TIME, TriggerOptions, TriggerStrategy, triggered, unplanned
from ..locks.pause import COMPACTION, SILENCE
from ..option import check_finite, least_of, option, spelled_class
from ..shown import Shown
from ..storage.folders import join
from ..terminal.text_table import human_duration, plural
from ..view.view import GroupKey, Lag
from .compactions import Debt


class Severity(Enum):
    """Worst first: rows may be lost, or all work stops; work is wasted or delayed; good to know."""

    DANGER = "danger"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Shown):
    """One finding. `name`: for machines. `found`: the evidence. `todo`: what to run or to set; TABLE in it stands for
    the path until `TableVerdict.of`."""

    name: str
    severity: Severity = Severity.WARNING
    what: str
    found: str
    todo: str


class Health(Enum):
    """Worst first. `code`: the exit code of `check`, and the value of `phantombase_health`."""

    BROKEN = "broken"
    CARE = "needs care"
    WELL = "well"

    @property
    def code(self) -> int:
        return 2 - list(Health).index(self)


_HEALTH = {Severity.DANGER: Health.BROKEN, Severity.WARNING: Health.CARE, Severity.INFO: Health.WELL}
NOTHING = "nothing needs care"
SILENCED = "silenced"
_STATES = frozenset({"not-compacted", "not-made", "paused", SILENCED})
"""Findings that say what a table is: the reason of a well one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict(Shown):
    """`reason`: the first finding in words. `findings`: the worst first."""

    health: Health
    reason: str
    findings: tuple[Finding, ...] = ()

    @staticmethod
    def of(findings: Iterable[Finding], path: str, silence: Callable[[], str] = str) -> TableVerdict:
        """`path`: the table's, for the commands. `silence`: what a person has said of the table, if it is known to be
        bad (`locks.pause.silence`): it counts as well, and its findings are shown. Only asked where it is not well."""
        fill = partial(re.sub, r"\bTABLE\b", lambda _: shlex.quote(path))
        filled = [replace(one, found=fill(one.found), todo=fill(locked(one.todo))) for one in findings]
        found = tuple(sorted(filled, key=lambda one: list(Severity).index(one.severity)))
        health = _HEALTH[found[0].severity] if found else Health.WELL
        first = next((f for f in found if health is not Health.WELL or f.name in _STATES), None)
        reason = NOTHING if first is None else f"{first.what} ({first.found})"
        if health is not Health.WELL and (said := silence()):
            health, reason = Health.WELL, f"{said}; {reason}"
            if not any(one.name == SILENCED for one in found):  # where what is paused was not read
                todo = f"`compactor-daemon resume {shlex.quote(path)}` ends it."
                silenced = Finding(name=SILENCED, severity=Severity.INFO, what=said, found="known to be bad", todo=todo)
                found = (*found, silenced)
        return TableVerdict(health=health, reason=reason, findings=found)


_CHANGES = re.compile(
    r"(`compactor-daemon (?:archive|clean|cluster|metadata|replan|repair|restore|rollback|schedule|unschedule)"
    r"|`compactor-daemon config (?:set|unset)|`(?:compactor-daemon )?savepoint (?:create|delete))\b([^`]*)`"
)
"""Commands that need to know which other processes write."""


def locked(todo: str) -> str:
    """The text with the option `--lock` in each command that needs it and does not say."""

    def one(found: re.Match[str]) -> str:
        says = re.search(r"--(lock|sole-writer|dry-run)\b", found[0])
        return found[0] if says else f"{found[1]}{found[2]} --lock LOCK`"

    return _CHANGES.sub(one, todo)


def is_silenced(row: Mapping[str, Any]) -> bool:
    """Whether a person has said that a table is known to be bad. `row`: with its findings as JSON."""
    return any(one["name"] == SILENCED for one in row.get("findings") or ())


def health_word(row: Mapping[str, Any]) -> str:
    """A silenced table counts as well, and is not called so. `row`: as above."""
    return SILENCED if is_silenced(row) else str(row["health"])


def of_error(name: str, what: str, error: PhantombaseError) -> Finding:
    todo = error.advice or "`timeline validate TABLE` shows more."
    return Finding(name=name, severity=Severity.DANGER, what=what, found=str(error.advising("")), todo=todo)


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """From when on something needs care."""

    patience_s: float = option(
        3600.0, "what is due, pending or in progress for longer, with no process at work, needs care", least=1
    )
    log_files: int = option(50, "log files in one file group that need care: each read merges them", least=1)
    instants: int = option(100, "completed instants on the active timeline that need care: all read them", least=1)
    file_slices: int = option(30, "file slices of one file group that need care: a clean removes old ones", least=2)
    small_files: int = option(100, "base files below 8 MiB in one partition that need care: reads open each", least=1)

    def __post_init__(self) -> None:
        check_finite(self, least_of(CheckOptions))


_METADATA_COMMITS = 100
"""Hudi's writers compact their metadata table every ten commits."""
_HOLDER_ENDS = (
    "No plan can take this row before what holds it has ended: by the process at work on it, or by `compactor-daemon "
    "cluster TABLE --lock LOCK`, of a log compaction by `compact`."
)
_SCHEDULE = "`compactor-daemon schedule TABLE --lock LOCK`, then `compact`; a daemon with --schedule does both."
_MORE = "If one does already: more daemons or slots, or smaller plans (`--target-io`)."
_TIMES = 4
"""A compaction that is due this many times over needs care at once: no process requests any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePlan:
    """Whether a compaction is due and none is pending. `for_s`: since when, None if unknown. `times`: how many times
    over, by the number of delta commits."""

    why: str
    for_s: float | None
    times: float = 1.0

    @staticmethod
    def of(timeline: Timeline, now: datetime, options: TriggerOptions) -> DuePlan | None:
        """None: no plan is due, or one is pending. `now`: in the table's zone. A goal of freshness counts instead of
        the trigger."""
        if (goal_s := options.freshness_s) is not None:
            commits, waited_s = unplanned(timeline, now)
            if timeline.pending_merges or not commits or waited_s is None or waited_s < goal_s:
                return None
            why = f"the oldest write in no plan is {human_duration(waited_s)} old, the goal is {human_duration(goal_s)}"
            return DuePlan(why=why, for_s=waited_s - goal_s, times=waited_s / goal_s)
        asked = triggered(timeline, now, options)
        if not asked.fired or timeline.pending_merges:
            return None
        since, by_count = since_request(timeline), options.strategy not in BY_TIME
        times = since.commits / options.max_delta_commits if since is not None and by_count else 1.0
        first_s = unplanned(timeline, now)[1]
        return DuePlan(why=asked.why, for_s=first_s, times=1.0 if options.strategy is TriggerStrategy.ALWAYS else times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness(Shown):
    """The age of the oldest row in no base file, in seconds, 0 without one; the goal, if there is one; and `why` the
    lag is near the goal or over it."""

    lag_s: float
    goal_s: float | None = None
    why: str | None = None

    @property
    def is_missed(self) -> bool:
        return self.goal_s is not None and self.lag_s > self.goal_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A pending instant. `at_work`: whether a process is known to work on it. `is_compaction`: also of clusterings.
    `blocks`: an action that blocks others while it is in progress; `todo`: what finishes it.
    `silent_s`: since the last heartbeat of a writer that has died. `holds`: the compactions that wait for it."""

    action: str
    instant: str
    state: str
    age_s: float | None
    at_work: bool = False
    is_compaction: bool = False
    blocks: bool = False
    todo: str = ""
    why: str | None = None
    problem: PhantombaseError | None = None
    silent_s: float | None = None
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePause(Shown):
    """`what`: in one line. `ends_s`: how soon it ends by itself, None: not before it is removed. One that cannot be
    read has its error in `problem`."""

    what: str
    who: str | None = None
    reason: str | None = None
    since_s: float | None = None
    ends_s: float | None = None
    services: tuple[str, ...] = ()
    problem: PhantombaseError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What was read of a table. `kind`: its type. `has_logs`: whether it can be compacted. `flaws`: file groups with
    files that are lost or damaged, and the first error of each. `unmergeable`: other file groups that no compaction can
    read, with the reason. `unchecked`: file groups whose logs were not looked into. `small`: small base files that a
    clustering could join, by partition. `debt`, `lag`: None if no partition was listed. `deepest`: the file group with
    most log files. `completed`: active instants; `archiving`: what keeps the archiver from archiving them. `slices`:
    the most of one file group. `metadata_commits`: delta commits of the metadata table since its last compaction;
    `future`: of a write that lies in the future; `metadata_problem`: why it cannot be read; `torn`: of a completed
    write."""

    kind: str
    has_logs: bool
    completed: int
    flaws: Mapping[GroupKey, PhantombaseError] = field(default_factory=dict)
    unmergeable: Mapping[GroupKey, PhantombaseError] = field(default_factory=dict)
    unchecked: int = 0
    debt: Debt | None = None
    lag: Lag | None = None
    deepest: GroupKey = ("", "")
    small: Mapping[str, int] = field(default_factory=dict)
    due: DuePlan | None = None
    freshness: Freshness | None = None
    pending: tuple[Unfinished, ...] = ()
    paused: tuple[TablePause, ...] = ()
    slices: int = 0
    archiving: str = ""
    metadata_commits: int = 0
    metadata_problem: PhantombaseError | None = None
    future: PhantombaseError | None = None
    torn: PhantombaseError | None = None


def care_of(seen: TableFacts, options: CheckOptions, slo_s: float | None = None) -> Iterator[Finding]:
    """The findings, in no order. `slo_s`: a compaction that is pending for longer is late, even at work."""
    if seen.flaws:
        what = f"{plural(len(seen.flaws), 'file group')} with files that are lost or damaged: reads of it fail"
        yield of_error("files", what, next(iter(seen.flaws.values())))
    elif seen.metadata_problem is not None:
        yield of_error("metadata-files", "the metadata table cannot be read: reads by Hudi fail", seen.metadata_problem)
    if not seen.has_logs:
        yield Finding(
            name="not-compacted",
            severity=Severity.INFO,
            what="read only here: tables of this type have no log files to compact",
            found=seen.kind,
            todo="Nothing needs to be done here.",
        )
        return
    if (future := seen.future) is not None:
        yield replace(of_error("future-instant", f"{future.what}: none is chosen", future), found=future.found or "")
    if seen.unmergeable:
        first, why = next(iter(seen.unmergeable.items()))
        yield Finding(
            name="cannot-be-merged",
            severity=Severity.DANGER,
            what=f"{plural(len(seen.unmergeable), 'file group')} that no compaction can merge: its log files grow",
            found=f"{join(*first)}: {why.advising('')}",
            todo=f"{why.advice} `compactor-daemon schedule TABLE --dry-run` has each reason, `timeline validate TABLE` "
            "the files.",
        )
    elif seen.torn is not None:
        torn = of_error("commit-unreadable", "a completed write cannot be read: it is not archived", seen.torn)
        yield replace(torn, severity=Severity.WARNING)
    yield from (_of_pause(pause, options) for pause in seen.paused)
    is_paused = any(not p.problem and (not p.services or COMPACTION in p.services) for p in seen.paused)
    for one in seen.pending:
        if not (is_paused and one.is_compaction and one.problem is None and one.state != "parked"):
            yield from _of_pending(one, options, slo_s)
    yield from _of_backlog(replace(seen, due=None, freshness=None) if is_paused else seen, options)
    yield from _of_sizes(seen, options)


def _of_pause(pause: TablePause, options: CheckOptions) -> Finding:
    """A pause that ends by itself, or has just begun, is what a person has decided."""
    if pause.problem is not None:
        return of_error("paused", "whether the table is paused is unknown", pause.problem)
    is_long = pause.ends_s is None and (pause.since_s or 0.0) >= options.patience_s
    return Finding(
        name=SILENCED if SILENCE in pause.services else "paused",
        severity=Severity.WARNING if is_long else Severity.INFO,
        what=pause.what,
        found=f"since {human_duration(pause.since_s or 0.0)}",
        todo="`compactor-daemon resume TABLE` ends it.",
    )


def _of_pending(one: Unfinished, options: CheckOptions, slo_s: float | None) -> Iterator[Finding]:
    named = f"{one.action} {one.instant}"
    if one.problem is not None:
        yield of_error("pending-unknown", f"the state of {named} is unknown", one.problem)
    elif one.silent_s is not None:
        held = f"; compactions wait for it: {', '.join(one.holds)}" if one.holds else ""
        yield Finding(
            name="dead-writer",
            what=f"the writer of {one.instant} has died{held}",
            found=f"last heartbeat {human_duration(one.silent_s)} ago",
            todo="The next write to the table rolls it back.",
        )
    elif one.is_compaction:
        yield from _of_compaction(one, named, options, slo_s)
    elif one.blocks and not one.at_work and (one.age_s is None or one.age_s >= options.patience_s):
        todo = one.todo.rstrip(".") or "`compactor-daemon status TABLE` names what ends it"
        if not todo[:1].isupper():  # else the advice of an error, a sentence of its own
            todo = f"If its process is dead: {todo}"
        yield Finding(
            name="left-off",
            what=f"{named} has begun and not ended: it blocks other work",
            found=f"for {human_duration(one.age_s or 0.0)}",
            todo=f"{todo}.",
        )


def _of_compaction(one: Unfinished, named: str, options: CheckOptions, slo_s: float | None) -> Iterator[Finding]:
    age_s = one.age_s or 0.0
    because = f": {one.why}" if one.why else ""
    if one.state == "parked":
        yield Finding(
            name="parked",
            what=f"{named} has failed too often and is not tried any more",
            found=one.why or one.state,
            todo=f"Mend the reason, then `compactor-daemon release TABLE {one.instant}`.",
        )
    elif age_s > min(options.patience_s, slo_s or options.patience_s) and not one.at_work:
        command = "cluster TABLE --lock LOCK" if one.action == "clustering" else "compact TABLE"
        yield Finding(
            name="no-process",
            what=f"no process works on {named}",
            found=f"{one.state} for {human_duration(age_s)}{because}",
            todo=f"Start a daemon (`compactor-daemon run TABLE`), or `compactor-daemon {command}`.",
        )
    elif slo_s is not None and age_s > slo_s and one.action != "clustering":
        yield Finding(
            name="late",
            what=f"{named} is late: a process works on it",
            found=f"pending for {human_duration(age_s)}; the goal is {human_duration(slo_s)}",
            todo="More daemons, cores or --max-concurrent; or smaller plans (`--target-io`).",
        )


def _of_backlog(seen: TableFacts, options: CheckOptions) -> Iterator[Finding]:
    debt, due = seen.debt, seen.due
    logs = f"; {plural(debt.log_files_waiting, 'log file')} in no plan" if debt is not None else ""
    waits = due is not None and (debt is None or debt.file_groups_waiting > 0)
    waits = waits and (seen.lag is None or seen.lag.free is not None)
    # A goal that is kept decides: the oldest write that no plan took in may be in base files.
    waits = waits and (seen.freshness is None or seen.freshness.goal_s is None)
    held = seen.lag is not None and seen.lag.oldest is not None and seen.lag.oldest.held is not None
    if (fresh := seen.freshness) is not None and fresh.goal_s is not None and fresh.is_missed:
        because = f": {fresh.why}" if fresh.why else ""
        yield Finding(
            name="behind-goal",
            what="the goal of freshness is missed",
            found=f"the oldest row in no base file is {human_duration(fresh.lag_s)} old, the goal is "
            f"{human_duration(fresh.goal_s)}{because}",
            todo=_HOLDER_ENDS if held else f"{_SCHEDULE} {_MORE}",
        )
    elif due is not None and waits and (due.for_s is None or due.for_s >= options.patience_s or due.times >= _TIMES):
        yield Finding(
            name="not-scheduled",
            what="a compaction is due, and not requested",
            found=f"{due.why}{logs}",
            todo="Start a daemon with --schedule, or `compactor-daemon schedule TABLE --lock LOCK`, then `compact`.",
        )
    if debt is not None and debt.log_files_max >= options.log_files:
        yield Finding(
            name="log-depth",
            what="a file group has more log files than fast reads merge",
            found=f"{plural(debt.log_files_max, 'log file')} in {join(*seen.deepest)}",
            todo=_SCHEDULE,
        )


def _of_sizes(seen: TableFacts, options: CheckOptions) -> Iterator[Finding]:
    partition, count = max(seen.small.items(), key=lambda one: one[1], default=("", 0))
    if count >= options.small_files:
        yield Finding(
            name="small-files",
            what="a partition has many small base files: each read opens all of them",
            found=f"{plural(count, 'small base file')} in {partition or 'the table'}",
            todo="`compactor-daemon cluster TABLE --lock LOCK` joins them.",
        )
    if seen.slices >= options.file_slices:
        yield Finding(
            name="not-cleaned",
            what="a file group has many old file slices: no clean removes them, or something keeps them",
            found=plural(seen.slices, "file slice"),
            todo="`compactor-daemon clean TABLE --lock LOCK` removes the oldest, or says what keeps them.",
        )
    if seen.completed >= options.instants:
        yield Finding(
            name="not-archived",
            what="the active timeline is long: every read and write lists it",
            found=plural(seen.completed, "completed instant") + (f"; {seen.archiving}" if seen.archiving else ""),
            todo="`compactor-daemon archive TABLE --lock LOCK` archives the oldest, or says what keeps them.",
        )
    if seen.metadata_commits >= _METADATA_COMMITS:
        yield Finding(
            name="metadata-table-grows",
            what="the metadata table has not been compacted for long: its readers merge more at every query",
            found=f"{seen.metadata_commits} delta commits since",
            todo="Run `compactor-daemon metadata TABLE --lock LOCK`, write once with Hudi, or turn it off: "
            "--drop-metadata-table.",
        )
