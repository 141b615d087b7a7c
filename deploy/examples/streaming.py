"""Structured Streaming: each micro-batch is one delta commit, exactly once, compacted inline.

    python deploy/examples/streaming.py /data/rides /data/rides-checkpoint

Kill the job and start it again: a batch that was committed before is recognised by its number and skipped.
"""

from __future__ import annotations

import sys

from rides import session

from phantombase import writer


def main(path: str, checkpoint: str) -> None:
    """Writes five micro-batches of rides that Spark's rate source makes."""
    spark = session()
    rides = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 200)
        .load()
        .selectExpr("concat('ride-', value % 100) as id", "value as ts", "value * 0.5 as fare")
    )
    sink = writer().table("rides").key("id").ordering("ts").buckets(2).compact_inline(max_delta_commits=3)
    query = (
        rides.writeStream.foreachBatch(sink.foreach_batch(path, stream="rides"))
        .option("checkpointLocation", checkpoint)
        .start()
    )
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < 4):
        query.awaitTermination(1)
    query.stop()
    print(f"batches written: {query.lastProgress['batchId'] + 1}")


if __name__ == "__main__":
    main(*sys.argv[1:])
