"""Options of compaction: one frozen dataclass a part, each option in one home with its unit and default."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum

from timeline.errors import UsageError


class Executor(Enum):
    """Where file slices are compacted: on Spark, or in this process (tests, tiny jobs). The same code runs."""

    SPARK = "spark"
    LOCAL = "local"


class Codec(Enum):
    """Compression of written base files; every Hudi reader reads all of them."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    NONE = "none"


class Bloom(Enum):
    """The key filter in a base file's footer: Hudi's own (its BLOOM index skips files with it), or none.

    OFF writes the smallest valid filter, which answers "maybe" to every key: a writer with a BLOOM index fails on
    a file without one.
    """

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How base files are written (stage: write)."""

    codec: Codec = field(default=Codec.ZSTD, metadata={"help": "compression of the base files"})
    row_group_rows: int = field(default=500_000, metadata={"help": "rows of a Parquet row group"})
    bloom: Bloom = field(default=Bloom.ON, metadata={"help": "key filter in the footer, for Hudi's BLOOM index"})
    batch_rows: int = field(default=65_536, metadata={"help": "rows merged at a time (memory)"})

    def __post_init__(self) -> None:
        for name in ("row_group_rows", "batch_rows"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', '-')} must be at least 1", found=str(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """Where and how wide file slices are compacted (stage: execute)."""

    executor: Executor = Executor.SPARK
    master: str = "local[*]"
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    driver_memory: str = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOptions:
    """Patience of one attempt (stages: open, decide).

    `foreign_grace_s`: how long an executor of Hudi that shows no heartbeat may be silent before it counts as
    dead. `barrier_s`: how long delta commits that were pending when the attempt began may take to complete.
    """

    foreign_grace_s: float = 3600.0
    heartbeat_s: float = 30.0
    heartbeat_expiry_s: float = 120.0
    barrier_s: float = 300.0
    barrier_poll_s: float = 1.0
    redo_max: int = 5
