"""Executing a compaction plan: ours against real Hudi 1.2.0, and against the bare cost of reading and writing.

    python -m bench.compaction [--quick] [--large] [--executor spark|local|both] [--log-format avro|parquet|both]
                               [--runs N]

Every run works on its own copy of the table, on two cores. One round measures everything once, one after the
other, so that a loaded machine slows all sides; ratios are of medians over rounds.

    hudi_start     starting the JVM session, then the first compaction in it
    hudi_warm      the third compaction in that session
    spark_start    `compactor-daemon compact TABLE` as a process, Spark local[2]; local_start: with --executor local
    spark_warm     the third compaction in one process, Spark context and workers up; local_warm: without Spark
    bare           read base + decode logs + write base, nothing merged; the second in one process, as many threads
    empty_spark    a Spark context and an empty Python job, from process start

All write gzip, Hudi's default, except those named *_zstd, our default. The quick form leaves out what no goal is held
to, zstd, and Spark on Parquet logs, which says no more than Spark on Avro logs. After Hudi's last compaction and after
each of ours from process start the table's snapshot must have the rows and the checksum it had before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.child import THREADS
from bench.processes import Ran, child, run
from bench.report import Goal, Report
from bench.tables import HUDI, Made, TableSpec, copy_of, large, make, small
from tests.hudi.judge.client import Judge

_WARM_RUN = 3
"""The run that counts as warm."""
_LIKE_FOR_LIKE, _DEFAULT = "gzip", "zstd"


class Bench:
    """The measurements on one table."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.peak_bytes: dict[str, int] = defaultdict(int)
        self._before = _snapshot(made.path)

    def round(self, executors: Sequence[str], codecs: Sequence[str]) -> None:
        """Measures everything once."""
        self._hudi()
        if "spark" in executors:
            ran = child("empty-spark")
            self._record("empty_spark", ran.seconds, ran)
        for codec in codecs:
            suffix = "" if codec == _LIKE_FOR_LIKE else f"_{codec}"
            for executor in executors:
                self._from_start(executor, codec, f"{executor}_start{suffix}")
                self._warm(f"{executor}_warm{suffix}", "compact", executor, codec)
            extra = str(self._made.spec.inserts // self._made.spec.slices)
            self._warm(f"bare{suffix}", "bare", codec, extra, runs=2)

    def _hudi(self) -> None:
        with ExitStack() as stack:
            copies = [stack.enter_context(copy_of(self._made)) for _ in range(_WARM_RUN)]
            started = time.perf_counter()
            with Judge(HUDI, cores=THREADS, memory=self._made.spec.memory) as judge:
                start = time.perf_counter() - started
                seconds = []
                for copy in copies:
                    executed = judge.run_compaction(copy)
                    # Only the call itself: not the harness's `create table` before it.
                    seconds.append(judge.seconds)
                    if executed != [self._made.instant]:
                        raise RuntimeError(f"Hudi executed {executed}, not {self._made.instant}")
            self._same(copies[-1], "Hudi")
        self._record("hudi_start", start + seconds[0])
        self._record("hudi_warm", seconds[-1])

    def _from_start(self, executor: str, codec: str, name: str) -> None:
        with copy_of(self._made) as copy:
            command = [
                sys.executable,
                "-m",
                "phantombase.compactor_daemon.cli.main",
                "compact",
                str(copy),
                "--codec",
                codec,
            ]
            command += ["--executor", executor, "--json"]
            command += ["--master", f"local[{THREADS}]"] if executor == "spark" else ["--threads", str(THREADS)]
            ran = run(command)
            self._same(copy, name)
        self._record(name, ran.seconds, ran)

    def _warm(self, name: str, *arguments: str, runs: int = _WARM_RUN) -> None:
        with ExitStack() as stack:
            copies = [stack.enter_context(copy_of(self._made)) for _ in range(runs)]
            ran = child(*arguments, *map(str, copies))
        self._record(name, ran.answer["seconds"][-1], ran)

    def _record(self, name: str, seconds: float, ran: Ran | None = None) -> None:
        print(f"bench: {self._made.spec.name}: {name} {seconds:.2f} s", file=sys.stderr, flush=True)
        self.seconds[name].append(seconds)
        if ran is not None:
            self.peak_bytes[name] = max(self.peak_bytes[name], ran.peak_bytes)

    def _same(self, path: Path, who: str) -> None:
        """The compaction is done, and the snapshot is what it was."""
        left = sorted(path.glob(f".hoodie/timeline/{self._made.instant}_*.commit"))
        after = _snapshot(path)
        if not left or after != self._before:
            raise RuntimeError(f"{who} on {path}: {left}, snapshot {after}, before {self._before}")


def _snapshot(path: Path) -> tuple[int, str]:
    """Rows and checksum of the table as we read it."""
    answer = child("checksum", str(path)).answer
    return answer["rows"], answer["checksum"]


def add_figures(
    report: Report,
    bench: Bench,
    made: Made,
    executors: Iterable[str],
    codecs: Sequence[str],
    start_goals: dict[str, float],
) -> None:
    """The ratios of one table, named after its log format."""
    format_ = made.spec.log_format
    taken = {name: report.timed(f"{name}_{format_}", seconds) for name, seconds in bench.seconds.items()}

    def figure(name: str, value: float, **goal: Any) -> None:
        full = f"{name}_{format_}"
        report.figure(full, value, Goal(figure=full, **goal) if goal else None)

    for executor in executors:
        ours = f"{executor}_warm"
        figure(f"ratio_warm_{executor}", taken["hudi_warm"] / taken[ours], limit=5, target=10)
        ours = f"{executor}_start"
        figure(f"ratio_start_{executor}", taken["hudi_start"] / taken[ours], limit=start_goals[executor])
        figure(f"ratio_bare_{executor}", taken[f"{executor}_warm"] / taken["bare"], limit=1.5, at_least=False)
        if _DEFAULT in codecs:
            for when in ("warm", "start"):
                ours = f"{executor}_{when}_{_DEFAULT}"
                figure(f"ratio_{when}_{executor}_{_DEFAULT}", taken[f"hudi_{when}"] / taken[ours])
            ours = f"{executor}_warm_{_DEFAULT}"
            figure(f"ratio_bare_{executor}_{_DEFAULT}", taken[ours] / taken[f"bare_{_DEFAULT}"])
        figure(f"peak_mib_{executor}", bench.peak_bytes[f"{executor}_start"] / (1 << 20))
    if "spark_start" in taken:
        startup = taken["spark_start"] - taken["spark_warm"] - taken["empty_spark"]
        figure("startup_beyond_empty_s", startup, limit=1.0, at_least=False)


def _specs(arguments: argparse.Namespace) -> list[TableSpec]:
    make_spec = large if arguments.large else small
    formats = ("avro", "parquet") if arguments.log_format == "both" else (arguments.log_format,)
    return [make_spec(format_) for format_ in formats]


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Compaction: ours, real Hudi, and the bare cost.")
    parser.add_argument("--quick", action="store_true", help="one round on the small tables, gzip")
    parser.add_argument("--large", action="store_true", help="the tables of over 2 GB instead")
    parser.add_argument("--executor", choices=("spark", "local", "both"), default="both")
    parser.add_argument("--log-format", choices=("avro", "parquet", "both"), default="both")
    parser.add_argument("--runs", type=int, default=3, help="rounds [default: 3; with --quick: 1]")
    arguments = parser.parse_args()
    if arguments.quick and arguments.large:
        parser.error("--quick is the small table only")
    asked = ("spark", "local") if arguments.executor == "both" else (arguments.executor,)
    codecs = (_LIKE_FOR_LIKE,) if arguments.quick else (_LIKE_FOR_LIKE, _DEFAULT)
    start_goals = {"spark": 5.0, "local": 5.0} if arguments.large else {"spark": 3.0, "local": 6.0}
    report = Report(bench="compaction")
    for spec in _specs(arguments):
        executors = asked
        if arguments.quick and arguments.executor == "both" and spec.log_format == "parquet":
            executors = ("local",)
        made = make(spec)
        report.facts[spec.name] = {
            "slices": spec.slices,
            "base_rows": spec.base_rows,
            "log_rows": spec.log_rows,
            "base_mb": round(made.base_bytes / 1e6),
            "log_mb": round(made.log_bytes / 1e6),
        }
        bench = Bench(made)
        for _ in range(1 if arguments.quick else arguments.runs):
            bench.round(executors, codecs)
        add_figures(report, bench, made, executors, codecs, start_goals)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
