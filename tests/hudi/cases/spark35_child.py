"""A job on PySpark 3.5 with Hudi's own bundle: Hudi and phantombase write and read one table in one session.

Its arguments are the table's path, the bundle's jars, and the folder of a second table. It prints one JSON document."""

from __future__ import annotations

import json
import os
import sys

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

import pyspark
from pyspark.sql import DataFrame, SparkSession

import phantombase
import pyspark_phantombase
from phantombase import writer
from phantombase.timeline.instants.triggers import TriggerStrategy
from tests.hudi.judge.environment import spark_conf

HUDI = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "zone",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.metadata.enable": "false",
    "hoodie.compact.inline": "false",
}


def main(path: str, jars: str, ours: str) -> None:
    """All steps; each adds what Hudi then reads."""
    builder = SparkSession.builder
    conf = {**spark_conf(memory="1g"), "spark.jars": jars, "spark.log.level": "ERROR"}
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, object] = {"version": pyspark.__version__}

    def rows(start: int, end: int, ts: int) -> DataFrame:
        columns = (
            "cast(id as string) id",
            "cast(id % 2 as string) zone",
            f"cast({ts} as bigint) ts",
            f"id * {ts}.0D fare",
        )
        return spark.range(start, end).selectExpr(*columns)

    def hudi(table: str) -> list[float]:
        one = spark.read.format("hudi").load(table).selectExpr("count(1) n", "sum(ts) ts", "sum(fare) fare").first()
        assert one is not None
        return [float(value) for value in one]

    rows(0, 20, 1).write.format("hudi").options(**HUDI).mode("append").save(path)
    writer(rows(5, 30, 2)).conf(HUDI).upsert(path)
    found["after our write"] = hudi(path)
    inline = writer(rows(10, 12, 3)).buckets(2).compact_inline(strategy=TriggerStrategy.ALWAYS).upsert(path)
    found["compacted"] = inline.after.scheduled is not None
    found["after our compaction"] = hudi(path)
    rows(0, 1, 4).write.format("hudi").options(**HUDI).mode("append").save(path)
    found["after Hudi's next write"] = hudi(path)
    found["our reader"] = phantombase.read(path).to_arrow().num_rows
    found["our Spark reader"] = phantombase.spark_read(spark, path).count()
    pyspark_phantombase.register(spark)
    done = f"SELECT 1 FROM phantombase_show('{path}') WHERE action = 'commit'"
    found["compactions in SQL"] = spark.sql(done).count()
    ask = writer(rows(0, 10, 1)).table("u").key("id").ordering("ts").buckets(2)
    ask.upsert(ours)
    ask.schedule(strategy=TriggerStrategy.ALWAYS).upsert(ours)
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
