"""A Spark session and batches of rides, which the examples share."""

from __future__ import annotations

import os
import sys
from typing import Any


def session(**settings: str) -> Any:
    """A local Spark session whose workers run the same Python as this process."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("phantombase-example")
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.host": "127.0.0.1"}
    for name, value in {**quiet, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def batch(spark: Any, number: int, rides: int = 1000) -> Any:
    """Batch `number`: every ride has a new fare, and some rides are new."""
    return spark.range(number * 10, number * 10 + rides).selectExpr(
        "concat('ride-', lpad(cast(id as string), 6, '0')) as id",
        "concat('zone-', id % 3) as zone",
        f"cast({number} as bigint) as ts",
        f"round(id * 0.5 + {number}, 2) as fare",
    )
