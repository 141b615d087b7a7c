"""Hudi executors at an instant: whether one is alive (docs/internals/protocol.md: Hudi executors).

Hudi 1.2+ in a multi-writer mode refreshes `.hoodie/.heartbeat/<C>` while it works, and respects phantombase's
heartbeat. Older releases and single writers show only their inflight file, markers and data files: such an executor
counts as alive until the youngest of these files is older than a grace time. Phantombase never puts an inflight file,
so an inflight file is always Hudi's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from phantombase.timeline.errors import AttemptDeadError, ConflictError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.locks.heartbeat import read_heartbeat
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import marker_folder
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table

from ..options import AttemptOptions
from .outcome import declare_dead, refuse_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTrace:
    """What a Hudi executor left at an instant. Times in milliseconds since the epoch, None for what is absent.
    `heartbeat_ms` is None also for phantombase's heartbeat."""

    inflight_ms: int | None
    heartbeat_ms: int | None
    youngest_ms: int | None

    def is_live(self, now_ms: int, options: AttemptOptions) -> bool:
        """Whether the executor may still work."""
        if self.heartbeat_ms is not None and now_ms - self.heartbeat_ms < options.heartbeat_expiry_s * 1000:
            return True
        if self.inflight_ms is None or self.heartbeat_ms is not None:
            return False
        return now_ms - (self.youngest_ms or self.inflight_ms) < options.foreign_grace_s * 1000


def inflight_path(table: Table, instant: str, requested: Instant | None = None) -> str:
    """The inflight file of a compaction or log compaction, which only Hudi makes. `requested`: of a clustering."""
    return table.instant_path((requested or table.files.requested_merge(instant)).at(State.INFLIGHT))


def foreign_trace(
    table: Table, instant: str, partitions: Iterable[str], requested: Instant | None = None
) -> ForeignTrace:
    """What shows a Hudi executor at an instant. `partitions`: those that its plan writes to. `requested`: see above."""
    storage = table.storage
    requested = requested or table.files.requested_merge(instant)
    inflight = storage.find(inflight_path(table, instant, requested))
    merges_logs = requested.action == "logcompaction"
    beat = read_heartbeat(storage, instant)
    times = [e.modified_ms for e in (inflight,) if e is not None]
    if inflight is not None:
        times += [e.modified_ms for _, e in storage.list_below(marker_folder(instant))]
        # A log that carries a compaction's instant belongs to a write, see `retire`.
        logs_too = merges_logs and table.layout.slicing is Slicing.BY_COMPLETION_TIME
        marks = (f"_{instant}.parquet", f"_{instant}.log.") if logs_too else (f"_{instant}.parquet",)
        for partition in partitions:
            entries = listed_if_there(storage, partition) or ()
            times += [e.modified_ms for e in entries if any(m in e.name for m in marks)]
    return ForeignTrace(
        inflight_ms=inflight.modified_ms if inflight else None,
        heartbeat_ms=beat.beat_ms if beat is not None and not beat.ours else None,
        youngest_ms=max(times, default=None),
    )


def is_live(trace: ForeignTrace, table: Table, options: AttemptOptions) -> bool:
    """Whether a Hudi executor may still be at work, by the clock of the table's storage, which dates its files."""
    if trace.inflight_ms is None and trace.heartbeat_ms is None:
        return False
    return trace.is_live(storage_ms(table.storage), options)


def refuse_live(trace: ForeignTrace, table: Table, instant: str, options: AttemptOptions) -> None:
    """ConflictError while a Hudi executor may be at work on the instant."""
    if is_live(trace, table, options):
        raise ConflictError(
            "a Hudi compactor is at work on this instant",
            path=table.storage.base_path,
            instant=instant,
            expected=f"no heartbeat for {options.heartbeat_expiry_s:g} s, silence for {options.foreign_grace_s:g} s",
            found="inflight file" if trace.inflight_ms is not None else "fresh heartbeat",
            todo="Wait until it ends, or shorten --foreign-grace if you know that it is dead.",
        )


class ForeignWatch:
    """Detects that a Hudi executor touches an instant while an attempt works on it. Hudi before 1.2, and its single
    writers, check for no other compactor: they put their inflight file and begin. `trace`: what was there when the
    attempt was opened. `every_s`: the shortest time between two checks."""

    def __init__(
        self,
        table: Table,
        instant: str,
        attempt: int,
        trace: ForeignTrace,
        every_s: float = 0.0,
        clock: Callable[[], float] | None = None,
        requested: Instant | None = None,
    ) -> None:
        self._table = table
        self._requested = requested
        self._instant = instant
        self._attempt = attempt
        self._inflight_ms = trace.inflight_ms
        self._every_s = every_s
        self._clock = clock or time.monotonic
        self._next = self._clock() + every_s

    def check(self) -> None:
        """As `check_now`, if the last check is `every_s` ago. AttemptDeadError: also if a person cancelled the work."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._every_s
            refuse_ended(self._table.storage, self._instant, self._attempt)
            # On an object store a look-up takes two requests for each name; one listing answers for all.
            self._compare(
                self._table if self._table.storage.is_file_system else self._table.snapshot(same_settings=True)
            )

    def check_now(self) -> None:
        """AttemptDeadError: a Hudi executor touched the instant. The attempt is declared dead first."""
        self._compare(self._table)

    def _compare(self, table: Table) -> None:
        path = inflight_path(table, self._instant, self._requested)
        entry = table.storage.find(path)
        now_ms = entry.modified_ms if entry is not None else None
        if now_ms == self._inflight_ms:
            return
        declare_dead(self._table.storage, self._instant, "a Hudi compactor touched the instant")
        raise AttemptDeadError(
            "a Hudi compactor touched this instant while phantombase was at work on it",
            path=path,
            instant=self._instant,
            expected=f"its inflight file as attempt {self._attempt} found it: {_shown(self._inflight_ms)}",
            found=_shown(now_ms),
            todo="This attempt stopped and published nothing. Run one kind of compactor per table: Hudi before 1.2, or "
            "without a lock provider, checks for no other compactor.",
        )


def _shown(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "none"
    return f"one made {datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec='milliseconds')}"
