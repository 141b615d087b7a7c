"""Columns of Arrow as Spark has them, and batches in exactly the schema that Spark checks."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructType

from phantombase.timeline.codec.spark_types import arrow_of_spark
from phantombase.timeline.errors import UnsupportedError, UsageError


def spark_columns(schema: pa.Schema) -> StructType:
    """The Spark type of every column; UnsupportedError names one that Spark has no type for."""
    fields = []
    for field in schema:
        try:
            fields += from_arrow_schema(pa.schema([field.remove_metadata()])).fields
        except PySparkTypeError as error:
            raise UnsupportedError("Spark has no type for a column", found=f"{field.name}: {field.type}") from error
    return StructType(fields)


def arrow_columns(columns: StructType) -> pa.Schema:
    """What Spark demands of the first batch of a task."""
    return arrow_of_spark(columns)


def check_columns(asked: StructType, of_table: StructType) -> None:
    """UsageError: a DataFrame's schema has a column that the table has not, or has with another type."""
    types = {field.name: field.dataType for field in of_table.fields}
    for field in asked.fields:
        there = types.get(field.name)
        if there is None or not _same(there, field.dataType):
            raise UsageError(
                "the schema of a DataFrame is not that of its table",
                expected=f"{field.name} {there.simpleString()}" if there else ", ".join(types),
                found=f"{field.name} {field.dataType.simpleString()}",
                todo="Where the schema was given, give the type of the table; else the table has changed: load again.",
            )


def _same(one: DataType, other: DataType) -> bool:
    """Equal but for what may be null."""
    return one.simpleString() == other.simpleString()


def as_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema, which has the same columns in any order."""
    if batch.schema.equals(schema):
        return batch
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
