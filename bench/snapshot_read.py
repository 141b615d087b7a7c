"""Reading a snapshot to Arrow: ours against hudi-rs and against real Hudi 1.2.0 on Spark.

    python -m bench.snapshot_read [--quick] [--runs N]

2 M base rows and 800 k Avro log records (quick: 500 k and 200 k), all columns. All three are warm: the third read
in one process. hudi-rs and ours end with Arrow batches in memory; Spark scans all columns on both cores and keeps
nothing, which favours it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

from bench.child import THREADS
from bench.processes import child
from bench.report import Goal, Report
from bench.tables import HUDI, make, readable
from tests.hudi.judge.client import Judge

_WARM_RUN = 3


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Snapshot reads: ours, hudi-rs, and real Hudi on Spark.")
    parser.add_argument("--quick", action="store_true", help="one round on a quarter of the table")
    parser.add_argument("--runs", type=int, default=3, help="rounds [default: 3; with --quick: 1]")
    arguments = parser.parse_args()
    spec = readable(arguments.quick)
    made = make(spec)
    seconds: dict[str, list[float]] = defaultdict(list)
    rows: dict[str, int] = {}
    peak: dict[str, int] = defaultdict(int)
    for _ in range(1 if arguments.quick else arguments.runs):
        for name, command in (("ours", "read-ours"), ("hudi_rs", "read-hudi-rs")):
            ran = child(command, str(made.path), str(_WARM_RUN))
            seconds[name].append(ran.answer["seconds"][-1])
            rows[name] = ran.answer["rows"]
            peak[name] = max(peak[name], ran.answer["peak_bytes"])
        with Judge(HUDI, cores=THREADS, memory=spec.memory) as judge:
            seconds["hudi_spark"].append([judge.scan(made.path) for _ in range(_WARM_RUN)][-1])
            rows["hudi_spark"] = judge.count(made.path)
    if set(rows.values()) != {spec.rows_after}:
        raise RuntimeError(f"row counts differ: {rows}, written {spec.rows_after}")
    report = Report(bench="snapshot_read")
    report.facts |= {"rows": spec.rows_after, "log_rows": spec.log_rows}
    report.facts |= {"base_mb": round(made.base_bytes / 1e6), "log_mb": round(made.log_bytes / 1e6)}
    taken = {name: report.timed(name, each) for name, each in seconds.items()}
    report.figure("ratio_hudi_rs", taken["hudi_rs"] / taken["ours"], Goal(figure="ratio_hudi_rs", limit=3))
    report.figure("ratio_hudi_spark", taken["hudi_spark"] / taken["ours"], Goal(figure="ratio_hudi_spark", limit=2))
    for name in ("ours", "hudi_rs"):
        report.figure(f"peak_mib_{name}", peak[name] / (1 << 20))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
