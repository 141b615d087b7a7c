"""The measured processes: each does one thing several times and prints one JSON line, `{"seconds": [...], ...}`.

    compact EXECUTOR CODEC TABLE...    ours in one process, a table a run; one Spark context for all
    bare CODEC EXTRA TABLE...          reads the base, decodes the logs, writes the base; nothing is merged
    empty-spark                        a Spark context and the smallest Python job
    read-ours|read-hudi-rs TABLE RUNS  a snapshot read to Arrow
    checksum TABLE                     rows and checksum of our snapshot
    upsert ENGINE CODEC LOGS BUCKETS BASE TABLES UPSERT...   bulk inserts into each table, then upserts into the last
    upsert-delta BASE TABLE UPSERT...  the same with deltalake, one bulk insert

A process of its own per measurement keeps imports, memory and thread pools of one out of the figures of another.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 2


def compact(executor: str, codec: str, *tables: str) -> dict[str, Any]:
    """The product's own `run_compactions`, with a runner that outlives the runs."""
    from phantombase.compactor_daemon.execution.run_compactions import run_compactions
    from phantombase.compactor_daemon.execution.runners import open_runner
    from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
    from phantombase.timeline.codec.output_options import Codec, OutputOptions

    execute = ExecuteOptions(executor=Executor(executor), master=f"local[{THREADS}]", threads=THREADS)
    output, attempt = OutputOptions(codec=Codec(codec)), AttemptOptions()
    with open_runner(execute) as runner:
        return _timed(
            lambda table: run_compactions(table, output=output, execute=execute, attempt=attempt, runner=runner), tables
        )


def bare(codec: str, extra: str, *tables: str) -> dict[str, Any]:
    """What no compaction can do without, by the same pieces and with as many threads, rows and files.

    Imported first: the package, which chooses Arrow's memory pool.
    """
    from phantombase.timeline.codec.output_options import Codec

    return _timed(lambda table: _bare(table, Codec(codec), int(extra)), tables)


def _bare(path: str, codec: Any, extra: int) -> None:
    from phantombase.timeline.read.table_read import ReadOptions, plan_read
    from phantombase.timeline.table.table import Table

    scan = plan_read(Table.open(path), ReadOptions())
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda slice_: _bare_slice(scan, slice_, codec, extra), scan.slices))


def _bare_slice(scan: Any, slice_: Any, codec: Any, extra: int) -> None:
    """Writes the base rows and `extra` of the log rows, which stand for the inserts that a compaction writes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from phantombase.timeline.codec.avro_schema import RECORD_KEY
    from phantombase.timeline.codec.bloom import BloomBuilder
    from phantombase.timeline.codec.parquet_write import open_parquet_writer
    from phantombase.timeline.format.log_block import BlockKind, scan_blocks
    from phantombase.timeline.format.log_decode import decode_rows

    storage, schema = scan.table.storage, scan.rules.schema
    decoded = []
    for log in slice_.logs:
        source = storage.open_input(log.path)
        blocks = [b for b in scan_blocks(source, log.path) if b.kind is not BlockKind.COMMAND]
        decoded += [part for block in blocks for part in decode_rows(block, source, schema)]
    bloom = BloomBuilder()
    target = os.path.join(os.path.dirname(storage.base_path), f"bare-{slice_.file_id}.parquet")
    with storage.open_input(slice_.base.path) as source, open(target, "wb") as file:
        base = pq.ParquetFile(source).read().cast(schema)
        whole = pa.concat_tables([base, pa.concat_tables(decoded).slice(0, extra)])
        bloom.add(whole.column(RECORD_KEY))
        writer = open_parquet_writer(file, schema, codec.value, whole)
        writer.write(whole, row_group_size=500_000)
        writer.add_key_value_metadata({"org.apache.hudi.bloomfilter": bloom.finish().text})
        writer.close()


def empty_spark() -> dict[str, Any]:
    """The least that a PySpark program with a Python job costs, under the settings that ours starts Spark with."""
    from pyspark import SparkConf, SparkContext

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf = SparkConf().setMaster(f"local[{THREADS}]").setAppName("empty")
    for key, value in {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        conf.set(key, value)
    context = SparkContext(conf=conf)
    found = context.parallelize(range(2), 2).map(lambda x: x).collect()
    context.stop()
    return {"seconds": [], "rows": len(found)}


def read_ours(path: str, runs: str) -> dict[str, Any]:
    """`read_table`, the table opened anew each time."""
    from phantombase.timeline.read.table_read import ReadOptions, read_table
    from phantombase.timeline.table.table import Table

    return _timed(lambda p: read_table(Table.open(p), ReadOptions(threads=THREADS)).num_rows, [path] * int(runs))


def read_hudi_rs(path: str, runs: str) -> dict[str, Any]:
    """hudi-rs, the table opened anew each time; it uses as many threads as it likes."""
    from hudi import HudiTableBuilder

    def read(p: str) -> int:
        return sum(batch.num_rows for batch in HudiTableBuilder.from_base_uri(p).build().read())

    return _timed(read, [path] * int(runs))


def upsert(engine: str, codec: str, logs: str, buckets: str, base: str, tables: str, *upserts: str) -> dict[str, Any]:
    """The product's own writes. `engine`: spark (one session for all), spark-filtered or local; `tables`: paths with
    `,` between."""
    import pyarrow.parquet as pq

    from phantombase import Writer, writer
    from phantombase.timeline.codec.output_options import Codec, OutputOptions
    from phantombase.timeline.format.log_encode import LogFormat

    frame: Callable[[str], Any] = pq.read_table
    if engine.startswith("spark"):
        spark = session()
        frame = spark.read.parquet
        if engine == "spark-filtered":  # no bare scan of files: the rows pass the JVM
            frame = lambda path: spark.read.parquet(path).where("ts >= 0")  # noqa: E731

    def write(path: str) -> Writer:
        output = OutputOptions(codec=Codec(codec))
        described = writer(frame(path)).table("bench").key("id").ordering("ts").buckets(int(buckets))
        return described.option(output=output, log_format=LogFormat(logs))

    target = tables.split(",")[-1]
    inserts = _timed(lambda table: write(base).bulk_insert(table).writes, tables.split(","))
    done = _timed(lambda path: write(path).upsert(target).writes, upserts)
    return {**done, "bulk_insert_seconds": inserts["seconds"]}


def session() -> Any:
    """The small Spark session of ours, one a process."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{THREADS}]").appName("bench")
    for key, value in {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def upsert_delta(base: str, table: str, *upserts: str) -> dict[str, Any]:
    """deltalake's own writer and merge, in this process; it rewrites the files it changes."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, write_deltalake

    inserts = _timed(lambda path: write_deltalake(path, pq.read_table(base)), [table])

    def merge(path: str) -> None:
        merger = DeltaTable(table).merge(
            pq.read_table(path), predicate="t.id = s.id", source_alias="s", target_alias="t"
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    return {**_timed(merge, upserts), "bulk_insert_seconds": inserts["seconds"]}


def checksum(path: str) -> dict[str, Any]:
    """A sum over row hashes, so independent of row order. Meta columns differ by who compacts: keys only."""
    import numpy as np
    import polars as pl

    from phantombase.timeline.read.table_read import read_table
    from phantombase.timeline.table.table import Table

    table = read_table(Table.open(path))
    names = [n for n in table.schema.names if not n.startswith("_hoodie_") or n == "_hoodie_record_key"]
    total = np.uint64(0)
    for batch in table.select(sorted(names)).to_batches(max_chunksize=1 << 20):
        frame = pl.DataFrame(pl.from_arrow(batch))
        total += frame.hash_rows(seed=1).to_numpy().sum(dtype=np.uint64)
    return {"seconds": [], "rows": table.num_rows, "checksum": f"{int(total):016x}"}


def _timed(work: Callable[[str], Any], tables: Iterable[str]) -> dict[str, Any]:
    """Seconds of each run, what the last returned where that is a number, and this process's peak memory."""
    seconds, result = [], None
    for table in tables:
        started = time.perf_counter()
        result = work(table)
        seconds.append(round(time.perf_counter() - started, 4))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "rows": result if isinstance(result, int) else None, "peak_bytes": peak}


def main() -> None:
    """Runs what the command line names; the JSON line is the last of stdout."""
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "compact": compact,
        "bare": bare,
        "empty-spark": empty_spark,
        "read-ours": read_ours,
        "read-hudi-rs": read_hudi_rs,
        "checksum": checksum,
        "upsert": upsert,
        "upsert-delta": upsert_delta,
    }
    print(json.dumps(commands[sys.argv[1]](*sys.argv[2:])), flush=True)


if __name__ == "__main__":
    main()
