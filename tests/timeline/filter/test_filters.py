"""Reads with a filter give exactly the rows that the filter keeps of a read of everything.

The filter is judged by DuckDB, which shares nothing with ours: neither parser, nor evaluation, nor what is left out."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import Writer, compact, schedule, writer
from phantombase.compactor_daemon.options import ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.format.record_key import key_hashes
from phantombase.timeline.read import pruning, table_read
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read, read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.decoded_rows import see_decoded
from tests.support.drawn_partitions import random_filter
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.places import SEED, capture_logs
from tests.support.selection import ALL, deep

_USUAL = {"v6_pending", "v6_complex_key", "v9_types", "v9_virtual_keys", "v9_bucket_nonpart", "v9_two_pending"}
LOCAL = ExecuteOptions(executor=Executor.LOCAL, threads=1)
_FILTERS = 60 if ALL else 4


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


def written(path: Path, *, logs: bool) -> Table:
    """300 rows in sorted row groups of 30; with logs: late updates that must lose, newer ones, inserts and deletes."""

    def written_by(rows: pa.Table) -> Writer:
        described = writer(rows).table("t").key("id").ordering("ts").buckets(1)
        return described.option(log_format=LogFormat.AVRO)

    def upsert(numbers: range, time: int, shift: int) -> None:
        values = {"id": [f"k{i:03}" for i in numbers], "n": [i + shift for i in numbers], "x": [i / 4 for i in numbers]}
        written_by(pa.table({**values, "ts": [time] * len(numbers)})).upsert(str(path))

    upsert(range(300), 5, 0)
    upsert(range(0, 300, 300), 5, 0)  # a compaction needs a log
    schedule(str(path), sole_writer=True)
    compact(str(path), execute=LOCAL, output=OutputOptions(row_group_rows=30))
    if logs:
        upsert(range(0, 300, 11), 3, 1000)
        upsert(range(0, 300, 13), 9, 2000)
        upsert(range(290, 320), 9, -50)
        written_by(pa.table({"id": ["k007", "k150"], "ts": [9, 9]})).delete(str(path))
    return Table.open(str(path))


@pytest.mark.parametrize("logs", [False, True])
def test_row_groups(logs: bool, tmp_path: Path) -> None:
    """Only row groups that can hold a matching row are read; with logs a base row that does not match may still win."""
    table = written(tmp_path / "t", logs=logs)
    (slice_,) = plan_read(table, ReadOptions()).slices
    assert slice_.base is not None
    assert bool(slice_.logs) is logs
    assert pq.read_metadata(tmp_path / "t" / slice_.base.path).num_row_groups == 10
    everything = read_table(table)
    random = Random(SEED)
    texts = [
        "n > 1000",
        "n < 0",
        "n between 40 and 50",
        "id = 'k077'",
        "id in ('k000', 'k143', 'k299', 'k310', 'k007')",
    ]
    texts += [f"id = 'k{number:03}' and n < 1000" for number in (0, 11, 13, 143, 286)]
    for text in [*texts, *(random_filter(random, everything) for _ in range(40 if ALL else 6))]:
        assert_same_rows(read_table(table, ReadOptions(filter=text)), _judged(everything, text))


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without logs those outside the bounds; with logs those without the key, or all if nothing matches anywhere."""
    read: list[list[int] | None] = []
    see_decoded(monkeypatch, lambda _, groups: read.append(groups))
    for logs in (False, True):
        table = written(tmp_path / str(logs), logs=logs)
        (slice_,) = plan_read(table, ReadOptions()).slices
        assert slice_.base is not None
        base = pq.ParquetFile(tmp_path / str(logs) / slice_.base.path)
        keys, numbers = within(base, "id", "k077", "k077"), within(base, "n", 40, 65)
        wanted = {
            "id = 'k077'": [keys],
            "n between 40 and 65": [None if logs else numbers],
            "n > 10000": [] if logs else [[]],
        }
        for text, groups in wanted.items():
            read.clear()
            read_table(table, ReadOptions(filter=text))
            assert read == groups, text


def within(base: pq.ParquetFile, column: str, low: Any, high: Any) -> list[int]:
    """The row groups whose least and greatest value leave room for one from `low` to `high`."""
    values = [base.read_row_group(i, columns=[column])[column].to_pylist() for i in range(base.num_row_groups)]
    found = [i for i, each in enumerate(values) if min(each) <= high and max(each) >= low]
    assert 0 < len(found) < base.num_row_groups
    return found


def _judged(rows: pa.Table, text: str) -> pa.Table:
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    connection.register("rows", rows.append_column("__row", pa.array(range(rows.num_rows), pa.int64())))
    condition = re.sub(r"X('[0-9a-f]*')", r"from_hex(\1)", text)
    found = connection.sql(f"select __row from rows where {condition}").to_arrow_table()
    return rows.take(found.column("__row"))


# A read by key in a table with a bucket index opens the bucket of the key, and loses no row where there is none.


KEYS = [f"k{i}" for i in range(300)]


def bucket_pruning_written(path: Path, buckets: int | None, *key: str) -> Table:
    """Two writes of 300 rows: base files, and log files with the even ones."""
    rows = pa.table({"id": KEYS, "n": list(range(300)), "ts": [1] * 300})
    for part, time in ((rows, 1), (rows.take(pa.array(range(0, 300, 2))), 2)):
        made = writer(part.set_column(2, "ts", pa.array([time] * part.num_rows))).table("t").key(*key).ordering("ts")
        (made if buckets is None else made.buckets(buckets)).upsert(str(path))
    return Table.open(str(path))


@pytest.mark.parametrize("buckets", [7, None])
@pytest.mark.parametrize("key", [("id",), ("id", "n")])
def test_every_key_is_found(buckets: int | None, key: tuple[str, ...], tmp_path: Path) -> None:
    """With buckets and one key field in one file slice; else in all that there are."""
    table = bucket_pruning_written(tmp_path / "t", buckets, *key)
    everything = read_table(table)
    for number in range(0, 300, 29):
        text = f"id = 'k{number}' and n = {number}"
        scan = plan_read(table, ReadOptions(filter=text))
        assert_same_rows(scan.to_table(), everything.filter(pc.equal(everything["n"], number)))
        proved = buckets is not None and len(key) == 1
        assert (len(scan.slices) == 1) is (proved or len(plan_read(table, ReadOptions()).slices) == 1)
    many = plan_read(table, ReadOptions(filter=f"id in ({', '.join(map(repr, KEYS))}) and n in (1, 2)"))
    assert many.to_table().num_rows == 2


def test_few_keys_are_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A divisor that a handful of keys have in common may be chance."""
    table = bucket_pruning_written(tmp_path / "t", 7, "id")
    options = ReadOptions(filter="id = 'k1'")
    assert len(plan_read(table, options).slices) == 1
    monkeypatch.setattr(pruning, "_SAMPLE_KEYS_MIN", 10_000)
    assert len(plan_read(table, options).slices) == 7


def test_keys_that_are_not_in_their_bucket_prune_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashed by another rule, they have no divisor in common."""
    table = bucket_pruning_written(tmp_path / "t", 7, "id")
    monkeypatch.setattr(pruning, "key_hashes", lambda *args: key_hashes(*args) * 3 + 1)
    assert len(plan_read(table, ReadOptions(filter="id = 'k1'")).slices) == 7


# Filters use the column statistics of the metadata table: file slices are left out, and no row is lost.


INDEXED = [deep("v8_with_metadata_table"), "v9_with_metadata_table"]
_DATA_SKIPPING_FILTERS = 400 if ALL else 12


@pytest.fixture
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read, "LEAST_FILES", 1)


@pytest.mark.usefixtures("_few_files")
@pytest.mark.parametrize("query", [Query.SNAPSHOT, Query.READ_OPTIMIZED], ids=lambda query: query.value)
@pytest.mark.parametrize("name", INDEXED)
def test_no_row_is_lost(name: str, query: Query, tmp_path: Path) -> None:
    """Statistics that Hudi wrote, of base files and of log files: the same rows with them and without."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    everything = read_table(table, ReadOptions(query=query))
    random = Random(f"{name} {query}")
    fewer = 0
    for text in ["ts < 0", *(random_filter(random, everything) for _ in range(_DATA_SKIPPING_FILTERS))]:
        plans = [plan_read(table, ReadOptions(query=query, filter=text, data_skipping=on)) for on in (True, False)]
        fewer += len(plans[0].slices) < len(plans[1].slices)
        try:
            assert_same_rows(*(plan.to_table() for plan in plans))
        except AssertionError as error:
            raise AssertionError(f"{text}\n{error}") from None
    assert fewer


@pytest.mark.usefixtures("_few_files")
@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize(
    ("text", "skipped"),
    [("ts < 0", True), ("id = 'zzz'", True), ("n is not null or ts < 0", False), ("fare > 1e9", False)],
)
def test_what_the_statistics_rule_out(text: str, skipped: bool, name: str, tmp_path: Path) -> None:
    """Floats have no bounds that a reader may trust."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    assert (not plan_read(table, ReadOptions(filter=text)).slices) == skipped


@pytest.mark.usefixtures("_few_files")
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


@pytest.mark.usefixtures("_few_files")
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


@pytest.mark.usefixtures("_few_files")
def test_small_tables_do_not_read_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a read without it."""
    table = Table.open(str(unzip_golden(INDEXED[1], tmp_path)))
    assert plan_read(table, ReadOptions(filter="ts < 0", data_skipping=False)).slices
    monkeypatch.setattr(table_read, "LEAST_FILES", 1_000)
    assert plan_read(table, ReadOptions(filter="ts < 0")).slices
