"""Inline: this job requests compactions and executes them itself, for at most 60 s per commit.

    python deploy/examples/inline.py /data/rides

After the limit, the next commit continues the work; finished file slices are not merged again. `target_io_bytes` limits
the bytes that one plan reads and writes.
"""

from __future__ import annotations

import sys

from rides import batch, session

from phantombase import writer


def main(path: str) -> None:
    """Makes six upserts, and compacts after every third."""
    spark = session()
    for number in range(6):
        described = writer(batch(spark, number)).table("rides").key("id").partition("zone").ordering("ts").buckets(2)
        done = described.compact_inline(limit_s=60, max_delta_commits=3, target_io_bytes=50 << 30).upsert(path)
        compacted = ", ".join(f"{c.instant} ({c.rows} rows)" for c in done.after.compacted)
        print(f"{done.instant}: compacted {compacted or 'nothing'}")


if __name__ == "__main__":
    main(sys.argv[1])
