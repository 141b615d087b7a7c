"""The process that forks Spark's Python workers, with what they import: once here, and not in each of them.

Spark collects garbage after each task of a worker: what was imported is left out of that, 0.1 s a task."""

import gc

from pyspark.daemon import manager

import phantombase.writer_hooks.engine.spark  # noqa: F401
import pyspark_phantombase  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
