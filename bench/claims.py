"""How fast a fleet claims: 2 000 pending instants on one table, executed without any work by 1, 4 and 16 daemons.

    python -m bench.claims [--quick]

Daemons are processes of their own on one machine, with one ZooKeeper server beside them. What is timed is all but the
compaction: look, choose, claim, see that nobody has done it, complete, give the claim back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from bench.fleet_daemon import run_fleet
from bench.report import Goal, Report
from phantombase.compactor_daemon.fleet.zookeeper_server import embedded_zookeeper
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.format.compaction_plan import CompactionPlan, encode_plan
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.schema.new_table import NewTable, create_table

_FLEETS = (1, 4, 16)


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Claims a second of 1, 4 and 16 daemons.")
    parser.add_argument("--quick", action="store_true", help="a quarter of the instants")
    instants = 500 if parser.parse_args().quick else 2000
    report = Report(bench="claims")
    report.facts["instants"] = instants
    duplicates, problems = 0, []
    with (
        tempfile.TemporaryDirectory(prefix="claims-") as made,
        embedded_zookeeper(Path(made) / "zookeeper") as zookeeper,
    ):
        for daemons in _FLEETS:
            path = Path(made) / f"table-{daemons}"
            _pending_table(path, instants)
            runs = run_fleet(str(path), zookeeper.hosts, daemons, no_op=True)
            duplicates += sum(r.duplicates for r in runs)
            problems += [p for r in runs for p in r.problems]
            if (done := sum(r.done for r in runs)) != instants:
                raise RuntimeError(f"{done} instants done, {instants} were pending; {problems}")
            seconds = max(r.seconds for r in runs)
            report.timed(f"daemons_{daemons}", [seconds])
            figure = f"claims_per_second_{daemons}"
            report.figure(figure, instants / seconds, Goal(figure=figure, limit=300.0))
            # Of the daemons, without ZooKeeper: it does not depend on what else the machine does.
            report.figure(f"cpu_ms_per_claim_{daemons}", sum(r.cpu_s for r in runs) / instants * 1000)
            report.facts[f"share_{daemons}"] = sorted(r.done for r in runs)
    report.figure("duplicates", duplicates, Goal(figure="duplicates", limit=0.0, at_least=False))
    report.facts["problems"] = problems
    return report.finish()


def _pending_table(path: Path, instants: int) -> None:
    """A table whose timeline holds so many requested compactions of no file group."""
    path.mkdir()
    table = create_table(LocalStorage(str(path)), NewTable(name="claims", version=9, key_fields=("id",)))
    (path / audit_path("")).parent.mkdir(parents=True)
    plan = encode_plan(CompactionPlan(operations=(), extra_metadata={}, missing_schedule_partitions=()))
    begin = datetime.now() - timedelta(hours=1)
    for number in range(instants):
        time = format_time(begin + timedelta(milliseconds=number))
        instant = Instant(requested_time=time, action="compaction", state=State.REQUESTED)
        (path / table.instant_path(instant)).write_bytes(plan)


if __name__ == "__main__":
    sys.exit(main())
