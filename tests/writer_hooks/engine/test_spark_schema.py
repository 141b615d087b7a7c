"""Spark schemas as Arrow's: no session is needed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.errors import UsageError
from phantombase.writer_hooks.engine.spark import from_spark
from phantombase.writer_hooks.schema.column_types import data_fields
from phantombase.writer_hooks.schema.table_schema import new_schema


def test_every_type_of_spark() -> None:
    """Through Arrow into Avro; nullability stays."""
    nested = T.StructType([T.StructField("a", T.ArrayType(T.ShortType(), containsNull=False), nullable=False)])
    kinds: dict[str, tuple[T.DataType, pa.DataType]] = {
        "s": (T.StringType(), pa.string()),
        "x": (T.BinaryType(), pa.binary()),
        "b": (T.BooleanType(), pa.bool_()),
        "i1": (T.ByteType(), pa.int32()),
        "i2": (T.ShortType(), pa.int32()),
        "i4": (T.IntegerType(), pa.int32()),
        "i8": (T.LongType(), pa.int64()),
        "f": (T.FloatType(), pa.float32()),
        "g": (T.DoubleType(), pa.float64()),
        "d": (T.DecimalType(38, 5), pa.decimal128(38, 5)),
        "day": (T.DateType(), pa.date32()),
        "t": (T.TimestampType(), pa.timestamp("us", tz="UTC")),
        "tn": (T.TimestampNTZType(), pa.timestamp("us")),
        "m": (T.MapType(T.StringType(), T.ByteType()), pa.map_(pa.string(), pa.field("value", pa.int32()))),
        "r": (
            nested,
            pa.struct([pa.field("a", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)]),
        ),
    }
    spark = T.StructType([T.StructField(n, k, nullable=n != "s") for n, (k, _) in kinds.items()])
    expected = pa.schema([pa.field(n, k, nullable=n != "s") for n, (_, k) in kinds.items()])
    assert data_fields(from_spark(spark)).equals(expected)
    assert arrow_schema(new_schema("t", from_spark(spark))).equals(expected)


@pytest.mark.parametrize(
    "kind",
    [
        T.NullType(),
        T.DayTimeIntervalType(),
        T.YearMonthIntervalType(),
        *([T.VariantType()] if hasattr(T, "VariantType") else []),  # from PySpark 4 on
        T.MapType(T.LongType(), T.LongType()),
    ],
)
def test_types_no_column_has(kind: T.DataType) -> None:
    """Refused by name."""
    with pytest.raises(UsageError):
        new_schema("t", from_spark(T.StructType([T.StructField("c", kind)])))
