"""Plans of log compactions whose log files are no neighbours, or may be none."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.records.failures import Weight, failure_of, weigh
from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.errors import BarrierError, StalePlanError
from phantombase.timeline.format.instant import later
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import open_table, run_all
from tests.support.dead_writer import pending_write
from tests.support.log_compactions import longest, request
from tests.support.moved_tables import upsert
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table


def four_logs(path: Path) -> tuple[Path, list[str]]:
    """A file group with a base file and four logs; the instants of its writes."""
    written_table(path, 9, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    for n in range(4):
        upsert(LocalStorage(str(path)), rows((0, 2 + n, 2.0)))
    return path, [i.requested_time for i in open_table(path).load_timeline().completed]


@pytest.mark.parametrize("writing", [True, False])
def test_files_that_are_no_neighbours_are_reported_as_what_they_are(writing: bool, tmp_path: Path) -> None:
    """No repetition mends it, nor the end of a write: parked, with the command that ends it."""
    path, writes = four_logs(tmp_path / "t")
    instant = request(open_table(path), lambda runs: [longest(runs)[0], longest(runs)[2]])
    if writing:
        pending_write(path, 9, later(writes[2], 1))
    before = read_rows(path)
    with pytest.raises(StalePlanError, match=f"unschedule TABLE {instant}") as error:
        run_all(open_table(path))
    assert failure_of(error.value, "d", 0).park
    unschedule(open_table(path), instant, ProcessLock("unschedule"))
    assert open_table(path).load_timeline().pending_merges == ()
    assert read_rows(path) == before


def test_a_pending_write_that_may_come_between_is_waited_for(tmp_path: Path) -> None:
    """It is none of the plan's faults: when it is rolled back the log compaction is done."""
    path, writes = four_logs(tmp_path / "t")
    instant = request(open_table(path))
    before = read_rows(path)
    write = pending_write(path, 9, later(writes[2], 1))
    with pytest.raises(BarrierError, match=later(writes[2], 1)) as error:
        run_all(open_table(path))
    assert weigh(error.value) is Weight.NOTHING
    write.unlink()
    write.with_name(write.name.replace("inflight", "requested")).unlink()
    run_all(open_table(path))
    assert open_table(path).files.completed_commits(instant)
    assert read_rows(path) == before
