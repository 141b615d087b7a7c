"""A Hudi compactor that asks nobody is seen before our decision: while slices are staged, and in the lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor_daemon.compactor import compact_instant, pending_instants
from compactor_daemon.execute import LocalRunner, Progress
from compactor_daemon.foreign import ForeignTrace, ForeignWatch, inflight_path
from compactor_daemon.options import AttemptOptions
from compactor_daemon.records import DEAD, SliceDone, read_fate
from compactor_daemon.slice_task import SliceTask
from tests.attempts import OUTPUT, base_files, check_whole, open_table, run_all
from tests.faults import Call, HookedStorage
from tests.golden_tables import unzip_golden
from timeline.errors import AttemptDeadError, ConflictError
from timeline.local_storage import LocalStorage
from timeline.lock import ProcessLock
from timeline.storage import Storage

TABLES = pytest.mark.parametrize("name", ["v6_pending", "v9_pending"])


class _BesideHudi:
    """A runner of which Hudi's compactor begins as soon as the first slice is done."""

    def __init__(self, path: Path, instant: str) -> None:
        self.path, self.instant = path, instant
        self.stopped = False

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: Progress) -> list[SliceDone]:
        def hudi_begins(done: int, total: int) -> None:
            if done:
                storage.put_if_absent(inflight_path(open_table(self.path), self.instant), b"")
            try:
                progress(done, total)
            except AttemptDeadError:
                self.stopped = True
                raise

        return LocalRunner(1)(storage, tasks, hudi_begins)


@TABLES
def test_it_is_seen_while_slices_are_staged(name: str, tmp_path: Path) -> None:
    """That attempt ends for good; the next one refuses, and takes over once nothing of theirs is young."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    instant = pending_instants(table)[0]
    runner = _BesideHudi(path, instant)
    with pytest.raises(
        AttemptDeadError, match=rf"Hudi compactor touched.*{instant}\.compaction\.inflight.*one made 20"
    ):
        compact_instant(
            table,
            instant,
            lock=ProcessLock(str(path)),
            runner=runner,
            progress=lambda done, total: None,
            output=OUTPUT,
            options=AttemptOptions(foreign_look_s=0),
        )
    assert runner.stopped
    fate = read_fate(table.storage, instant, 1)
    assert fate is not None
    assert fate.kind == DEAD
    assert not base_files(path, instant)
    with pytest.raises(ConflictError, match="at work on this instant"):
        run_all(table)
    table.storage.delete(inflight_path(table, instant))
    run_all(table)
    check_whole(path, path.with_name(f"{name.partition('_')[2]}.expected"))


@TABLES
def test_it_is_seen_at_the_decision(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    instant = pending_instants(open_table(path))[0]

    def hook(call: Call) -> object:
        if call.name == "list" and call.path.endswith("timeline" if name.startswith("v9") else ".hoodie"):
            _begin_when_staged(path, instant)
        return call.do()

    with pytest.raises(AttemptDeadError, match="Hudi compactor touched"):
        run_all(open_table(path, HookedStorage(LocalStorage(str(path)), hook)))
    assert not base_files(path, instant)


def _begin_when_staged(path: Path, instant: str) -> None:
    plan = open_table(path).compaction_plan(instant)
    if len(list((path / ".hoodie" / ".phantombase" / instant).glob("1/*.ok"))) == len(plan.operations):
        LocalStorage(str(path)).put_if_absent(inflight_path(open_table(path), instant), b"")


def test_it_is_looked_for_every_few_seconds(tmp_path: Path) -> None:
    path = unzip_golden("v6_pending", tmp_path)
    looks: list[str] = []
    clock = [0.0]

    def hook(call: Call) -> object:
        looks.append(call.path)
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    nobody = ForeignTrace(inflight_ms=None, heartbeat_ms=None, youngest_ms=None)
    looks.clear()
    watch = ForeignWatch(table, "20260101000000000", 1, nobody, every_s=3.0, clock=lambda: clock[0])
    for clock[0] in (0.0, 1.0, 2.9, 3.0, 3.1, 5.9, 6.0):
        watch.check()
    inflight = inflight_path(table, "20260101000000000")
    assert [path for path in looks if path == inflight] == [inflight] * 2
