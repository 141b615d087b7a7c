"""Processes of Hudi that look at nobody else, as its single writers and 0.15's planner under OCC.

writer    takes its time from its own clock, outside of any lock, and finds no conflict with a plan; some of its writes
          are inserts, each with a base file in a file group of its own, and some take long
planner   plans while a write pends"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from phantombase.timeline.errors import ConflictError, PhantombaseError
from phantombase.timeline.format.file_name import BaseFileName
from phantombase.timeline.format.instant import Instant, State, format_time, later
from phantombase.timeline.locks.heartbeat import heartbeat
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Marker, MarkerKind, delete_markers, make_marker
from tests.world.simulation.rows import PARTITIONS, base_bytes, commit_bytes_of, metadata, new_group, place_log, stat

if TYPE_CHECKING:
    from tests.world.simulation.cast import Cast


class BlindWriter:
    """`same`: it may have chosen its time in the millisecond of a plan that was not visible then."""

    def __init__(self, cast: Cast, chance: random.Random, groups: Callable[[], str], *, same: bool) -> None:
        self._cast, self._chance, self._groups, self._same = cast, chance, groups, same
        self._last = ""

    def work(self, writes: int) -> None:
        """Writes a row some times."""
        cast = self._cast
        for _ in range(writes):
            cast.rest()
            cast.written += 1
            try:
                self._write(cast.table(), f"row-{cast.written}")
                cast.outcomes["Hudi wrote"] += 1
            except PhantombaseError as error:
                cast.outcomes[f"Hudi's write: {error.what}"] += 1

    def _write(self, table: Table, row: str) -> None:
        storage, (time, alike) = table.storage, self._time(table)
        with heartbeat(storage, time, 30.0):
            instant = Instant(requested_time=time, action="deltacommit", state=State.REQUESTED)
            for state in (State.REQUESTED, State.INFLIGHT):
                if not storage.put_if_absent(table.instant_path(instant.at(state)), b""):
                    raise ConflictError("Hudi: the instant is there", instant=time)
            if alike or self._chance.random() < 0.2:
                file_id, (path, data) = self._insert(table, time, row)
            else:
                file_id = self._groups()
                path, data = place_log(table, time, row, file_id)
            self._cast.world.wait(None, self._chance.choice((0, 0, 0.1, 1)))
            with self._cast.lock.hold("complete Hudi's write"):
                if storage.find(table.instant_path(instant.at(State.INFLIGHT))) is None:
                    raise ConflictError("Hudi: the inflight file is gone", instant=time)
                completion = self._clock() if table.layout.has_completion_times else None
                done = Instant(
                    requested_time=time, action="deltacommit", state=State.COMPLETED, completion_time=completion
                )
                commit = metadata([stat(file_id, path, len(data))], rows={row: file_id})
                storage.put_if_absent(table.instant_path(done), commit_bytes_of(table, commit))
            delete_markers(storage, time)

    def _insert(self, table: Table, time: str, row: str) -> tuple[str, tuple[str, bytes]]:
        file_id = new_group(PARTITIONS[0], f"{time[-9:]}i")
        name = BaseFileName(file_id=file_id, token="0-0-0", instant=time)
        make_marker(table.storage, time, Marker(partition=PARTITIONS[0], file=str(name), kind=MarkerKind.CREATE))
        table.storage.put_if_absent(f"{PARTITIONS[0]}/{name}", base_bytes([row]))
        return file_id, (f"{PARTITIONS[0]}/{name}", base_bytes([row]))

    def _time(self, table: Table) -> tuple[str, bool]:
        """By the clock; or that of a plan which became visible since, and whether it is one."""
        if self._same and self._chance.random() < 0.5:
            timeline = Table.on(self._cast.world.disk).load_timeline()
            plans = [i.requested_time for i in timeline.pending_compactions]
            if plans and plans[-1] > self._last and timeline.find(plans[-1], "deltacommit") is None:
                self._last = plans[-1]
                return plans[-1], True
        return self._clock(), False

    def _clock(self) -> str:
        now = format_time(self._cast.table().now())
        self._last = now if now > self._last else later(self._last, 1)
        return self._last
