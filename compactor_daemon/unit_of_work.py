"""Units of work: what executes a compaction or a service leaves a row in the history of the table (`table.history`);
and what every table service is given and answers (the services themselves are in `services.options`).

The row is put after the work of a daemon, command, writer or call. A dry run leaves none, and neither does work that
had nothing to do, or that ended with an error before it called `note_work` or changed anything. Work inside other
work counts as the outer one's. If the row cannot be put, the work is done all the same; if the process dies first,
there is no row."""

from __future__ import annotations

import resource
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import wraps
from threading import Lock
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    ClaimedError,
    LockError,
    PausedError,
    PhantombaseError,
    StoppedError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.option import spelled_class
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage, counted_requests
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.table.history import WorkDone, WorkFacts, put_work
from phantombase.timeline.table.table import Table

WorkKind: TypeAlias = Literal[
    "compaction",
    "log compaction",
    "clustering",
    "clean",
    "archive",
    "orphans",
    "metadata",
    "sync",
    "rollback",
    "restore",
]
"""The kinds of work that leave a row."""
P = ParamSpec("P")
R = TypeVar("R")
_REFUSED = (ClaimedError, LockError, PausedError, UnsupportedError, UsageError)
"""Errors of work that did not begin, or whose outcome another process has."""
_log = get_logger()


@dataclass(slots=True)
class _Noted:
    """The facts of the work in progress so far: numbers are added up."""

    facts: dict[str, Any] = field(default_factory=dict)


_NOTED: ContextVar[_Noted | None] = ContextVar("unit_of_work", default=None)


def note_work(**facts: Any) -> None:
    """Adds facts (`WorkFacts`) to the unit of work in progress, if there is one. Numbers are added, texts replaced."""
    if (noted := _NOTED.get()) is not None:
        for name, value in facts.items():
            had = noted.facts.get(name)
            noted.facts[name] = value if had is None or isinstance(value, str) else had + value


def unit_of_work(kind: WorkKind, said: Callable[[R], WorkFacts | None]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function whose first argument is the table. `kind`: of its rows, unless it notes another one. `said`: what
    its result says of the work; None: there was nothing to do, and there is no row, unless `note_work` was called."""

    def recorded(do: Callable[P, R]) -> Callable[P, R]:
        @wraps(do)
        def run(*args: P.args, **options: P.kwargs) -> R:
            if options.get("dry_run") or _NOTED.get() is not None:
                return do(*args, **options)
            table: Any = args[0] if args else options["table"]
            noted, began_ms, began_s = _Noted(), clock_ms(), time.thread_time()
            token = _NOTED.set(noted)

            def leave(outcome: str, facts: WorkFacts, error: str = "") -> None:
                own = {name: value for name, value in asdict(facts).items() if value not in (None, "")}
                found = {"kind": kind, **noted.facts, **own, "outcome": outcome, "error": error, "started_ms": began_ms}
                found["core_seconds"] = noted.facts.get("core_seconds", 0.0) + time.thread_time() - began_s
                found["requests"] = requests.number
                _leave(without_snapshot(table.storage), found)

            try:
                with counted_requests() as requests:
                    done = do(*args, **options)
            except _REFUSED:
                raise
            except StoppedError as error:
                if noted.facts:
                    leave("stopped", WorkFacts(), error.what)
                raise
            except Exception as error:
                if noted.facts or requests.changes:  # else it was refused, or had changed nothing yet
                    leave("failed", WorkFacts(), str(error))
                raise
            else:
                if (facts := said(done)) is not None or noted.facts:
                    leave("done", facts or WorkFacts())
                return done
            finally:
                _NOTED.reset(token)

        return run

    return recorded


def _leave(storage: Storage, facts: Mapping[str, Any]) -> None:
    """Puts the row, unless the table is gone; an error is logged only."""
    try:
        work = WorkDone(
            id=uuid.uuid4().hex[:16],
            who=process_name(),
            ended_ms=max(clock_ms(), facts["started_ms"]),
            peak_memory=_peak_memory(),
            **{**facts, "core_seconds": round(facts["core_seconds"], 3)},
        )
        if work.outcome != "done" and storage.find(PROPERTIES) is None:
            return  # dropped: a row would make its folder again, which Hudi takes for a broken table
        add_spent(storage.base_path, work)
        put_work(storage, work)
    except Exception as error:  # the work is done: a row is not worth its failure
        if not isinstance(error, PhantombaseError):
            _log.exception("internal_error", table=storage.base_path)
        _log.warning("history_not_written", table=storage.base_path, error=str(error))


def _peak_memory() -> int:
    """Of this process, in bytes. Source: getrusage(2): kilobytes, on macOS bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


SPENT = ("seconds", "core_seconds", "bytes", "requests")
_spent: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys((*SPENT, "units"), 0.0))
_adding = Lock()


def add_spent(path: str, work: WorkDone) -> None:
    """Adds a unit of work to `spent_here`."""
    with _adding:
        total = _spent[path, work.kind]
        for name in SPENT:
            total[name] += getattr(work, name)
        total["units"] += 1


def spent_here() -> Mapping[tuple[str, str], Mapping[str, float]]:
    """By table and kind of work, what this process has spent since it began: `SPENT`, and the number of `units`."""
    with _adding:
        return {key: dict(total) for key, total in _spent.items()}


def spent_on(path: str) -> tuple[float, float]:
    """Core-seconds and bytes that this process has spent on a table since it began, or forgot it."""
    with _adding:
        ones = [total for key, total in _spent.items() if key[0] == path]
    return sum(one["core_seconds"] for one in ones), sum(one["bytes"] for one in ones)


def forget_spent(path: str) -> None:
    """The table is not served any more."""
    with _adding:
        for key in [one for one in _spent if one[0] == path]:
            del _spent[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMeans:
    """How files are written. `runner`: where, see `attempt.slice_task.Runner`; None: one at a time, in this process.
    `resumes`: pending clusterings are executed too, see `cluster_table`. `dry_run`: nothing is changed, and the answer
    is what a run would do."""

    output: OutputOptions = field(default_factory=OutputOptions)
    runner: Callable[..., Any] | None = None
    resumes: bool = True
    dry_run: bool = False

    def did(self, what: str) -> str:
        """The participle in an answer: "removed", of a dry run "would be removed"."""
        return f"would be {what}" if self.dry_run else what


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswer(Shown):
    """`what`: in one line, also why there was nothing to do. `instants`: the clean, clusterings, archived instants, or
    those that served the metadata table. `files`, `bytes`: files of the table, or of its metadata table, that were
    removed; bytes of those."""

    what: str
    instants: int = 0
    files: int = 0
    bytes: int = 0


class RunService(Protocol):
    """Does what is due on a table, and finishes what a dead process left; `options`: of the service."""

    def __call__(self, table: Table, options: Any, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
        """Errors of the tree: another service may run all the same."""


@spelled_class
class Limit:
    """A point in time at which work ends. Another thread may move it closer while the work runs.

    `seconds` from now; None: no limit so far. `clock`: seconds, monotonic; None: this machine's.
    UsageError: not a number of seconds."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] | None = None) -> None:
        is_number = isinstance(seconds, int | float) and 0 <= seconds < float("inf")
        if seconds is not None and not is_number:
            raise UsageError("not a time limit", expected="seconds, or None for no limit", found=repr(seconds))
        self._clock = clock or time.monotonic
        self._end = float("inf") if seconds is None else self._clock() + seconds
        self._closed = False
        self._why = "its time limit"

    def close(self, seconds: float, why: str = "its time limit") -> None:
        """No further instant may begin. The one in progress has at most `seconds` left, or less by an earlier limit."""
        self._closed, self._why = True, why
        self._end = min(self._end, self._clock() + seconds)

    @property
    def closed(self) -> bool:
        """Whether no instant may begin."""
        return self._closed or self._clock() >= self._end

    def check_begin(self) -> None:
        """StoppedError: no instant may begin."""
        if self.closed:
            raise self._stopped()

    def check(self) -> None:
        """StoppedError: the instant in progress has no time left."""
        if self._clock() >= self._end:
            raise self._stopped()

    def _stopped(self) -> StoppedError:
        return StoppedError(
            f"the work was stopped by {self._why}",
            todo="Nothing of this instant was published. Run again; finished file slices are adopted.",
        )
