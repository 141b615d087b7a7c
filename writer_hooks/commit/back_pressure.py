"""Back-pressure: a write that would make a file group's log too long waits until a compaction has made room.

    look      the file groups the write appends to: under a bucket index before it begins, always once it is staged
    full      the transaction is rolled back: nothing of the write is on the timeline, in the lock, or in the table
    relieve   what this write may do about it itself: roll dead writers back, request a compaction, compact inline
    again     from the beginning, once there is room

It waits outside its transaction because on version 6 nobody can plan while a delta commit pends, and no compaction
ends on any version while a write that began before its plan pends: a write that waited inside would wait for itself.
Under a bucket index the rows tell their file groups, and a full one is seen before anything is staged. Under the key
index only the look-up tells them, under the transaction's timeline. The look after staging is the one the limit rests
on: whoever appended to the group since the write began is a conflict.

A write that has nothing to do with compaction waits only where somebody is known who has (`somebody_compacts`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.errors import PressureError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.writer_gate import read_wanted
from phantombase.timeline.read.slice_log import merged_files
from phantombase.timeline.read.table_read import slice_rules
from phantombase.timeline.storage.prefetch import prefetched
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, is_replaced, latest_slice

from ..options import BackPressure, FullAction

_log = structlog.get_logger()

_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """A file group without room for one more log file; `plan`: the pending compaction it is in."""

    slice: FileSlice
    logs: int
    plan: str | None

    @property
    def key(self) -> GroupKey:
        """The file group."""
        return self.slice.key


def full_groups(groups: Iterable[FileGroup], limit: int) -> tuple[Full, ...]:
    """Those of the file groups a write appends to that would go beyond the limit, the longest log first (pure).

    Counted are the log files a reader merges: until a pending compaction is completed, those it will merge too.
    """
    full = [
        Full(slice=slice_, logs=len(slice_.logs), plan=group.pending_compaction)
        for group in groups
        if (slice_ := latest_slice(group)) is not None and len(slice_.logs) >= limit
    ]
    return tuple(sorted(full, key=lambda one: (-one.logs, one.key)))


def somebody_compacts(timeline: Timeline) -> bool:
    """Whether the active timeline shows that anybody compacts the table: such an instant, pending or completed (pure).

    In a MERGE_ON_READ table nothing but a compaction completes as `commit`.
    """
    return any(i.action in ("compaction", "logcompaction", "commit") for i in timeline.instants)


class Room:
    """Whether there is room for one write. `waited_s`: seconds it has waited so far.

    `limit`: log files at which a file group is full, None: never. `relieve`: called while the write waits; does what
    this write may do, and says what came of it. It is told whether a full file group is in no pending plan.
    `compacts`: whether this write requests compactions at all.
    """

    def __init__(
        self,
        table: Table,
        options: BackPressure,
        limit: int | None,
        relieve: Callable[[bool], str],
        *,
        compacts: bool,
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
        full = full_groups((g for g in consistent(lambda: self._groups(listed)) if appends_to(g)), limit)
        return consistent(lambda: self._still_full(full, limit)) if full else ()

    def _still_full(self, full: tuple[Full, ...], limit: int) -> tuple[Full, ...]:
        """Without the log files that a log compaction stands for: they lie there until a cleaner takes their slice, and
        only the headers of their blocks tell."""
        table = self._table.reload()
        timeline = table.load_timeline()
        rules = slice_rules(table, timeline, table.schema(table.schema_text(timeline)))
        counted = [replace(one, logs=len(merged_files(table.storage, one.slice, rules))) for one in full]
        return tuple(one for one in counted if one.logs >= limit)

    def _groups(self, partitions: list[str]) -> list[FileGroup]:
        table = self._table.reload()
        timeline = table.load_timeline()
        facts = table.load_facts(timeline)
        found = prefetched(partitions, lambda partition: table.views.partition_groups(partition, timeline, facts))
        return [group for groups in found for group in groups if not is_replaced(group, facts)]

    def wait(self) -> None:
        """After `check` has found no room, outside the transaction: returns when there is.

        What this write may do about it is done in any case. PressureError: the write is to fail, its time is up, or
        nobody is known who would compact.
        """
        limit_s = self._options.wait_s if self._options.action is FullAction.WAIT else 0.0
        self._check_anybody()
        first, keys = self._full[0], {one.key for one in self._full}
        began = time.monotonic() - self.waited_s
        said = {"table": self._table.storage.base_path, "file_group": "/".join(first.key), "logs": first.logs}
        _log.info("write_waits", **said, limit=self._limit, compaction=first.plan)
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
        _log.info("write_goes_on", **said | {"waited_s": round(self.waited_s, 1)})

    def _check_anybody(self) -> None:
        """PressureError instead of a wait for nothing."""
        # The record first: it goes when the plan that it asked for can be seen.
        wanted = read_wanted(self._table.storage, clock_ms())
        if not (self._compacts or wanted is not None or somebody_compacts(self._table.reload().load_timeline())):
            raise self._error("nobody is known to compact this table")

    def _error(self, why: str) -> PressureError:
        first, others = self._full[0], len(self._full) - 1
        found = [f"{first.logs}, and {others} more such file groups" if others else f"{first.logs}"]
        found.append("its compaction is pending" if first.plan else "no compaction of it is pending")
        found += [f"waited {self.waited_s:.1f} s"] if self.waited_s else []
        found += [why] if why else []
        return PressureError(
            "a file group has as many log files as a write may leave",
            path="/".join(part for part in (self._table.storage.base_path, *first.key) if part),
            instant=first.plan,
            expected=f"fewer than {self._limit}",
            found=", ".join(found),
            todo="Nothing of this write is visible. Let somebody compact the table (compactor-daemon run, or schedule= "
            "or inline compaction of this writer), or raise stop_trigger or wait_s.",
        )
