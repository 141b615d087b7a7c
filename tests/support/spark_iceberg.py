"""Spark's Iceberg reader, Iceberg's own, in the judge's environment.

As a program: its arguments are Spark's settings and a folder. It reads the paths of metadata files, a line each, and
answers with the path of a folder of Parquet files of the rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.iceberg_readers import IcebergReader


@contextmanager
def spark_reader(folder: Path) -> Iterator[IcebergReader]:
    """Its answers are below `folder`."""
    from tests.hudi.judge.environment import iceberg_jars, plain_conf, python
    from tests.support.iceberg_readers import iceberg_reader

    conf = plain_conf() | {
        "spark.jars": iceberg_jars(),
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    }
    with iceberg_reader(str(python()), __file__, json.dumps(conf), str(folder)) as reader:
        yield reader


def _serve(conf: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in json.loads(conf).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for number, line in enumerate(sys.stdin):
        out = f"{folder}/{number}.parquet"
        metadata, *without = line.rstrip("\n").split("\t")
        spark.read.format("iceberg").load(metadata).drop(*without).coalesce(1).write.parquet(out)
        print(out, flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
