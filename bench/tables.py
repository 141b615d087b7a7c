"""Benchmark tables, written by real Apache Hudi 1.2.0 and cached.

    $PHANTOMBASE_BENCH_HOME, or ~/.cache/phantombase/bench
      <name>-<digest of the spec>/
        lock              held while the table is made
        table/            the Hudi table; never changed afterwards: benchmarks that write use `copy_of`
        ready.json        marker, written last: what the table holds (`Made`)

A table is a bulk insert, upserts, and (where compaction is measured) a pending compaction. Rows come from a seed,
vectorised. One bucket of the bucket index is one file slice, so the number of slices is exact.

`python -m bench.tables [--large]` makes them all; making is never part of a measured time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from tests.hudi.judge.client import Judge

HUDI = "1.2.0"
_PART_ROWS = 500_000
"""Rows generated at a time: what bounds memory."""
_LAYOUT = 2
"""Part of every digest: raise it when the rows or the way tables are written change."""

Random = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """What a benchmark table holds.

    `log_rows`: records of all upserts together, `inserts` of them on new keys, the rest on distinct old ones, of
    which one in ten carries an older ordering value than the base. `note_chars`: width of the one wide column.
    `partitions`: the table has so many, of `slices` each, and 20 columns; 0: it has none, and 16 columns. `metadata`:
    it has Hudi's metadata table.
    """

    name: str
    base_rows: int
    log_rows: int
    slices: int
    inserts: int
    log_format: str = "avro"
    upserts: int = 2
    note_chars: int = 24
    pending_compaction: bool = True
    memory: str = "3g"
    seed: int = 20_240
    partitions: int = 0
    metadata: bool = False

    @property
    def digest(self) -> str:
        """Changes with anything that changes the table."""
        given = asdict(self)
        if not self.partitions:
            del given["partitions"]
        if not self.metadata:
            del given["metadata"]
        text = json.dumps([_LAYOUT, HUDI, given], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def rows_after(self) -> int:
        """Rows of the snapshot."""
        return self.base_rows + self.inserts


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A table on disk. `instant`: its pending compaction."""

    spec: TableSpec
    path: Path
    instant: str | None
    base_bytes: int
    log_bytes: int


def small(log_format: str) -> TableSpec:
    """4 file slices of 125 k base rows and 600 k log records in all."""
    return TableSpec(
        name=f"small-{log_format}", base_rows=500_000, log_rows=600_000, slices=4, inserts=30_000, log_format=log_format
    )


def large(log_format: str) -> TableSpec:
    """More than 2 GB of base files; takes a quarter of an hour and 10 GB of disk to make."""
    return TableSpec(
        name=f"large-{log_format}",
        base_rows=10_000_000,
        log_rows=2_000_000,
        slices=16,
        inserts=100_000,
        log_format=log_format,
        upserts=1,
        note_chars=240,
        memory="8g",
    )


def readable(quick: bool) -> TableSpec:
    """The table of the snapshot read: nothing pending."""
    rows, logs = (500_000, 200_000) if quick else (2_000_000, 800_000)
    return TableSpec(
        name="read-quick" if quick else "read",
        base_rows=rows,
        log_rows=logs,
        slices=4 if quick else 8,
        inserts=logs // 20,
        pending_compaction=False,
    )


def partitioned(quick: bool) -> TableSpec:
    """The table of Spark's reads: 4 partitions of 4 buckets, 20 columns, nothing pending."""
    rows, logs = (1_000_000, 200_000) if quick else (5_000_000, 1_000_000)
    return TableSpec(
        name="spark-quick" if quick else "spark",
        base_rows=rows,
        log_rows=logs,
        slices=4,
        inserts=logs // 20,
        pending_compaction=False,
        partitions=4,
    )


def written(quick: bool) -> TableSpec:
    """The rows of the upsert bench, which writes the table itself: three upserts of a tenth, some of it new."""
    rows = 500_000 if quick else 2_000_000
    return TableSpec(
        name="write-quick" if quick else "write",
        base_rows=rows,
        log_rows=rows // 10 * 3,
        slices=8,
        inserts=rows // 100 * 3,
        upserts=3,
        pending_compaction=False,
    )


def save_rows(spec: TableSpec, folder: Path) -> tuple[Path, list[Path]]:
    """The rows of a spec as Parquet files: the base's, and those of each upsert."""
    base, upserts = folder / "base.parquet", [folder / f"upsert-{number}.parquet" for number in range(spec.upserts)]
    _save(base, base_parts(spec))
    for number, path in enumerate(upserts):
        _save(path, upsert_parts(spec, number))
    return base, upserts


def home() -> Path:
    """The folder of the cached tables."""
    given = os.environ.get("PHANTOMBASE_BENCH_HOME")
    return Path(given).absolute() if given else Path.home() / ".cache/phantombase/bench"


def make(spec: TableSpec) -> Made:
    """The table of a spec, made first if it is not there."""
    folder = home() / f"{spec.name}-{spec.digest}"
    folder.mkdir(parents=True, exist_ok=True)
    ready, table = folder / "ready.json", folder / "table"
    with FileLock(folder / "lock"):
        if not ready.exists():
            shutil.rmtree(table, ignore_errors=True)
            print(f"bench: making {spec.name} in {table}", file=sys.stderr, flush=True)
            instant = _write(spec, table)
            ready.write_text(json.dumps({"instant": instant}))
        instant = json.loads(ready.read_text())["instant"]
    base, logs = _sizes(table)
    return Made(spec=spec, path=table, instant=instant, base_bytes=base, log_bytes=logs)


@contextmanager
def copy_of(made: Made) -> Iterator[Path]:
    """A copy of the table that may be changed, removed afterwards; beside the cache, so on the same disk."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=home()) as folder:
        path = Path(folder) / "table"
        shutil.copytree(made.path, path)
        yield path


def _sizes(table: Path) -> tuple[int, int]:
    """Bytes of base files and of log files."""
    files = [f for f in table.rglob("*") if f.is_file() and ".hoodie" not in f.parts and f.suffix != ".crc"]
    base = sum(f.stat().st_size for f in files if f.name.endswith(".parquet"))
    return base, sum(f.stat().st_size for f in files if ".log." in f.name)


def _write(spec: TableSpec, table: Path) -> str | None:
    options = {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": spec.slices,
        "hoodie.logfile.data.block.format": spec.log_format,
        "hoodie.parquet.max.file.size": 4 << 30,
        "hoodie.metadata.enable": spec.metadata,
    }
    with tempfile.TemporaryDirectory(prefix="rows-", dir=home()) as folder, Judge(HUDI, memory=spec.memory) as judge:
        base = Path(folder) / "base.parquet"
        _save(base, base_parts(spec))
        partition_field = "region" if spec.partitions else None
        judge.create(table, "bench", base, partition_field=partition_field, operation="bulk_insert", options=options)
        base.unlink()
        for number in range(spec.upserts):
            upsert = Path(folder) / f"upsert-{number}.parquet"
            _save(upsert, upsert_parts(spec, number))
            judge.upsert(table, upsert)
            upsert.unlink()
        instant = judge.schedule_compaction(table) if spec.pending_compaction else None
        found = judge.count(table)
    if found != spec.rows_after or (spec.pending_compaction and instant is None):
        raise RuntimeError(f"{spec.name}: Hudi has {found} rows, not {spec.rows_after}; compaction {instant}")
    bases, slices = len(list(table.rglob("*.parquet"))), spec.slices * max(1, spec.partitions)
    if bases != slices:
        raise RuntimeError(f"{spec.name}: {bases} base files, not {slices}")
    return instant


def _save(path: Path, parts: Iterator[pa.Table]) -> None:
    writer: pq.ParquetWriter | None = None
    for part in parts:
        writer = writer or pq.ParquetWriter(path, part.schema, compression="snappy")
        writer.write_table(part)
    assert writer is not None
    writer.close()


# --- rows (pure) -------------------------------------------------------------------------------------------------


def base_parts(spec: TableSpec) -> Iterator[pa.Table]:
    """The rows of the bulk insert, in an order that has nothing to do with their keys."""
    random = np.random.default_rng(spec.seed)
    numbers = random.permutation(spec.base_rows)
    for start in range(0, spec.base_rows, _PART_ROWS):
        part = numbers[start : start + _PART_ROWS]
        yield wide(spec, random, part, rows(random, part, np.full(len(part), 1_000, np.int64), spec.note_chars))


def upsert_parts(spec: TableSpec, number: int) -> Iterator[pa.Table]:
    """The rows of upsert `number`: distinct old keys, and its share of the new ones."""
    random = np.random.default_rng([spec.seed, number])
    inserts = spec.inserts // spec.upserts
    updates = spec.log_rows // spec.upserts - inserts
    old = random.choice(spec.base_rows, updates, replace=False)
    new = spec.base_rows + number * inserts + np.arange(inserts)
    numbers = random.permutation(np.concatenate([old, new]))
    for start in range(0, len(numbers), _PART_ROWS):
        part = numbers[start : start + _PART_ROWS]
        stale = random.random(len(part)) < 0.1
        changed = rows(random, part, np.where(stale, 500, 2_000 + number), spec.note_chars)
        yield wide(spec, random, part, changed)


def rows(random: Random, numbers: npt.NDArray[np.int64], ts: npt.NDArray[np.int64], note_chars: int) -> pa.Table:
    """16 columns of mixed types for the keys `numbers`."""
    count = len(numbers)
    cents = random.integers(-(10**8), 10**9, count)
    created = 1_700_000_000_000_000 + random.integers(0, 10**14, count)
    columns: dict[str, Any] = {
        "id": _keys(numbers),
        "ts": ts,
        "store": random.integers(0, 2_000, count).astype(np.int32),
        "quantity": random.integers(1, 100, count).astype(np.int32),
        "user_id": random.integers(0, 10**12, count),
        "price": random.normal(100.0, 15.0, count).round(2),
        "rate": random.random(count),
        "score": _some_null(random, random.exponential(1.0, count)),
        "amount": _decimals(cents),
        "created": pa.array(created, pa.timestamp("us", tz="UTC")),
        "day": pa.array((created // 86_400_000_000).astype(np.int32), pa.date32()),
        "active": random.random(count) < 0.7,
        "city": _words(random, count, [f"city-{i:03d}" for i in range(300)]),
        "status": _words(random, count, ["new", "paid", "packed", "shipped", "returned"]),
        "note": _hex(random, count, note_chars),
        "comment": _comments(random, count),
    }
    return pa.table(columns)


def wide(spec: TableSpec, random: Random, numbers: npt.NDArray[np.int64], narrow: pa.Table) -> pa.Table:
    """The rows of a table with partitions: 4 more columns, of which `region` is the partition of their keys."""
    if not spec.partitions:
        return narrow
    count, regions = len(numbers), pa.array([f"r{number}" for number in range(spec.partitions)])
    more: dict[str, Any] = {
        "region": regions.take(pa.array(numbers % spec.partitions)),
        "tax": random.random(count) * 20,
        "channel": _words(random, count, ["web", "app", "shop", "phone"]),
        "weight": pa.array(random.random(count).astype(np.float32)),
    }
    for name, values in more.items():
        narrow = narrow.append_column(name, pa.array(values))
    return narrow


def _keys(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """`k000000000042`: 13 characters, made digit by digit."""
    digits = (numbers[:, None] // 10 ** np.arange(11, -1, -1, dtype=np.int64)) % 10 + ord("0")
    text = np.full((len(numbers), 13), ord("k"), np.uint8)
    text[:, 1:] = digits
    return _fixed_text(text)


def _hex(random: Random, count: int, chars: int) -> pa.Array:
    alphabet = np.frombuffer(b"0123456789abcdef", np.uint8)
    return _fixed_text(alphabet[random.integers(0, 16, (count, chars), np.uint8)])


def _fixed_text(text: npt.NDArray[np.uint8]) -> pa.Array:
    """One string per row of a matrix of characters."""
    count, chars = text.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(chars)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _words(random: Random, count: int, words: list[str]) -> pa.Array:
    return pa.array(words).take(pa.array(random.integers(0, len(words), count)))


def _comments(random: Random, count: int) -> pa.Array:
    """Three words of a small vocabulary; one in five is null."""
    vocabulary = [f"word{i}" for i in range(64)]
    drawn = [_words(random, count, vocabulary).to_numpy(zero_copy_only=False).astype(object) for _ in range(3)]
    return _some_null(random, drawn[0] + " " + drawn[1] + " " + drawn[2])


def _some_null(random: Random, values: npt.NDArray[Any]) -> pa.Array:
    return pa.array(values, mask=random.random(len(values)) < 0.2)


def _decimals(cents: npt.NDArray[np.int64]) -> pa.Array:
    """decimal(12, 2): 128-bit little-endian integers of cents."""
    words = np.stack([cents, cents >> 63], axis=1)
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(np.ascontiguousarray(words))])


def main() -> None:
    """Makes the tables of all benchmarks."""
    parser = argparse.ArgumentParser(description="Make and cache the benchmark tables.")
    parser.add_argument("--large", action="store_true", help="the large tables too (over 2 GB each)")
    parser.add_argument("--quick", action="store_true", help="only those that --quick needs")
    arguments = parser.parse_args()
    specs = [small("avro"), small("parquet"), readable(quick=True), partitioned(quick=True)]
    specs += [] if arguments.quick else [readable(quick=False), partitioned(quick=False)]
    specs += [large("avro"), large("parquet")] if arguments.large else []
    for spec in specs:
        made = make(spec)
        print(f"{spec.name}: base {made.base_bytes / 1e6:.0f} MB, logs {made.log_bytes / 1e6:.0f} MB, {made.path}")


if __name__ == "__main__":
    main()
