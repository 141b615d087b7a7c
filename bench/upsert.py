"""Bulk insert and upsert of a bucketed table: ours on Spark against real Hudi 1.2.0, and deltalake for orientation.

    python -m bench.upsert [--quick]

2 M rows of 16 columns (quick: 500 k, without deltalake and gzip) in 8 buckets, then three upserts of a tenth, one in
ten of it new. Rows come from Parquet files through Spark on both sides, 2 cores. Warm: the second bulk insert and the
third upsert of one session. `ours` writes bare scans of the files, whose rows do not pass the JVM; `filtered` writes
the same rows of frames with a filter, whose rows pass it, as those of any other frame do.
Like for like is gzip with Avro logs, as Hudi writes by default; our own defaults are zstd and Parquet logs. deltalake
(in-process, no Spark) has no logs: its merge rewrites files, so that readers have nothing to merge.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench.child import THREADS
from bench.processes import child
from bench.report import Goal, Report
from bench.tables import HUDI, home, save_rows, written
from tests.hudi.judge.client import Judge

_OURS = (
    ("like_hudi", "spark", "gzip", "avro"),
    ("ours", "spark", "zstd", "parquet"),
    ("filtered", "spark-filtered", "zstd", "parquet"),
    ("local", "local", "zstd", "parquet"),
)
_GOALS: dict[str, dict[str, tuple[float, float | None]]] = {
    "ours": {"upsert": (3.0, 5.0), "bulk_insert": (6.0, None)},
    "filtered": {"bulk_insert": (3.0, None)},
}


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Bulk insert and upsert: ours, real Hudi on Spark, and deltalake.")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, our defaults alone")
    arguments = parser.parse_args()
    spec = written(arguments.quick)
    ways = [way for way in _OURS if way[0] != "like_hudi" or not arguments.quick]
    report = Report(bench="upsert")
    report.facts |= {"rows": spec.base_rows, "upsert_rows": spec.log_rows // spec.upserts, "buckets": spec.slices}
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="write-", dir=home()) as made:
        folder = Path(made)
        base, upserts = save_rows(spec, folder)
        rows = {"hudi": _hudi(report, folder, base, upserts, spec.slices)}
        for name, engine, codec, logs in ways:
            tables = [str(folder / f"{name}-{number}") for number in range(2)]
            ran = child(
                "upsert", engine, codec, logs, str(spec.slices), str(base), ",".join(tables), *map(str, upserts)
            )
            _record(report, name, ran.answer["bulk_insert_seconds"], ran.answer["seconds"])
            report.figure(f"peak_mib_{name}", ran.peak_private_bytes / (1 << 20))
            rows[name] = child("checksum", tables[-1]).answer["rows"]
        if set(rows.values()) != {spec.rows_after}:
            raise RuntimeError(f"row counts differ: {rows}, written {spec.rows_after}")
        if find_spec("deltalake") is not None and not arguments.quick:  # of the extra `bench`
            ran = child("upsert-delta", str(base), str(folder / "delta"), *map(str, upserts))
            _record(report, "deltalake", ran.answer["bulk_insert_seconds"], ran.answer["seconds"])
            report.figure("peak_mib_deltalake", ran.peak_private_bytes / (1 << 20))
    _ratios(report, [name for name, *_ in ways])
    return report.finish()


def _hudi(report: Report, folder: Path, base: Path, upserts: list[Path], buckets: int) -> int:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": buckets}
    seconds: dict[str, list[float]] = {"bulk_insert": [], "upsert": []}
    with Judge(HUDI, cores=THREADS, memory="3g") as judge:
        for number in range(2):
            table = folder / f"hudi-{number}"
            judge.create(table, "bench", base, operation="bulk_insert", options=options)
            seconds["bulk_insert"].append(judge.session.seconds)
        for upsert in upserts:
            judge.upsert(table, upsert)
            seconds["upsert"].append(judge.session.seconds)
        _record(report, "hudi", seconds["bulk_insert"], seconds["upsert"])
        return judge.count(table)


def _record(report: Report, name: str, bulk_inserts: list[float], upserts: list[float]) -> None:
    """The last run of each is the warm one."""
    report.timed(f"{name}_bulk_insert", bulk_inserts[-1:])
    report.timed(f"{name}_upsert", upserts[-1:])
    report.facts[f"{name}_runs"] = {"bulk_insert": bulk_inserts, "upsert": upserts}


def _ratios(report: Report, names: list[str]) -> None:
    seconds = report.seconds
    for name in names:
        goals = _GOALS.get(name, {})
        for operation in ("upsert", "bulk_insert"):
            figure = f"ratio_{operation}_{name}"
            limit, target = goals.get(operation, (0.0, None))
            goal = Goal(figure=figure, limit=limit, target=target) if limit else None
            report.figure(figure, seconds[f"hudi_{operation}"] / seconds[f"{name}_{operation}"], goal)


if __name__ == "__main__":
    sys.exit(main())
