"""One Spark of this process, for the tests that hand it frames or ask it for a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark_environment() -> Iterator[None]:
    """What Spark reads when it starts: its workers are this Python, and it asks for no name of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def spark(spark_environment: None) -> Iterator[Any]:
    """A session for the tests of a file; nothing in it names the source: Spark finds that by its module's name.

    The JVM stays for the next file, the context does not: commands of other tests make their own.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.sql.session.timeZone", "UTC")
    session = builder.config("spark.log.level", "ERROR").config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()
