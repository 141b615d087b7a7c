"""What a person does to a table with Hudi's commands: savepoint, restore, rollback of the newest write.

restore     in the lock, writers stopped: later instants are undone, newest first. What is undone vanishes from the
            timeline first, then its files: those that are there when they are listed. Of a plan that nobody of Hudi has
            begun only the plan goes."""

from __future__ import annotations

from dataclasses import dataclass

from phantombase.timeline.codec.avro_container import STRING, array_of, map_of, record_of, root_record, write_record
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_metadata, encode_rollback_plan
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files, delete_markers, revoke, traces_of
from tests.world.simulation.rows import FIRST
from tests.world.simulation.services import Services, completed, next_instant

_RESTORED = root_record(
    "HoodieRestoreMetadata",
    {
        "name": "hoodieRestoreMetadata",
        "type": map_of(
            array_of(
                ["null", record_of("HoodieRollbackMetadata", {"name": "commitsRollback", "type": array_of(STRING)})]
            )
        ),
    },
)


@dataclass
class Operator:
    """Does it. `saved`: the savepoint, None without one."""

    lock: TableLock
    services: Services
    saved: str | None = None

    def savepoint(self, table: Table) -> None:
        """Saves the last completed write: its files stay, and archiving stops before it."""
        with self.lock.hold("savepoint"):
            view = table.load_view()
            writes = [i.requested_time for i in view.timeline.instants if i.is_write and i.completed]
            pending = min((i.requested_time for i in view.timeline.instants if not i.completed), default="9")
            if not writes or writes[-1] > pending or self.saved is not None:  # Hudi refuses what a clean has passed
                return
            self.saved = writes[-1]
            slices = [s for g in view.groups for s in g.slices]
            files = {log.path for s in slices for log in s.logs} | {s.base.path for s in slices if s.base is not None}
            self.services.saved = frozenset(files)
            for state in (State.INFLIGHT, State.COMPLETED):
                instant = Instant(requested_time=self.saved, action="savepoint", state=state)
                done = completed(table, instant) if state is State.COMPLETED else instant
                table.storage.put_if_absent(table.instant_path(done), b"")

    def forget(self, table: Table) -> None:
        """Deletes the savepoint."""
        with self.lock.hold("delete a savepoint"):
            folder = table.config.timeline_folder
            for entry in table.storage.list(folder):
                instant = table.layout.parse(entry.name)
                if instant is not None and instant.action == "savepoint":
                    table.storage.delete(f"{folder}/{entry.name}")
        self.services.saved, self.saved = frozenset(), None
        self.services.ectr = None  # what was saved has not been cleaned yet

    def restore(self, table: Table) -> int:
        """To the savepoint; how many instants were undone."""
        saved = self.saved
        if saved is None:
            return 0
        with self.lock.hold("restore"):
            restore = Instant(requested_time=next_instant(table), action="restore", state=State.REQUESTED)
            for state in (State.REQUESTED, State.INFLIGHT):
                table.storage.put_if_absent(table.instant_path(restore.at(state)), b"")
            later = [i for i in table.load_timeline().instants if i.is_write and i.requested_time > saved]
            for instant in reversed(later):
                self._undo(table, instant)
            undone = {i.requested_time: [{"commitsRollback": [i.requested_time]}] for i in later}
            done = completed(table, restore)
            table.storage.put_if_absent(
                table.instant_path(done), write_record({"hoodieRestoreMetadata": undone}, _RESTORED)
            )
        self.forget(table)
        return len(later)

    def roll_back_newest(self, table: Table) -> str | None:
        """The newest write, if it is a delta commit that completed and nothing completed after it; its instant."""
        with self.lock.hold("roll back"):
            writes = [i for i in table.load_timeline().instants if i.is_write]
            last = max((i for i in writes if i.completed), key=lambda i: i.requested_time, default=None)
            pending = [i for i in writes if not i.completed and i.action != "compaction"]
            if last is None or last.action != "deltacommit" or pending or last.requested_time in (self.saved, FIRST):
                return None
            if sum(i.completed for i in writes) == 1:  # without an active write Hudi takes nothing for archived
                return None
            rollback = Instant(requested_time=next_instant(table), action="rollback", state=State.REQUESTED)
            plan = traces_of(table, last.requested_time, last.action, scan=True)
            base = table.storage.base_path
            table.storage.put_if_absent(table.instant_path(rollback), encode_rollback_plan(plan, base))
            table.storage.put_if_absent(table.instant_path(rollback.at(State.INFLIGHT)), b"")
            self._undo(table, last)
            data = encode_rollback_metadata(plan, rollback.requested_time, 0, {}, base)
            table.storage.put_if_absent(table.instant_path(completed(table, rollback)), data)
            return last.requested_time

    def _undo(self, table: Table, instant: Instant) -> None:
        """From a completed one first its completed file goes, so that readers leave its files alone."""
        storage, time = table.storage, instant.requested_time
        if instant.completed:
            storage.delete(table.instant_path(instant))
        pending = _files(table, time, instant.family)
        if any(i.state is State.INFLIGHT for i in pending) or instant.completed:
            if instant.family == "commit":
                _remove(table, _compacted(table, time))
            else:
                _remove(table, traces_of(table, time, instant.action, scan=True))
        for one in sorted(pending, key=lambda i: -i.state):
            storage.delete(table.instant_path(one))
        delete_markers(storage, time)
        if instant.action == "deltacommit":
            storage.delete(heartbeat_path(time))


def _files(table: Table, time: str, family: str) -> list[Instant]:
    parsed = [table.layout.parse(e.name) for e in table.storage.list(table.config.timeline_folder)]
    return [i for i in parsed if i is not None and i.identity == (time, family)]


def _compacted(table: Table, time: str) -> RollbackPlan:
    """The base files of a compaction, and the logs on its slice, all by their names."""
    found = [(p, e.name) for p in table.partitions() for e, n in data_files(table, p) if n.instant == time]
    plan = table.compaction_plan(time)
    groups = {(o.partition_path, o.file_id) for o in plan.operations}
    doomed = tuple((p, n) for p, n in found if (name := parse_data_file(n)) and (p, name.file_id) in groups)
    return RollbackPlan(target=time, action="commit", doomed=doomed)


def _remove(table: Table, plan: RollbackPlan) -> None:
    for partition, name in plan.doomed:
        table.storage.delete(join(partition, name))
    for slice_ in plan.revoked:
        revoke(table, slice_, plan.target)
