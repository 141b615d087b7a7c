"""Executes pending compactions: attempts, file slices on Spark, publishing, the daemon and its commands.

The ground files are the options of compaction and the limits of a run.

May import: all of timeline.
"""

import os

# Before Arrow is loaded, here and in Spark's workers: merging file slices takes a tenth less CPU time and less peak
# memory with jemalloc than with mimalloc, Arrow's default.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
