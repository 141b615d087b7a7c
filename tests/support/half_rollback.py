"""What a Hudi leaves that dies while it rolls a completed write back, before it has hidden the write."""

from __future__ import annotations

import io
from pathlib import Path

import fastavro

from phantombase.timeline.format.instant import State
from phantombase.timeline.format.rollback_plan import encode_rollback_plan
from phantombase.timeline.recovery.undo import traces_of_all
from phantombase.timeline.table.pending_rollbacks import PendingRollback
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden


def request_rollback(path: Path) -> PendingRollback:
    """Of the newest delta commit of a table."""
    table = open_table(path)
    timeline = table.load_timeline()
    write = (timeline.latest_completed, "deltacommit")
    plan = traces_of_all(table, timeline, [write])[write]
    rollback = PendingRollback(instant=table.next_time(timeline), plan=plan)
    content = encode_rollback_plan(plan, table.storage.base_path)
    table.storage.put_if_absent(table.instant_path(rollback.at(State.REQUESTED)), content)
    return rollback


def pending_rollback(path: Path, tmp_path: Path, target: str) -> None:
    """A rollback that Hudi has requested, of version 9."""
    donor = unzip_golden("v9_rolled_back", tmp_path / "donor")
    (plan,) = (donor / ".hoodie" / "timeline").glob("*.rollback.requested")
    data = plan.read_bytes()
    (record,) = fastavro.reader(io.BytesIO(data))
    of = str(record["instantToRollback"]["commitTime"])  # type: ignore[index, call-overload]
    file = path / ".hoodie" / "timeline" / "20990101000000000.rollback.requested"
    file.write_bytes(data.replace(of.encode(), target.encode()))
