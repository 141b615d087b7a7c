"""Writes of Hudi that replace file groups: insert overwrite, delete partition, clustering. All in the table lock.

A write that pends meanwhile finds the conflict when it completes.

overwrite    new file groups with new rows in the place of all file groups of a partition, also of planned ones
delete       the same without new ones
clustering   plan, visible; then the rows of a file group that no plan names in a new one"""

from __future__ import annotations

from collections.abc import Callable

from phantombase.timeline.codec.avro_container import write_record
from phantombase.timeline.format.file_name import BaseFileName
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import GROUPS_SCHEMA
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import Marker, MarkerKind, delete_markers, make_marker
from phantombase.timeline.view.view import FileGroup, TableView, is_replaced, latest_slice
from tests.world.simulation.rows import (
    base_bytes,
    commit_bytes_of,
    metadata,
    new_group,
    slice_rows,
    stat,
    visibility_of,
)
from tests.world.simulation.services import completed, next_instant


def overwrite(table: Table, lock: TableLock, partition: str, rows: list[str]) -> str | None:
    """Replaces the file groups of a partition by one of these rows, or by nothing; the instant, if there was any."""
    with lock.hold("overwrite"):
        view = table.load_view()
        old = [g for g in _living(view) if g.partition == partition]
        if not old:
            return None
        return _replace(table, "replacecommit", old, rows, "INSERT_OVERWRITE" if rows else "DELETE_PARTITION", b"")


def cluster(table: Table, lock: TableLock, choose: Callable[[list[FileGroup]], FileGroup]) -> str | None:
    """Rewrites a file group; the instant, if there was one to be rewritten."""
    with lock.hold("cluster"):
        view = table.load_view()
        busy = {*view.facts.pending_plans, *busy_file_groups(table.with_timeline(view.timeline)).groups}
        free = [g for g in _living(view) if g.key not in busy]
        if not free:
            return None
        group = choose(free)
        slice_ = latest_slice(group)
        assert slice_ is not None
        base, logs, _ = slice_rows(table.storage, slice_, visibility_of(table, view.timeline))
        sliced = {"partitionPath": group.partition, "fileId": group.file_id}
        plan = write_record({"clusteringPlan": {"inputGroups": [{"slices": [sliced]}]}}, GROUPS_SCHEMA)
        action = "clustering" if table.layout.has_completion_times else "replacecommit"
        return _replace(table, action, [group], [*base, *logs], "CLUSTER", plan)


def _living(view: TableView) -> list[FileGroup]:
    return [g for g in view.groups if g.slices and not is_replaced(g, view.facts)]


def _replace(table: Table, action: str, old: list[FileGroup], rows: list[str], operation: str, plan: bytes) -> str:
    storage = table.storage
    requested = Instant(requested_time=next_instant(table), action=action, state=State.REQUESTED)
    time, partition = requested.requested_time, old[0].partition
    storage.put_if_absent(table.instant_path(requested), plan)
    storage.put_if_absent(table.instant_path(requested.at(State.INFLIGHT)), b"")
    stats, homes = [], {}
    if rows:
        file_id = new_group(partition, time[-9:])
        name = BaseFileName(file_id=file_id, token="0-0-0", instant=time)
        make_marker(storage, time, Marker(partition=partition, file=str(name), kind=MarkerKind.CREATE))
        storage.put_if_absent(f"{partition}/{name}", base_bytes(rows))
        stats.append(stat(file_id, f"{partition}/{name}", len(base_bytes(rows))))
        homes = dict.fromkeys(rows, file_id)
    commit = metadata(stats, rows=homes, operation=operation, replaced=[g.file_id for g in old])
    done = completed(table, requested, "replacecommit")
    storage.put_if_absent(table.instant_path(done), commit_bytes_of(table, commit))
    delete_markers(storage, time)
    return time
