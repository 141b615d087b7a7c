"""The queries of `bench.spark_read`, run by one Spark: a script for the interpreter of either side, with PySpark alone.

    python bench/spark_queries.py SIDE TABLE RUNS QUERY,QUERY '{"spark.master": ...}'

SIDE is a key of `READERS`, a QUERY one of `QUERIES`. Each run loads the table anew, so that both sides list and plan
anew, and collects the query. The last line out is JSON: of each query the seconds and the CPU seconds of the whole
process tree by run, and its rows as text; and a checksum over every value of every row.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

NUMBERS = ("ts", "store", "quantity", "user_id", "price", "rate", "score", "amount", "tax", "weight")
OTHERS = ("id", "created", "day", "city", "status", "note", "comment", "region", "channel")
FLAG = "active"
ALL = (*NUMBERS, *OTHERS, FLAG)
_SUMS = ", ".join([f"sum({n})" for n in NUMBERS] + [f"max({n})" for n in OTHERS] + [f"sum(cast({FLAG} as int))"])
_KEY = "k000000234567"
_BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}

QUERIES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "full": (f"select count(*), {_SUMS} from t", {"columns": ",".join(ALL)}, {}),
    "three": ("select sum(price), avg(quantity), max(status) from t", {"columns": "price,quantity,status"}, {}),
    "count": ("select count(*) from t", {"columns": "ts"}, {}),
    "partition": (
        f"select count(*), {_SUMS} from t where region = 'r1'",
        {"columns": ",".join(ALL), "partition": "r1"},
        {},
    ),
    "key": (
        f"select {', '.join(ALL)} from t where id = '{_KEY}'",
        {"columns": ",".join(ALL), "filter": f"id = '{_KEY}'"},
        _BUCKETS,
    ),
    "base_files": (
        f"select count(*), {_SUMS} from t",
        {"columns": ",".join(ALL), "query": "read_optimized"},
        {"hoodie.datasource.query.type": "read_optimized"},
    ),
}
"""A name: the query, the options of ours, those of Hudi. Hudi prunes columns and partitions by the query itself."""


def hudi(spark: SparkSession, path: str, _ours: dict[str, str], hudis: dict[str, str]) -> DataFrame:
    """Real Hudi's own source."""
    return spark.read.format("hudi").options(**hudis).load(path)


def spark_read(spark: SparkSession, path: str, ours: dict[str, str], _hudis: dict[str, str]) -> DataFrame:
    """`phantombase.spark_read`."""
    import phantombase

    found: DataFrame = phantombase.spark_read(spark, path, **ours)
    return found


READERS = {"hudi": hudi, "spark_read": spark_read}


def cpu_seconds() -> float:
    """CPU seconds of this process and all that live below it, with those of their children that have ended."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        parents[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, open_ = 0, [os.getpid()]
    while open_:
        process = open_.pop()
        total += parents.get(process, (0, 0))[1]
        open_ += [number for number, (parent, _) in parents.items() if parent == process]
    return total / os.sysconf("SC_CLK_TCK")


def measured(spark: SparkSession, side: str, path: str, name: str, runs: int) -> dict[str, Any]:
    """One query, several times."""
    text, ours, hudis = QUERIES[name]
    seconds, cpu, rows = [], [], []
    for _ in range(runs):
        spent, started = cpu_seconds(), time.perf_counter()
        READERS[side](spark, path, ours, hudis).createOrReplaceTempView("t")
        rows = spark.sql(text).collect()
        seconds.append(time.perf_counter() - started)
        cpu.append(cpu_seconds() - spent)
    return {"seconds": seconds, "cpu": cpu, "rows": [[str(value) for value in row] for row in rows]}


def checksum(spark: SparkSession, side: str, path: str) -> list[str]:
    """Rows, and what no two different sets of rows have in common but by chance."""
    READERS[side](spark, path, {"columns": ",".join(ALL)}, {}).createOrReplaceTempView("t")
    rows = f"select xxhash64({', '.join(ALL)}) h from t"
    found = spark.sql(f"select count(*), bit_xor(h), sum(cast(h as decimal(20, 0))) from ({rows})").collect()
    return [str(value) for value in found[0]]


def main() -> None:
    """See the module."""
    side, path, runs, names, conf = sys.argv[1:]
    builder = SparkSession.builder.appName("bench")
    for key, value in json.loads(conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    found = {name: measured(spark, side, path, name, int(runs)) for name in names.split(",")}
    print(json.dumps({"queries": found, "checksum": checksum(spark, side, path)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
