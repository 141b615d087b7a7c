"""Queries on a MERGE_ON_READ table in Spark: ours on Spark 4 against real Hudi 1.2.0 on Spark 3.5, on the same cores.

    python -m bench.spark_read [--quick] [--runs N] [--rounds N]

5 M rows of 20 columns in 4 partitions of 4 buckets, every one with logs, 1 M log records in all (quick: 1 M and
200 k, one run that counts, and no query of the base files). `bench.spark_queries` has the queries and the options of
both sides: ours says which columns, partition or key it wants, Hudi finds them in the query. Each run loads the table
anew; the first runs warm the JVM and do not count.
`base_files` is the read-optimized query, where nothing is merged. CPU seconds are those of the whole process tree:
on a machine that others use too, they say more than the seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.processes import run
from bench.report import Goal, Report
from bench.spark_queries import QUERIES
from bench.tables import HUDI, Made, make, partitioned
from tests.hudi.judge import environment

_GOALS = {"full": 1.0, "three": 1.5, "count": 2.0, "partition": 1.5, "key": 3.0}
_CORES = 2
_MEMORY = "3g"
_SCRIPT = Path(__file__).with_name("spark_queries.py")
_WARM_RUNS = 2
_DIGITS = 9


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Queries in Spark: ours against real Hudi.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the table, one run")
    parser.add_argument(
        "--runs", type=int, help="runs of each query that count, in a round [default: 3; with --quick: 1]"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often both sides take turns")
    arguments = parser.parse_args()
    made = make(partitioned(arguments.quick))
    runs = arguments.runs or (1 if arguments.quick else 3)
    names = [name for name in QUERIES if name in _GOALS or not arguments.quick]
    seconds: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    for _ in range(arguments.rounds):
        answers = {side: _asked(side, made, _WARM_RUNS + runs, names) for side in ("ours", "hudi")}
        _check(answers, made, names)
        for side, answer in answers.items():
            for name, found in answer["queries"].items():
                seconds[f"{name}_{side}"] += found["seconds"][_WARM_RUNS:]
                cpu[f"{name}_{side}_cpu"] += found["cpu"][_WARM_RUNS:]
    return _report(made, seconds, cpu, names).finish()


def _asked(side: str, made: Made, runs: int, names: list[str]) -> dict[str, Any]:
    conf = environment.spark_conf(_CORES, _MEMORY) | {"spark.ui.showConsoleProgress": "false"}
    if side == "hudi":
        interpreter = str(environment.python())
        conf["spark.jars"] = environment.jars(HUDI)
    else:
        interpreter = sys.executable
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        conf = {name: value for name, value in conf.items() if "hoodie" not in value.lower()}
        del conf["spark.serializer"]
    reader = "hudi" if side == "hudi" else "spark_read"
    answer: dict[str, Any] = run(
        [interpreter, str(_SCRIPT), reader, str(made.path), str(runs), ",".join(names), json.dumps(conf)]
    ).answer
    return answer


def _check(answers: dict[str, dict[str, Any]], made: Made, names: list[str]) -> None:
    """RuntimeError: the two sides do not have the same answers."""
    ours, hudis = answers["ours"], answers["hudi"]
    if ours["checksum"] != hudis["checksum"] or int(ours["checksum"][0]) != made.spec.rows_after:
        raise RuntimeError(f"the rows differ: ours {ours['checksum']}, Hudi's {hudis['checksum']}")
    for name in names:
        one, other = (_plain(answer["queries"][name]["rows"]) for answer in (ours, hudis))
        if one != other:
            raise RuntimeError(f"the answers to {name} differ: ours {one}, Hudi's {other}")


def _plain(rows: list[list[str]]) -> list[list[str]]:
    """Rows with fewer digits of sums of fractions: these depend on the order of the addends."""
    return [[_short(value) for value in row] for row in rows]


def _short(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        return value
    return value if number.is_integer() or not math.isfinite(number) else f"{number:.{_DIGITS}e}"


def _report(made: Made, seconds: dict[str, list[float]], cpu: dict[str, list[float]], names: list[str]) -> Report:
    report = Report(bench="spark_read")
    report.facts |= {"rows": made.spec.rows_after, "log_rows": made.spec.log_rows, "columns": 20}
    report.facts |= {"base_mb": round(made.base_bytes / 1e6), "log_mb": round(made.log_bytes / 1e6)}
    report.facts |= {"spark_cores": _CORES, "spark_memory": _MEMORY}
    report.facts["options"] = {name: {"ours": QUERIES[name][1], "hudi": QUERIES[name][2]} for name in names}
    taken = {name: report.timed(name, each) for name, each in {**seconds, **cpu}.items()}
    for name in names:
        figure, goal = f"ratio_{name}", _GOALS.get(name)
        ratio = taken[f"{name}_hudi"] / taken[f"{name}_ours"]
        report.figure(figure, ratio, None if goal is None else Goal(figure=figure, limit=goal))
        report.figure(f"ratio_{name}_cpu", taken[f"{name}_hudi_cpu"] / taken[f"{name}_ours_cpu"])
    return report


if __name__ == "__main__":
    sys.exit(main())
