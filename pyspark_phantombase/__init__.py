"""The Spark data source `phantombase`: `format("phantombase")` reads and writes tables, from PySpark 4.0 on."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # PySpark 3.5 has no Python sources: `phantombase.spark_read` reads there
    DataSource = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """A Hudi table as a source of Spark. Its options are those of `options.SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        return "phantombase"

    def schema(self) -> StructType:
        """The columns of the table, or those that the option `columns` names."""
        from .batch_reader import table_columns
        from .options import source_options

        return table_columns(source_options(self.options).of_table())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns, which may be fewer than the table has."""
        from .batch_reader import BatchReader
        from .options import batch_options

        return BatchReader(batch_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of what is written from now on, or from the option `begin` on."""
        from .options import stream_options

        _check_streams()
        from .stream_reader import StreamReader

        return StreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A write of rows with these columns: of the mode `append`, or `overwrite`."""
        from .options import sink_options
        from .writers import BatchWriter

        return BatchWriter(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A write of a stream. `overwrite`: of the output mode `complete`, each batch replaces all rows."""
        from .options import sink_options

        _check_stream_writes()
        from .writers import StreamWriter

        return StreamWriter(sink_options(self.options, streams=True), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Names the functions `phantombase_show`, `phantombase_plan` and `phantombase_compact` in a session of Spark SQL.
    UnsupportedError: a PySpark without table functions in Python. The source needs no registration."""
    from .table_functions import register as register_functions

    register_functions(spark)


def _check_streams() -> None:
    """UnsupportedError: a PySpark whose sources do not take the limit of a batch of a stream."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise _too_old(
            "streams of the source phantombase",
            "PySpark 4.2 or newer, whose sources take the limit of a batch",
            "Batch and incremental reads work here: read window after window with query=incremental.",
        )


def _check_stream_writes() -> None:
    """UnsupportedError: a PySpark whose sources take no Arrow batches of a stream."""
    import pyspark.sql.datasource

    if not hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
        raise _too_old(
            "writing a stream by the source phantombase",
            "PySpark 4.1 or newer, whose sources take Arrow batches of a stream",
            "Write it with df.writeStream.foreachBatch(writer()...foreach_batch(PATH)).",
        )


def _too_old(what: str, expected: str, todo: str) -> Exception:
    import pyspark

    from phantombase.timeline.errors import UnsupportedError

    return UnsupportedError(what, expected=expected, found=f"PySpark {pyspark.__version__}", todo=todo)
