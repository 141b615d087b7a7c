"""Back-pressure: a write that would make a file group's log too long waits until a compaction has shortened it.

    check     read the file groups to which the write appends: under a bucket index before it begins, and always
              after staging
    full      the transaction is rolled back: the write has no instant, holds no lock, and has no files in the table
    relieve   the write does what it may do itself: roll back dead writers, request a compaction, compact inline
    again     the write starts from the beginning once the log is short enough

The write waits outside its transaction. On version 6 no compaction can be planned while a delta commit is pending; on
any version no compaction can complete while a write is pending that began before its plan. So a write that waited
inside its transaction would wait for itself.
Under a bucket index the rows determine their file groups, so a full group is found before anything is staged. Under the
key index only the look-up determines them, with the transaction's timeline. The check after staging enforces the
limit: a write that has appended to the group since this write began is a conflict.

A write that requests no compactions waits only if the table shows that another process does (`shows_compaction`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import PressureError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.writer_gate import read_wanted
from phantombase.timeline.merge.slice_log import merged_files
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, is_replaced, latest_slice

from ..options import BackPressure, FullAction

_log = get_logger()
_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """A file group whose log has reached the limit. `plan`: the pending compaction that names it."""

    slice: FileSlice
    logs: int
    plan: str | None

    @property
    def key(self) -> GroupKey:
        return self.slice.key


def full_groups(groups: Iterable[FileGroup], limit: int) -> tuple[Full, ...]:
    """The full groups among the file groups to which a write appends, the longest log first (pure). All log files that
    a reader merges count. Until a pending compaction completes, these include the log files that it will merge."""
    full = [
        Full(slice=slice_, logs=len(slice_.logs), plan=group.pending_compaction)
        for group in groups
        if (slice_ := latest_slice(group)) is not None and len(slice_.logs) >= limit
    ]
    return tuple(sorted(full, key=lambda one: (-one.logs, one.key)))


def shows_compaction(timeline: Timeline) -> bool:
    """Whether the active timeline has a compaction (pure). In a MERGE_ON_READ table only these complete as `commit`."""
    return any(i.action in ("compaction", "logcompaction", "commit") for i in timeline.instants)


class Capacity:
    """Whether the file groups of one write have capacity for it. `waited_s`: seconds it has waited so far. `limit`: the
    number of log files at which a file group is full, None: never. `relieve`: called while the write waits; it does
    what this write may do about the full groups, and returns the result as text. Its argument: whether a full file
    group is in no pending plan. `compacts`: whether this write requests compactions at all."""

    def __init__(
        self, table: Table, options: BackPressure, limit: int | None, relieve: Callable[[bool], str], *, compacts: bool
    ) -> None:
        self._table = table
        self._options = options
        self._limit = limit
        self._relieve = relieve
        self._compacts = compacts
        self._full: tuple[Full, ...] = ()
        self.waited_s = 0.0

    def check(self, partitions: Iterable[str], appends_to: Callable[[FileGroup], bool]) -> None:
        """PressureError: in these partitions a file group that the write appends to is full."""
        self._full = self._find(partitions, appends_to)
        if self._full:
            raise self._error("")

    def _find(self, partitions: Iterable[str], appends_to: Callable[[FileGroup], bool]) -> tuple[Full, ...]:
        limit = self._limit
        if limit is None:
            return ()
        listed = sorted(set(partitions))
        full = full_groups((g for g in from_one_snapshot(lambda: self._groups(listed)) if appends_to(g)), limit)
        return from_one_snapshot(lambda: self._still_full(full, limit)) if full else ()

    def _still_full(self, full: tuple[Full, ...], limit: int) -> tuple[Full, ...]:
        """The groups that are full without the log files that a log compaction has replaced. Those files are kept until
        a cleaner removes their slice, and only the headers of their blocks show that they were replaced."""
        table = self._table.reload()
        timeline = table.load_timeline()
        rules = slice_rules(table, timeline, table.newest_schema(timeline))
        counted = [replace(one, logs=len(merged_files(table.storage, one.slice, rules))) for one in full]
        return tuple(one for one in counted if one.logs >= limit)

    def _groups(self, partitions: list[str]) -> list[FileGroup]:
        table = self._table.reload()
        timeline = table.load_timeline()
        facts = table.load_facts(timeline)
        found = prefetched(partitions, lambda partition: table.views.partition_groups(partition, timeline, facts))
        return [group for groups in found for group in groups if not is_replaced(group, facts)]

    def wait(self) -> None:
        """Waits for capacity, after `check` has found none. The caller is outside the transaction. Calls `relieve` at
        least once, unless no compactor is known. PressureError: the write must fail instead of waiting, its wait has
        timed out, or no process is known that compacts the table."""
        limit_s = self._options.wait_s if self._options.action is FullAction.WAIT else 0.0
        self._refuse_endless_wait()
        first, keys = self._full[0], {one.key for one in self._full}
        began = time.monotonic() - self.waited_s
        facts = {"table": self._table.storage.base_path, "file_group": "/".join(first.key), "logs": first.logs}
        _log.info("write_waits", **facts, limit=self._limit, compaction=first.plan)
        while True:
            why = self._relieve(any(one.plan is None for one in self._full))
            self._full = self._find((partition for partition, _ in keys), lambda group: group.key in keys)
            self.waited_s = time.monotonic() - began
            if not self._full:
                break
            left = limit_s - self.waited_s
            if left <= 0:
                raise self._error(why)
            time.sleep(min(_POLL_S, left))
        _log.info("write_resumes", **facts | {"waited_s": round(self.waited_s, 1)})

    def _refuse_endless_wait(self) -> None:
        """PressureError: no process is known that compacts the table."""
        # The record is read before the timeline: it is removed only after the requested plan is visible.
        wanted = read_wanted(self._table.storage, clock_ms())
        if not (self._compacts or wanted is not None or shows_compaction(self._table.reload().load_timeline())):
            raise self._error("no process is known to compact this table")

    def _error(self, why: str) -> PressureError:
        first, others = self._full[0], len(self._full) - 1
        found = [f"{first.logs}, and {others} more such file groups" if others else f"{first.logs}"]
        found.append("its compaction is pending" if first.plan else "no compaction of it is pending")
        found += [f"waited {self.waited_s:.1f} s"] if self.waited_s else []
        found += [why] if why else []
        return PressureError(
            "a file group has reached the limit of log files",
            path="/".join(part for part in (self._table.storage.base_path, *first.key) if part),
            instant=first.plan,
            expected=f"fewer than {self._limit}",
            found=", ".join(found),
            todo="Nothing of this write is visible. Compact the table (compactor-daemon run, or scheduled or inline "
            "compaction of this writer), or raise stop_trigger or wait_s.",
        )
