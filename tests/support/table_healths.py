"""Tables that are as a page may show them."""

from __future__ import annotations

from pathlib import Path

from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import run_all
from tests.support.golden_tables import unzip_golden


def tables_of_every_health(folder: Path) -> list[Path]:
    """One late, one compacted, one broken, one stuck since its plan cannot be read, and no table."""
    late, done = unzip_golden("v9_pending", folder / "1"), unzip_golden("v9_two_pending", folder / "2")
    run_all(Table.open(str(done)))
    broken = unzip_golden("v9_compacted_cleaned", folder / "3")
    max(broken.glob("*/*.parquet"), key=lambda p: p.name.rpartition("_")[2]).unlink()
    stuck = unzip_golden("v9_plain", folder / "4")
    scheduled = schedule_compaction(Table.open(str(stuck)), ProcessLock("stuck"), PLAN_NOW)
    plan = next(stuck.glob(f".hoodie/timeline/{scheduled.instant}.compaction.requested"))
    plan.write_bytes(b"")
    return [late, done, broken, stuck, folder / "none"]
