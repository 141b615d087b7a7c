"""Filters use the column statistics of the metadata table: file slices are left out, and no row is lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from phantombase.timeline.read import table_read
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read, read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.logs import capture_logs
from tests.support.random_filters import random_filter
from tests.support.selection import ALL, deep

INDEXED = [deep("v8_with_metadata_table"), "v9_with_metadata_table"]
_FILTERS = 400 if ALL else 60


@pytest.fixture(autouse=True)
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read, "LEAST_FILES", 1)


@pytest.mark.parametrize("query", [Query.SNAPSHOT, Query.READ_OPTIMIZED], ids=lambda query: query.value)
@pytest.mark.parametrize("name", INDEXED)
def test_no_row_is_lost(name: str, query: Query, tmp_path: Path) -> None:
    """Statistics that Hudi wrote, of base files and of log files: the same rows with them and without."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    everything = read_table(table, ReadOptions(query=query))
    random = Random(f"{name} {query}")
    fewer = 0
    for _ in range(_FILTERS):
        text = random_filter(random, everything)
        plans = [plan_read(table, ReadOptions(query=query, filter=text, data_skipping=on)) for on in (True, False)]
        fewer += len(plans[0].slices) < len(plans[1].slices)
        try:
            assert_same_rows(*(plan.to_table() for plan in plans))
        except AssertionError as error:
            raise AssertionError(f"{text}\n{error}") from None
    assert fewer


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize(
    ("text", "skipped"),
    [("ts < 0", True), ("id = 'zzz'", True), ("n is not null or ts < 0", False), ("fare > 1e9", False)],
)
def test_what_the_statistics_rule_out(text: str, skipped: bool, name: str, tmp_path: Path) -> None:
    """Floats have no bounds that a reader may trust."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    assert (not plan_read(table, ReadOptions(filter=text)).slices) == skipped


def test_one_file_without_statistics_keeps_its_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest row of a key may lie there."""
    table = Table.open(str(unzip_golden("v9_with_metadata_table", tmp_path)))
    found = plan_read(table, ReadOptions()).slices
    last = {slice_.logs[-1].path for slice_ in found if slice_.logs}
    assert last
    known = table_read._bounds
    monkeypatch.setattr(
        table_read,
        "_bounds",
        lambda *given: {key: bounds for key, bounds in known(*given).items() if key[0] not in last},
    )
    kept = plan_read(table, ReadOptions(filter="ts < 0")).slices
    assert set(kept) == {slice_ for slice_ in found if slice_.logs}


def test_a_damaged_index_is_not_used(tmp_path: Path) -> None:
    """The answer is right, and the log says why the read is slow."""
    path = unzip_golden(INDEXED[1], tmp_path)
    for file in (path / ".hoodie/metadata/column_stats").iterdir():
        if file.is_file() and "parquet" not in file.name and not file.name.endswith(".crc"):
            file.write_bytes(file.read_bytes()[:-100] + bytes(100))
    table = Table.open(str(path))
    with capture_logs() as logs:
        plan = plan_read(table, ReadOptions(filter="ts < 0"))
    assert plan.slices
    assert [line["event"] for line in logs] == ["column_statistics_not_used"]


def test_small_tables_do_not_read_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a read without it."""
    table = Table.open(str(unzip_golden(INDEXED[1], tmp_path)))
    assert plan_read(table, ReadOptions(filter="ts < 0", data_skipping=False)).slices
    monkeypatch.setattr(table_read, "LEAST_FILES", 1_000)
    assert plan_read(table, ReadOptions(filter="ts < 0")).slices
