"""Spark jobs of a write that end in the driver."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from phantombase.compactor_daemon.execution.runners import spark_words
from phantombase.timeline.errors import SparkError

from ..schema.spark_schema import from_spark


def run(action: Callable[[], pa.Table]) -> pa.Table:
    """What an action yields; SparkError if its job fails."""
    try:
        return action()
    except Exception as error:
        raise SparkError(
            "a Spark job of the write failed",
            found=spark_words(error),
            todo="Nothing of the write is visible; the next writer rolls it back.",
        ) from error


def estimated_bytes(plan: Any) -> int:
    """The size of what an optimized plan yields, as Spark estimates it."""
    return int(str(plan.stats().sizeInBytes()))


def to_arrow(frame: Any) -> pa.Table:
    """All rows of a DataFrame; PySpark before 4.0 has no public way to Arrow."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    return pa.Table.from_batches(frame._collect_as_arrow(), schema=from_spark(frame.schema))


def streaming_run(rows: Any) -> tuple[str, str]:
    """Spark's ids of the streaming query whose batch this thread writes, and of its run; "" where it writes none.

    The first one is stored in the checkpoint, the second is another one after each start. `rows`: a DataFrame, or rows
    that were made of one.
    """
    session = getattr(rows, "sparkSession", None)
    if session is None and (sql := sys.modules.get("pyspark.sql")) is not None:
        session = sql.SparkSession.getActiveSession()
    context = getattr(session, "sparkContext", None)
    if context is None:
        return "", ""
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    return query, (context.getLocalProperty("spark.jobGroup.id") or "") if query else ""
