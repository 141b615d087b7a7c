"""A daemon stands still right before it decides, is taken for dead, and goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD, attempts
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table
from tests.support.selection import deep
from tests.support.servers.zookeeper_server import ZooKeeper
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table
from tests.world.chaos.checks import check_whole
from tests.world.chaos.fleet import Fleet, fleet, forks
from tests.world.chaos.fleet_child import Subject
from tests.world.chaos.switches import Point

_WAIT_S = 180.0
_SESSION_S = 10.0
"""So long until the one that stands still is taken for dead; the other one never stands so long."""


def wait_until(condition: Callable[[], bool], daemons: Fleet) -> None:
    """Waits for it; a daemon that could not start meanwhile is started again."""
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        logs = [slot.log.read_text()[-3000:] for slot in daemons.slots if slot.log.exists()]
        assert time.monotonic() < deadline, "\n\n".join(logs)
        daemons.tend()
        time.sleep(0.05)


_FILE, _ZOOKEEPER = "file:{folder}/lock", "zookeeper:{{hosts}}/locks/{{name}}"


@pytest.mark.parametrize(
    ("version", "lock"),
    [(9, _ZOOKEEPER), deep(6, _FILE), deep(9, _FILE), deep(6, _ZOOKEEPER)],
    ids=["9-zookeeper", "6-file", "9-file", "6-zookeeper"],
)
def test_a_decision_of_the_dead_is_refused(version: int, lock: str, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Another daemon completes the instant, in ZooKeeper's lock while the first still stands in it; once."""
    path, options = tmp_path / "trips", WriteOptions(buckets=1, slots=1)
    written_table(path, version, rows((1, 1, 1.0), (2, 1, 1.0)), options)
    write(open_table(path), LocalEngine(rows((1, 2, 2.0)), slots=1), Write(operation=Operation.UPSERT, options=options))
    expected = read_rows(path)
    instant = schedule_compaction(open_table(path), ProcessLock("dead decision")).instant
    assert instant is not None
    storage, subject = open_table(path).storage, Subject(path=path, options=options)
    named = lock.format(folder=tmp_path)
    with fleet(forks(), 2, [subject], [zookeeper.port], named, tmp_path, _SESSION_S) as daemons:
        first, second = daemons.slots
        first.switches.point, first.switches.signal = Point.COMMITTED.number, signal.SIGSTOP
        second.due = time.monotonic() + 10 * _WAIT_S
        wait_until(lambda: first.switches.struck == 1, daemons)
        second.due = 0.0
        wait_until(lambda: len(attempts(storage, instant)) > 1, daemons)
        if lock.startswith("zookeeper"):
            wait_until(lambda: pending_instants(open_table(path)) == (), daemons)
        daemons.send(first, signal.SIGCONT)
        wait_until(lambda: first.switches.refused == 1 and pending_instants(open_table(path)) == (), daemons)
        daemons.end()
        assert [daemons.count(name) for name in ("decided", "refused", "broken")] == [1, 1, 0]
        daemons.check_logs(tmp_path)
    outcomes = [read_outcome(storage, instant, number) for number in attempts(storage, instant)]
    # A machine that stands still may cost the second daemon an attempt, too.
    assert [outcome and outcome.kind for outcome in outcomes] == [DEAD] * (len(outcomes) - 1) + [COMMITTED]
    assert len(outcomes) > 1
    assert read_rows(path) == expected
    check_whole(subject)
