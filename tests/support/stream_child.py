"""A streaming query as a process of its own: files of a folder, one a batch, upserted until all are read.

python -m tests.support.stream_child INPUT CHECKPOINT TABLE VERSION WAY     by "foreach" batch, or by the "source"
"""

from __future__ import annotations

import os
import sys

from phantombase import writer

CONF = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.datasource.write.streaming.checkpoint.identifier": "trips",
    "phantombase.write.stop.action": "go-on",
}


def main(source: str, checkpoint: str, table: str, version: str, way: str) -> None:
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
    if way == "source":
        conf = {**CONF, "hoodie.write.table.version": version}
        stream = frame.writeStream.format("phantombase").options(**conf)
    else:
        stream = frame.writeStream.foreachBatch(described.foreach_batch(table, stream="trips"))
    stream = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = stream.start(table) if way == "source" else stream.start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
