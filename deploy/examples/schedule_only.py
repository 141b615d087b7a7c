"""Schedule-only: this job requests a compaction every few commits; one or more dedicated compactors execute it.

python deploy/examples/schedule_only.py /data/rides
compactor-daemon compact /data/rides            # anywhere that sees the table, at the same time or later
"""

from __future__ import annotations

import sys

from rides import batch, session

from phantombase import writer


def main(path: str) -> None:
    """Makes six upserts, and requests a compaction after every third."""
    spark = session()
    for number in range(6):
        described = writer(batch(spark, number)).table("rides").key("id").partition("zone").ordering("ts").buckets(2)
        done = described.schedule(max_delta_commits=3, max_pending=4).upsert(path)
        print(f"{done.instant}: compaction {done.after.scheduled or 'none, ' + done.after.why}")


if __name__ == "__main__":
    main(sys.argv[1])
