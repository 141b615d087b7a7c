"""Async inside the ingest job: a thread of the same Spark session compacts while the next batches are written.

    python deploy/examples/async_in_job.py /data/rides

The compaction has its own fair-scheduler pool, so that it does not delay the writes. It ends with the job.
"""

from __future__ import annotations

import sys

from rides import batch, session

from phantombase import AsyncCompaction, RunningSpark, SparkRunner, writer


def main(path: str) -> None:
    """Makes nine upserts; a compaction is requested after every third, and executed beside the next ones."""
    spark = session(**{"spark.scheduler.mode": "FAIR"})
    first = writer(batch(spark, 0)).table("rides").key("id").partition("zone").ordering("ts").buckets(2)
    first.upsert(path)
    runner = SparkRunner(RunningSpark(spark.sparkContext), pool="compaction")
    with AsyncCompaction(path, runner, stop_s=60) as compaction:
        for number in range(1, 9):
            described = writer(batch(spark, number)).buckets(2)
            done = described.schedule(max_delta_commits=3, notify=compaction.notify).upsert(path)
            print(f"{done.instant}: compaction {done.after.scheduled or 'none'} requested")
    print(f"errors of the compaction: {len(compaction.errors)}")


if __name__ == "__main__":
    main(sys.argv[1])
