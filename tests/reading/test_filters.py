"""Reads with a filter give exactly the rows that the filter keeps of a read of everything.

The filter is judged by DuckDB, which shares nothing with ours: neither parser, nor evaluation, nor what is left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest

from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.random_filters import random_filter
from tests.support.selection import ALL, deep

_USUAL = {"v6_pending", "v6_complex_key", "v9_types", "v9_virtual_keys", "v9_bucket_nonpart", "v9_two_pending"}
_FILTERS = 60 if ALL else 20


@pytest.mark.parametrize("name", [name if name in _USUAL else deep(name) for name in GOLDEN])
@pytest.mark.parametrize("query", [Query.SNAPSHOT, deep(Query.READ_OPTIMIZED)], ids=lambda query: query.value)
def test_random_filters(name: str, query: Query, tmp_path: Path) -> None:
    """On every kind of column: the same rows as DuckDB finds in a full read."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    everything = read_table(table, ReadOptions(query=query))
    random = Random(f"{name} {query}")
    for _ in range(_FILTERS):
        text = random_filter(random, everything)
        found = read_table(table, ReadOptions(query=query, filter=text))
        try:
            assert_same_rows(found, _judged(everything, text))
        except AssertionError as error:
            raise AssertionError(f"{text}\n{error}") from None


def _judged(rows: pa.Table, text: str) -> pa.Table:
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    connection.register("rows", rows.append_column("__row", pa.array(range(rows.num_rows), pa.int64())))
    condition = re.sub(r"X('[0-9a-f]*')", r"from_hex(\1)", text)
    found = connection.sql(f"select __row from rows where {condition}").to_arrow_table()
    return rows.take(found.column("__row"))
