"""The ranking of work under a budget, for 10,000 tables: of made facts, and by looking at real tables.

    python -m bench.budget [--quick]

Timed are the ranking of `run --dry-run` and one turn of a daemon that serves as many tables, each with a plan that
waits; and what `run --dry-run` does for one real table: it opens the table, loads its timeline and plans, and reads
what its history says of costs. Tables are copies of a small one on this disk.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bench.report import Goal, Report
from phantombase import writer
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.daemon.assemble import works_of
from phantombase.compactor_daemon.daemon.control import Control, Moment
from phantombase.compactor_daemon.daemon.dispatch import Rules
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder, Pending, TableState
from phantombase.compactor_daemon.fleet.budget import Budget, Costs, Gain, rank
from phantombase.compactor_daemon.fleet.pools import Pool, Pools, QuotaUsage
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.planning.options import ScheduleOptions

_TABLES = 10_000
_HOUR_MS = 3_600_000


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="The ranking of work under a budget.")
    parser.add_argument("--quick", action="store_true", help="100 real tables, not 1,000")
    count = 100 if parser.parse_args().quick else 1000
    report = Report(bench="budget")
    report.facts |= {"tables": _TABLES, "real tables": count}
    chance, states = random.Random(1), dict[str, TableState]()
    for n in range(_TABLES):
        logs = chance.randrange(1 << 20, 1 << 32)
        gain = Gain(log_files=chance.randrange(1, 60), log_bytes=logs, read_bytes=logs * chance.randrange(2, 20))
        one = Pending(instant="1", requested_ms=chance.randrange(_HOUR_MS * 20), gain=gain)
        costs = Costs(core_s=chance.random() * 1e-7, runs=10, reads=chance.choice((1.0, 100.0)))
        far = 1 << 60
        states[f"t{n}"] = TableState(pending=(one,), costs=costs, seen=True, snapshot_at=far, sweep_at=far)
    began = time.perf_counter()
    works = [state.work(name, state.pending[0], 0, _HOUR_MS * 20) for name, state in states.items()]
    rows = rank(works, lambda _: {"": Budget.parse("2core-hours")})
    assert len(rows) == _TABLES
    report.timed("rank of all", [time.perf_counter() - began])
    use = QuotaUsage(pools=Pools(), slots=8, began=0)
    control = Control(rules=Rules(max_concurrent=8, budget="2core-hours"), retry=RetryOptions(), use=use, tables=states)
    began = time.perf_counter()
    steps = control.decide(Moment(now_ms=0, epoch_ms=_HOUR_MS * 20), lambda n: 0, 16)
    assert [action.table for action in steps.actions] == [rows[0].table]
    report.timed("a turn of a daemon", [time.perf_counter() - began])
    with tempfile.TemporaryDirectory(prefix="budget-") as made:
        first = Path(made) / "t0"
        for ts in range(6):
            made_rows = pa.table({"id": [str(n) for n in range(50)], "ts": [ts] * 50})
            writer(made_rows).table("t").key("id").ordering("ts").upsert(str(first))
        for n in range(1, count):
            shutil.copytree(first, Path(made) / f"t{n}")
        settings = DaemonSettings(
            who="bench",
            output=OutputOptions(),
            attempt=AttemptOptions(),
            retry=RetryOptions(),
            order=DaemonOrder.EARLIEST,
            schedule=ScheduleOptions(max_delta_commits=2),
            gains=True,
            plans=True,
        )
        began, cpu = time.perf_counter(), time.process_time()
        found = works_of({f"t{n}": (f"{made}/t{n}", Pool()) for n in range(count)}, settings)
        wall, busy = time.perf_counter() - began, time.process_time() - cpu
        report.figure("ms a real table", wall / count * 1000)
        report.figure("ms of a processor", busy / count * 1000)
        goal = Goal(figure="seconds for 10,000", limit=60.0, at_least=False)
        report.figure(goal.figure, wall / count * _TABLES, goal)
        assert (len(found.works), found.problems) == (count, {})
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
