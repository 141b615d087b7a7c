"""All ways to read a table give the same rows: with and without the native module, in batches of any size, with a limit
of memory, by columns, tasks and partitions, as of now, as a window from the beginning, and with filters and keys.

So it is after a compaction, a log compaction and a clustering, but for the times and files of rows.
`python -m tests.timeline.read.test_agreeing_reads SEED TABLE...` tries tables of others."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from shutil import copytree
from unittest import mock

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec import avro_decode, row_hash
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.filter.possible import bound, matching
from phantombase.timeline.filter.tree import Compare, Filter, Op, parse_filter
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read import table_read
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read, read_table
from phantombase.timeline.table.table import Table
from pyspark_phantombase.batch_reader import parted
from tests.support.change_feeds import MERGE_LOGS
from tests.support.compare_rows import assert_same_rows
from tests.support.drawn_partitions import random_filter
from tests.support.golden_tables import unzip_golden

_OF_FILES = ("_hoodie_file_name", "_hoodie_commit_time", "_hoodie_commit_seqno")
pytestmark = pytest.mark.deep


@contextmanager
def _without_native() -> Iterator[None]:
    with mock.patch.object(avro_decode, "native", None), mock.patch.object(row_hash, "native", None):
        yield


def check_reads(path: Path, random: Random, filters: int) -> pa.Table:
    """Every way to read the table; its rows."""
    table = Table.open(str(path))
    everything = read_table(table, ReadOptions(threads=1))

    def check(what: str, found: pa.Table, expected: pa.Table = everything) -> None:
        try:
            assert_same_rows(found, expected)
        except AssertionError as error:
            raise AssertionError(f"{path}: {what}\n{error}") from None

    with _without_native():
        check("without the native module", read_table(table, ReadOptions(batch_rows=random.choice((3, 65_536)))))
    check("batches of a row", read_table(table, ReadOptions(batch_rows=1)))
    with mock.patch.object(SliceRules, "fold_bytes", 100.0):
        check("spilled", read_table(table, ReadOptions(batch_rows=7)))
    for name in everything.column_names:
        check(name, read_table(table, ReadOptions(columns=(name,))), everything.select([name]))
    scan = plan_read(table, ReadOptions())
    batches = [batch for one in parted(scan, random.choice((1, 30_000))) for batch in one.batches()]
    check("tasks", pa.Table.from_batches(batches, scan.schema))
    if partitions := [partition for partition in table.partitions() if partition]:
        parts = [read_table(table, ReadOptions(partition=partition)) for partition in partitions]
        check("partitions", pa.concat_tables(parts))
    check("as of now", read_table(table, ReadOptions(as_of="99991231235959999")))
    for query in (Query.SNAPSHOT, Query.READ_OPTIMIZED, Query.INCREMENTAL):
        begin = "earliest" if query is Query.INCREMENTAL else None
        try:
            rows = read_table(table, ReadOptions(query=query, begin=begin))
        except (UnsupportedError, UsageError):  # a window of a table without times, or behind a clean
            continue
        if query is Query.INCREMENTAL:
            check("window", rows)
        for number in range(filters if rows.num_rows else 0):
            node = _key(table, rows, random) if number % 4 == 0 else parse_filter(random_filter(random, rows))
            columns = tuple(random.sample(rows.column_names, random.randint(1, 4)))
            options = ReadOptions(
                query=query, begin=begin, filter=node, columns=columns, data_skipping=random.random() < 0.7
            )
            check(f"{query} {node}", read_table(table, options), _kept(node, rows).select(list(columns)))
    return everything


def _kept(node: Filter, rows: pa.Table) -> pa.Table:
    return matching(bound(node, rows.schema), rows)


def _key(table: Table, rows: pa.Table, random: Random) -> Filter:
    """One of a row's key fields, or its key."""
    fields = [*table.config.record_key_fields, *(("_hoodie_record_key",) if table.config.populate_meta_fields else ())]
    name = random.choice(fields)
    value = rows[name][random.randrange(rows.num_rows)].as_py()
    return Compare(name, Op.EQ, value) if value is not None else parse_filter(f'"{name}" is null')


def services(path: Path, random: Random, filters: int) -> None:
    """The same on a copy of the table after each service."""

    def plan(place: str, options: ScheduleOptions) -> None:
        schedule_compaction(Table.open(place), ProcessLock(place), options)
        execute = ExecuteOptions(executor=Executor.LOCAL, threads=1)
        run_compactions(place, output=OutputOptions(), execute=execute, attempt=AttemptOptions())

    def cluster(place: str) -> None:
        options = ClusterOptions(min_files=2, wait_s=0, full=True)
        cluster_table(Table.open(place), options, ProcessLock(place), output=OutputOptions())

    before = read_table(Table.open(str(path)))
    kept = [name for name in before.column_names if name not in _OF_FILES]
    for service in (partial(plan, options=ScheduleOptions()), partial(plan, options=MERGE_LOGS), cluster):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            copytree(path, copy)
            try:
                service(str(copy))
            except UnsupportedError:
                continue
            assert_same_rows(check_reads(copy, random, filters).select(kept), before.select(kept))


@pytest.mark.parametrize("name", ["v9_with_metadata_table", "v6_complex_key", "v9_two_pending"])
def test_each_way_gives_the_same_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read, "LEAST_FILES", 1)
    path = unzip_golden(name, tmp_path)
    check_reads(path, Random(name), 8)
    services(path, Random(name), 2)


if __name__ == "__main__":
    table_read.LEAST_FILES = 1
    for at in map(Path, sys.argv[2:]):
        check_reads(at, Random(sys.argv[1]), 20)
        services(at, Random(sys.argv[1]), 6)
        print(f"{at}: the same", flush=True)
