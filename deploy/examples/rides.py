"""A Spark session and batches of rides, which the examples share."""

from __future__ import annotations

import os
import sys
from typing import Any


def session(**settings: str) -> Any:
    """A Spark session: of the master that spark-submit names, else a local one with the Python of this process."""
    from pyspark.sql import SparkSession

    builder, usual = SparkSession.builder.appName("phantombase-example"), dict[str, str]()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not by spark-submit, whose --master a master here would override
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        usual = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.host": "127.0.0.1"}
        builder = builder.master("local[2]")
    for name, value in {**usual, **settings}.items():
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
