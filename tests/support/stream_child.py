"""A streaming query as a process of its own: files of a folder, one a batch, upserted until all are read.

python -m tests.support.stream_child INPUT CHECKPOINT TABLE VERSION
"""

from __future__ import annotations

import os
import sys

from phantombase import writer


def main(source: str, checkpoint: str, table: str, version: str) -> None:
    """Runs the query to its end."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = spark.readStream.schema("id string, ts long, fare double").option("maxFilesPerTrigger", 1).parquet(source)
    described = writer().table("trips", version=int(version)).key("id").ordering("ts").buckets(2).option(slots=2)
    described = described.back_pressure(action="go-on")  # nobody compacts
    query = (
        frame.writeStream.foreachBatch(described.foreach_batch(table, stream="trips"))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
