"""Hudi's own cleaner and archiver, by the rules of 0.15 and 1.2, one storage call after the other.

clean     plan visible in the lock; old slices and replaced file groups go outside of it; completed in the lock
archive   all of it in the lock: the oldest completed instants into the history, then their files, completed ones last
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.format.instant import Instant, State, later
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.contract import list_of_table
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, TableView
from tests.support.builders import avro_block

_ENTRY = json.dumps(
    {
        "type": "record",
        "name": "HoodieArchivedMetaEntry",
        "fields": [{"name": n, "type": "string"} for n in ("commitTime", "actionType", "actionState")],
    }
)


class Policy(Enum):
    """What a cleaner keeps."""

    COMMITS = "the last commits"
    HOURS = "a time"
    VERSIONS = "the newest slices"


@dataclass
class Services:
    """What Hudi's services know of each other. `retained`: see `Policy`; commits, milliseconds, slices. `ectr`: the
    earliest commit to retain of the last clean, None before the first. `saved`: files of a savepoint."""

    lock: TableLock
    ectr: str | None = None
    saved: frozenset[str] = field(default_factory=frozenset)

    def clean(self, table: Table, policy: Policy, retained: int) -> int:
        """One clean; how many files went."""
        with self.lock.hold("plan a clean"):
            timeline = table.load_timeline()
            for left in timeline.pending("clean"):
                _complete(table, left)
            view = table.load_view()
            ectr = _earliest_retained(table, view.timeline, policy, retained)
            doomed = sorted(set(self._doomed(table, view, policy, retained, ectr)) - self.saved)
            if not doomed:
                return 0
            instant = Instant(requested_time=next_instant(table), action="clean", state=State.REQUESTED)
            table.storage.put_if_absent(table.instant_path(instant), b"")
        table.storage.put_if_absent(table.instant_path(instant.at(State.INFLIGHT)), b"")
        for path in doomed:
            table.storage.delete(path)
        with self.lock.hold("complete a clean"):
            _complete(table, instant)
        self.ectr = ectr if policy is not Policy.VERSIONS else instant.requested_time
        return len(doomed)

    def _doomed(self, table: Table, view: TableView, policy: Policy, retained: int, ectr: str) -> Iterator[str]:
        planned = dict(_planned_bases(table, view.timeline))
        for group in view.groups:
            replaced = view.facts.replaced.get(group.key)
            if replaced is not None:
                if policy is Policy.VERSIONS or replaced < ectr:
                    yield from (p for s in group.slices for p in _paths(s))
                continue
            for slice_ in _old_slices(group, policy, retained, ectr):
                if slice_.base_instant < planned.get(group.key, "9"):
                    yield from _paths(slice_)

    def archive(self, table: Table, keep: int) -> int:
        """One archiving, all but `keep` completed writes at most; how many instants went."""
        with self.lock.hold("archive"):
            timeline = table.load_timeline()
            doomed = self._archivable(timeline, keep, _orphan(table, timeline))
            if not doomed:
                return 0
            if table.layout.has_completion_times:
                _into_history(table, doomed)
            else:
                _into_archive(table, doomed)
            folder = table.config.timeline_folder
            files = [(i, e.name) for e in table.storage.list(folder) if (i := table.layout.parse(e.name)) is not None]
            times = {i.identity for i in doomed}
            old = [(i, n) for i, n in files if i.identity in times]
            for _, name in sorted(old, key=lambda one: (one[0].completed, one[0].requested_time)):
                table.storage.delete(f"{folder}/{name}")
            return len(doomed)

    def _archivable(self, timeline: Timeline, keep: int, orphan: str) -> list[Instant]:
        """The oldest completed writes, up to what pends, is saved, is an `orphan`, or replaced files that may still
        lie there."""
        writes = [i for i in timeline.instants if i.is_write and i.completed]
        pending = min((i.requested_time for i in timeline.instants if i.is_write and not i.completed), default="9")
        before = [i.requested_time for i in writes if i.requested_time < min(pending, orphan)]
        bounds = [before[-1] if before else ""]  # the last one before what pends stays
        bounds += [i.requested_time for i in timeline.instants if i.action == "savepoint"]
        ectr = self.ectr or ""
        bounds += [i.requested_time for i in writes if i.family == "replacecommit" and i.requested_time >= ectr]
        doomed = [i for i in writes[: max(0, len(writes) - keep)] if i.requested_time < min(bounds)]
        last = max((i.requested_time for i in doomed), default="")
        others = [i for i in timeline.instants if not i.is_write and i.completed and i.requested_time < last]
        return sorted((*doomed, *others), key=lambda i: i.requested_time)


def next_instant(table: Table) -> str:
    """A time nobody has used; under the lock."""
    timeline = table.load_timeline()
    return from_one_snapshot(lambda: table.with_timeline(timeline).next_time())


def completed(table: Table, instant: Instant, action: str | None = None) -> Instant:
    """An instant as it completes now; under the lock."""
    time = next_instant(table) if table.layout.has_completion_times else None
    return replace(instant.at(State.COMPLETED), action=action or instant.action, completion_time=time)


def _complete(table: Table, clean: Instant) -> None:
    table.storage.put_if_absent(table.instant_path(completed(table, clean)), b"")


# --- cleaning ------------------------------------------------------------------------------------------------------


def _earliest_retained(table: Table, timeline: Timeline, policy: Policy, retained: int) -> str:
    writes = [i.requested_time for i in timeline.instants if i.is_write and i.completed]
    if policy is Policy.VERSIONS:
        return ""
    if policy is Policy.HOURS:
        since = later_than(table, -retained)
        return min((t for t in writes if t >= since), default=writes[-1] if writes else "")
    if len(writes) < retained:
        return ""
    pending = min((i.requested_time for i in timeline.instants if i.is_write and not i.completed), default="9")
    return min(writes[-retained], max((t for t in writes if t < pending), default=""))


def later_than(table: Table, milliseconds: int) -> str:
    """An instant time so far from the table's clock."""
    return later(next_instant(table), milliseconds)


def _old_slices(group: FileGroup, policy: Policy, retained: int, ectr: str) -> list[FileSlice]:
    newest_first = list(reversed(group.slices))
    if policy is Policy.VERSIONS:
        return newest_first[max(1, retained) :]
    before = [s for s in newest_first if s.base_instant < ectr]
    return [s for s in before[1:] if s is not newest_first[0]]


def _planned_bases(table: Table, timeline: Timeline) -> Iterator[tuple[GroupKey, str]]:
    """Of each file group in a pending plan the base instant of the slice that is kept for it."""
    for instant in timeline.pending_merges:
        for operation in table.compaction_plan(instant.requested_time).operations:
            yield (operation.partition_path, operation.file_id), operation.base_instant_time or ""


def _paths(slice_: FileSlice) -> Iterator[str]:
    if slice_.base is not None:
        yield slice_.base.path
    yield from (log.path for log in slice_.logs)


# --- archiving -----------------------------------------------------------------------------------------------------


def _orphan(table: Table, timeline: Timeline) -> str:
    """The oldest slice of no write that counts: its plan was restored away (version 6). Hudi leaves the logs of rolled
    back writes there. Once its archiver has passed the plan's instant the slice counts as committed and hides all that
    lies below, until the next compaction: nothing that other processes could help."""
    if table.layout.has_completion_times:
        return "9"
    known = {i.requested_time for i in timeline.instants}
    named = {n.instant for p in table.partitions() for _, n in data_files(table, p) if n.instant > timeline.start}
    return min(named - known, default="9")


def _into_archive(table: Table, doomed: list[Instant]) -> None:
    """Version 6: a log file of Avro blocks more."""
    rows = [
        {"commitTime": i.requested_time, "actionType": i.action, "actionState": state}
        for i in doomed
        for state in ("REQUESTED", "INFLIGHT", "COMPLETED")
    ]
    folder, number = table.config.history_folder, 1
    while not table.storage.put_if_absent(
        f"{folder}/.commits_.archive.{number}_1-0-1", avro_block(doomed[-1].requested_time, _ENTRY, rows)
    ):
        number += 1


def _into_history(table: Table, doomed: list[Instant]) -> None:
    """From version 8 on: a Parquet file, a manifest with one file more, and the number of that manifest."""
    folder, storage = table.config.history_folder, table.storage
    names = {e.name for e in list_of_table(storage, folder)}
    numbers = [int(n.removeprefix("manifest_")) for n in names if n.startswith("manifest_")]
    current = max(numbers, default=0)
    known = json.loads(storage.read(f"{folder}/manifest_{current}"))["files"] if current else []
    name = f"{doomed[0].requested_time}_{doomed[-1].requested_time}_0.parquet"
    if name not in {f["fileName"] for f in known}:
        storage.delete(f"{folder}/{name}")
        data = _history(table, doomed)
        storage.put_if_absent(f"{folder}/{name}", data)
        known = [*known, {"fileName": name, "fileLen": len(data)}]
        storage.put_if_absent(f"{folder}/manifest_{current + 1}", json.dumps({"files": known}).encode())
        current += 1
    storage.delete(f"{folder}/_version_")
    storage.put_if_absent(f"{folder}/_version_", str(current).encode())


def _history(table: Table, doomed: list[Instant]) -> bytes:
    stream = io.BytesIO()
    columns = {
        "instantTime": [i.requested_time for i in doomed],
        "completionTime": [i.completion_time or i.requested_time for i in doomed],
        "action": [i.family for i in doomed],
        "metadata": [table.storage.read(table.instant_path(i)) if i.is_write else None for i in doomed],
    }
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()
