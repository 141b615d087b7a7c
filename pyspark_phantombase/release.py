"""What the PySpark that runs can do."""

from __future__ import annotations

from importlib.util import find_spec

from phantombase.timeline.errors import UnsupportedError


def check_streams() -> None:
    """UnsupportedError: a PySpark whose sources do not take the limit of a batch of a stream."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        import pyspark

        raise UnsupportedError(
            "streams of the source phantombase",
            expected="PySpark 4.2 or newer, whose sources take the limit of a batch",
            found=f"PySpark {pyspark.__version__}",
            todo="Batch and incremental reads work here: read window after window with query=incremental.",
        )
