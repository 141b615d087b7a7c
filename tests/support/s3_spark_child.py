"""An ingest job on Spark, as a process of its own: writes, a compaction beside them, and a stream with inline ones.

python -m tests.support.s3_spark_child TABLE INPUT CHECKPOINT [NAME=VALUE ...]

INPUT holds Parquet files of rows: those of its folder `write` are upserted one by one, those of `stream` as a stream.
NAME=VALUE: a setting of Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from phantombase import Writer, writer
from phantombase.compactor_daemon.execution.run_compactions import AsyncCompaction
from phantombase.compactor_daemon.execution.runners import SparkRunner
from phantombase.compactor_daemon.execution.spark_session import RunningSpark


def main(table: str, source: str, checkpoint: str, *more: str) -> None:
    """Runs the job to its end; an error of the compaction is one of the job."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level": "ERROR",
        "spark.scheduler.mode": "FAIR",
        **dict(pair.split("=", 1) for pair in more),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()

    def described(rows: Any = None) -> Writer:
        return writer(rows).table("trips").key("id").ordering("ts").buckets(2).option(slots=2)

    first, *others = sorted(Path(source, "write").iterdir())
    described(spark.read.parquet(str(first))).upsert(table)
    runner = SparkRunner(RunningSpark(spark.sparkContext), pool="compaction")
    with AsyncCompaction(table, runner, stop_s=60) as compaction:
        for file in others:
            frame = spark.read.parquet(str(file))
            described(frame).schedule(max_delta_commits=2, notify=compaction.notify).upsert(table)
    if compaction.errors:
        raise compaction.errors[0]

    stream = spark.readStream.schema("id string, ts long, fare double").option("maxFilesPerTrigger", 1)
    inline = described().compact_inline(max_delta_commits=2).back_pressure(action="go-on")
    query = (
        stream.parquet(f"{source}/stream")
        .writeStream.foreachBatch(inline.foreach_batch(table, stream="trips"))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
