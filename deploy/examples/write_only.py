"""Write-only: this job neither requests nor executes compactions. Another process does both.

python deploy/examples/write_only.py /data/rides
"""

from __future__ import annotations

import sys

from rides import batch, session

from phantombase import writer


def main(path: str) -> None:
    """Makes five upserts."""
    spark = session()
    for number in range(5):
        done = (
            writer(batch(spark, number))
            .table("rides")
            .key("id")
            .partition("zone")
            .ordering("ts")
            .buckets(2)
            .upsert(path)
        )
        print(f"{done.instant}: {done.writes} rows in {done.files} files, {done.seconds:.1f} s")
    print("then: compactor-daemon schedule", path, "--lock ..., and compactor-daemon compact", path)


if __name__ == "__main__":
    main(sys.argv[1])
