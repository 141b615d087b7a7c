"""The rows of a small DataFrame, fetched by the driver as Arrow, so that a small write needs no Python worker.

The first Python stage of a Spark session costs its workers 5 to 6 seconds of processor time: each of them compiles
PySpark, which is in an archive there, and imports pyarrow and pandas.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from phantombase.timeline.errors import SparkError

from .spark_jobs import estimated_bytes, run, to_arrow

_ROWS_BYTES = 32 << 20
_OF_THE_HEAP = 64
"""At most such a part of the driver's memory. The size is Spark's estimate: that of files is what they take compressed,
and their rows may be many times as large."""

_HELD_BYTES = 128 << 20
"""Rows that turn out to take more than that are left to tasks after all: the pieces of a write are copies of them."""

_ESTIMATED = {"LogicalRelation", "LocalRelation", "Project", "Filter"}
"""Nodes of a plan whose estimate is no less than what they yield. `explode`, for one, counts as one row each."""

_LIMIT, _LIMIT_DEFAULT, _UNLIMITED = "spark.driver.maxResultSize", "1g", ("0", "0b")


def fetched(frame: Any) -> pa.Table | None:
    """All rows, if Spark is sure that they are few; None: they are many, or it is not known.

    Spark ends the job at its own limit of results if there are more after all. SparkError: the job fails.
    """
    context, plan = frame.sparkSession.sparkContext, frame._jdf.queryExecution().optimizedPlan()
    if str(context.getConf().get(_LIMIT, _LIMIT_DEFAULT)).lower() in _UNLIMITED:
        return None
    heap = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())
    if estimated_bytes(plan) > min(_ROWS_BYTES, heap // _OF_THE_HEAP) or not _estimated(plan):
        return None
    try:
        rows = run(partial(to_arrow, frame))
    except SparkError as error:
        if _LIMIT in str(error.__cause__):
            return None
        raise
    return rows if rows.nbytes <= _HELD_BYTES else None


def _estimated(plan: Any) -> bool:
    """Whether all nodes of a logical plan are of a kind whose estimate holds."""
    if str(plan.nodeName()) not in _ESTIMATED:
        return False
    below = plan.children()
    return all(_estimated(below.apply(number)) for number in range(below.size()))
