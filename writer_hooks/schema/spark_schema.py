"""Spark schemas as Arrow schemas; pyspark is imported only when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from phantombase.timeline.codec.spark_types import arrow_of_spark
from phantombase.timeline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def from_spark(schema: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark gives to Python. UsageError: a type that Arrow does not have."""
    from pyspark.errors import PySparkException

    try:
        return arrow_of_spark(schema)
    except PySparkException as error:
        raise UsageError("a Spark type that no column can have", found=str(error)) from error
