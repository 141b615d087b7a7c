"""Small tables partitioned by days, written by us, and what real Hudi plans on them under a strategy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa

from phantombase import Writer, writer
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, decode_plan
from phantombase.timeline.planning.strategies import STRATEGY_CONF, Strategy, StrategyOptions
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice, GroupKey
from tests.hudi.judge.client import Judge

S = Strategy
CLASSES = {
    S.UNBOUNDED: "UnBounded",
    S.BOUNDED_IO: "BoundedIO",
    S.LOG_FILE_SIZE: "LogFileSizeBased",
    S.LOG_FILE_NUM: "LogFileNumBased",
    S.DAY_BASED: "DayBased",
    S.BOUNDED_PARTITION_AWARE: "BoundedPartitionAware",
    S.UNBOUNDED_PARTITION_AWARE: "UnBoundedPartitionAware",
    S.PARTITION_REGEX: "PartitionRegexBased",
}
UNBOUNDED = StrategyOptions(strategies=(S.UNBOUNDED,))


def rows(rng: random.Random, partitions: Sequence[str], ids: range, size: int) -> pa.Table:
    """Rows of about `size` bytes that no codec makes smaller."""
    placed = [(p, number) for p in partitions for number in ids]
    return pa.table(
        {
            "id": [f"{p}-{number}" for p, number in placed],
            "p": [p for p, _ in placed],
            "ts": pa.array([rng.randrange(10**9) for _ in placed], pa.int64()),
            "noise": pa.array([rng.randbytes(size) for _ in placed], pa.binary()),
        }
    )


def writes(batch: pa.Table, version: int) -> Writer:
    """Two file groups a partition."""
    return writer(batch).table("days", version=version).key("id").partition("p").ordering("ts").buckets(2)


def day_paths(today: date, ages: Sequence[int], hive_style: bool) -> list[str]:
    """Partitions named by the days so many days ago."""
    form = "year=%Y/month=%m/day=%d" if hive_style else "%Y/%m/%d"
    return [(today - timedelta(days=age)).strftime(form) for age in ages]


def random_table(rng: random.Random, path: Path, version: int, partitions: Sequence[str]) -> None:
    """Base files of 0 to 3 MB, one slice without, and 0 to 5 log files each, of many sizes."""
    for partition in partitions:
        writes(rows(rng, [partition], range(8), rng.choice((1000, 200_000, 700_000))), version).upsert(str(path))
    for _ in range(5):
        some = rng.sample(partitions, rng.randint(1, len(partitions)))
        writes(rows(rng, some, range(rng.randint(1, 8)), rng.choice((10, 1000, 150_000))), version).upsert(str(path))
    lone = rng.choice(latest(path))
    assert lone.base is not None
    (path / lone.base.path).unlink()


def latest(path: Path) -> list[FileSlice]:
    """The newest slice of every file group that has logs."""
    return [g.slices[-1] for g in Table.open(str(path)).load_view().groups if g.slices[-1].logs]


def hudi_conf(options: StrategyOptions) -> dict[str, object]:
    """Ours under Hudi's names."""
    package = "org.apache.hudi.table.action.compact.strategy."
    names = [f"{package}{CLASSES[s]}CompactionStrategy" for s in options.strategies]
    values = {name: getattr(options, field) for name, (field, _) in STRATEGY_CONF.items() if field != "strategies"}
    said = {name: value for name, value in values.items() if value is not None}
    return {"hoodie.compaction.strategy": ",".join(names), **said}


def hudi_plan(judge: Judge, path: Path, conf: Mapping[str, object]) -> CompactionPlan | None:
    """What Hudi plans; the request is taken back."""
    instant = judge.schedule_compaction(path, conf)
    if instant is None:
        return None
    (requested,) = path.glob(f".hoodie/**/{instant}.compaction.requested")
    plan = decode_plan(requested.read_bytes(), str(requested))
    for file in requested.parent.glob(f"*{instant}.compaction*"):
        file.unlink()
    return plan


def keys(operations: Sequence[CompactionOperation]) -> list[GroupKey]:
    """The file groups of a plan in order."""
    return [(o.partition_path, o.file_id) for o in operations]
