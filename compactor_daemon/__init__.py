"""Executes pending compactions: attempts, file slices on Spark, publishing, the daemon and its commands."""

import os

if __name__ != "phantombase.compactor_daemon":
    # In a checkout the folder is found under both names: each would have its own errors, and its own locks.
    raise ImportError("import phantombase.compactor_daemon, not compactor_daemon", name=__name__)

# Before Arrow is loaded, here and in Spark's workers: merging file slices takes a tenth less CPU time and less peak
# memory with jemalloc than with mimalloc, Arrow's default.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
