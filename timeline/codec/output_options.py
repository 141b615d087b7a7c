"""How base files are written: codec, key filter, sizes. Writers and compactors share these options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from ..errors import UsageError
from ..option import check_least, duration_s, least_of, option, spelled_class


class Codec(Enum):
    """Compression of written base files; every Hudi reader reads all of them."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    NONE = "none"


class Bloom(Enum):
    """The key filter in a base file's footer: Hudi's own (its BLOOM index skips files with it), or none.
    OFF writes the smallest valid filter, which answers "maybe" for every key: a writer with a BLOOM index fails on a
    file without a filter."""

    ON = "on"
    OFF = "off"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How slices are merged and base files written (stages: merge, write)."""

    codec: Codec = option(Codec.ZSTD, "compression of written base files")
    row_group_rows: int = option(500_000, "rows of a Parquet row group", least=1)
    bloom: Bloom = option(Bloom.ON, "key filter in the footer, for Hudi's BLOOM index")
    batch_rows: int = option(65_536, "rows of a base file merged at a time", least=1)
    memory_limit: int = option(
        1 << 30, "memory of one slice's merge, like 512m; log data beyond it is spilled", size=True, least=32 << 20
    )
    spill_dir: str | None = option(
        None, "folder for log data beyond the memory limit; default: the system's for temporary files", metavar="FOLDER"
    )
    record_ttl: str | None = option(
        None,
        "a compaction leaves out rows whose date or time in this column is older, like created=90d; default: none",
        metavar="COLUMN=AGE",
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(OutputOptions))
        if self.spill_dir is not None and not os.path.isdir(self.spill_dir):
            raise UsageError(
                "spill-dir is not a directory", path=self.spill_dir, todo="Name a folder that exists, or leave it out."
            )
        _ = self.row_age

    @property
    def row_age(self) -> tuple[str, int] | None:
        """The column of `record_ttl`, and the age in seconds. UsageError."""
        if self.record_ttl is None:
            return None
        column, _, age = self.record_ttl.rpartition("=")
        if not column:
            raise UsageError(
                "record-ttl is not a column and an age", expected="like created=90d", found=repr(self.record_ttl)
            )
        return column, duration_s(age, "record-ttl")


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str, of: str | None = None) -> int:
    """A size as users write it: `512m`, `2g`, `1.5G`, `800mb`, plain bytes. UsageError: anything else.
    `of`: the option, as the error names it."""
    match = re.fullmatch(r"(\d{1,19}(?:\.\d{1,19})?)(?: *([kmgt])(?:i?b)?| *b)?", text.lower(), re.ASCII)
    size = -1 if match is None else int(Decimal(match[1]) * _UNITS[match[2] or ""])
    if not 0 <= size < 1 << 63:
        what = "not a size" if of is None else f"not a size for {of}"
        raise UsageError(what, expected="like 512m or 2g", found=text)
    return size


def print_bytes(size: int) -> str:
    """A size as `parse_bytes` reads it, in the largest unit of which it is an integer."""
    unit = max((u for u, of in _UNITS.items() if size % of == 0 and size >= of), key=_UNITS.__getitem__, default="")
    return f"{size // _UNITS[unit]}{unit}"
