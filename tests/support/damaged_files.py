"""Data files of tables, damaged in every way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from phantombase.timeline.table.table import Table

Damage = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damage] = {
    "gone": lambda data: None,
    "empty": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "ten bytes short": lambda data: data[:-10],
    "random": lambda data: random.Random(7).randbytes(len(data)),
}


def witnessed(path: Path) -> Iterator[Path]:
    """The data files that an active completed write names."""
    table = Table.open(str(path), reading=True)
    for write in table.load_timeline().completed:
        for named in sorted(table.commit_metadata(write).named_files):
            if (path / named).exists():
                yield path / named


def put(file: Path, data: bytes | None) -> None:
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
