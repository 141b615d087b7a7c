"""Publishing to Iceberg: Spark's reader has the rows of the read-optimized query, after each step of a history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.golden_tables import unzip_golden
from tests.support.iceberg_readers import IcebergReader
from tests.support.iceberg_tables import Lake, bag, history
from tests.support.spark_iceberg import spark_reader

pytestmark = [pytest.mark.deep, pytest.mark.interop, pytest.mark.spark]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergReader]:
    with spark_reader(tmp_path_factory.mktemp("answers")) as reader:
        yield reader


@pytest.mark.parametrize(("version", "seed"), [(9, 32), (6, 36)])
def test_after_each_step(version: int, seed: int, tmp_path: Path, spark: IcebergReader) -> None:
    """With flat columns, which Spark reads in batches, and with nested ones, among them lists that we write."""
    lake, done = Lake(tmp_path, version=version), list[str]()
    if version == 9:
        lake.columns = {"tags": pa.scalar(["x", None]), "steps": pa.scalar([{"a": 1}])}
    lake.put("a1", "a2", "b1", "c1")
    for name, step in [("compact", lake.compact), *history(lake, seed, 15)]:
        done.append(name)
        try:
            step()
            lake.sync()
            lake.check(spark.rows(lake.published.metadata_location))
        except BaseException as error:
            error.add_note(f"steps: {done}")
            raise


@pytest.mark.parametrize("name", ["v6_types", "v9_types"])
def test_tables_of_hudi(name: str, tmp_path: Path, spark: IcebergReader) -> None:
    """Of all types; but Iceberg's Parquet reader for Java fails at the lists of two levels that Hudi writes (its issue
    9497)."""
    unzip_golden(name, tmp_path)
    (tmp_path / name.partition("_")[2]).rename(tmp_path / "t")
    lake = Lake(tmp_path)
    lake.name = lake.sync().tables[0].name
    wanted = lake.wanted().drop_columns("tags")
    found = spark.rows(lake.published.metadata_location, "tags").select(wanted.column_names).cast(wanted.schema)
    assert wanted.num_rows
    assert bag(found) == bag(wanted)
