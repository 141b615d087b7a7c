"""Converts Spark's schemas to Arrow's, with every PySpark from 3.5 on; pyspark is imported only when it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..errors import UsageError


def arrow_of_spark(schema: Any) -> pa.Schema:
    """The Arrow schema of the batches that Spark exchanges with Python; timestamps are in UTC.
    PySparkException: a type that Arrow does not have. UsageError: a record has two fields of one name, which PySpark
    before 4.0 does not check."""
    from pyspark.sql.pandas.types import to_arrow_schema

    asked: dict[str, Any] = {"error_on_duplicated_field_names_in_struct": True, "timezone": "UTC"}
    known = inspect.signature(to_arrow_schema).parameters
    found = to_arrow_schema(schema, **{name: value for name, value in asked.items() if name in known})
    for path, kind in _records(found):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if len(set(names)) < len(names):
            raise UsageError(
                "a record with two fields of one name",
                found=f"{path}: {', '.join(names)}",
                todo="Rename one of them in the DataFrame.",
            )
    return found


def _records(schema: pa.Schema) -> Iterator[tuple[str, pa.StructType]]:
    """All records of a schema, also those in lists and maps, with their paths."""
    waiting = [(field.name, field.type) for field in schema]
    while waiting:
        path, kind = waiting.pop()
        if pa.types.is_struct(kind):
            yield path, kind
        waiting += [(f"{path}.{kind.field(i).name}", kind.field(i).type) for i in range(kind.num_fields)]
