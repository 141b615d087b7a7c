"""Columns that are added with defaults, in tables of real Hudi 0.15.0 with its default settings, before and after a
compaction of ours; `added_with_defaults.zip`.

`tagonly` adds `tag: ["string", "null"]`, default "t0". `req` adds the required columns `status` "NEW", `flag` false and
`amt` 1.5. `sub`, by 1.2.0, adds a required field to a record inside, which Hudi itself cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from phantombase import ExecuteOptions, Executor, compact, read, schedule
from phantombase.timeline.errors import UnsupportedError
from tests.hudi.effects.columns import ANSWERS, TABLES, Rows, plain
from tests.hudi.effects.columns import compacted as compacted_by_us

TAG: list[list[Any]] = [
    ["k00", "log1", "t0"],
    ["k01", "log2", "T1"],
    ["k02", "log2", "T2"],
    *([f"k0{n}", "base", None] for n in (3, 4, 5)),
    ["k20", "new", "T20"],
]
"""What Hudi reads before its compaction; afterwards the rows of base files have the default, too."""
REQUIRED: list[list[Any]] = [
    ["k00", "log1", "NEW", False, None, 1.5],
    ["k01", "log2", "S1", True, 1, 9.0],
    ["k02", "log2", "S2", True, 2, 9.0],
    *([f"k0{n}", "base", "NEW", False, None, 1.5] for n in (3, 4, 5)),
    ["k20", "new", "S20", True, 20, 9.0],
]
"""What Hudi reads after its compaction; before it it cannot read the table."""


def unpacked(folder: Path, name: str) -> str:
    with ZipFile(Path(__file__).with_name("added_with_defaults.zip")) as archive:
        archive.extractall(folder)
    return str(folder / name)


def rows(path: str, *columns: str) -> list[list[Any]]:
    found = read(path, columns=list(columns)).to_arrow().to_pylist()
    return sorted([row[name] for name in columns] for row in found)


def compacted(path: str) -> None:
    schedule(path, sole_writer=True)
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))


def test_a_default_of_a_column_that_may_be_null(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "tagonly")
    filled = [[key, name, "t0" if name == "base" else tag] for key, name, tag in TAG]
    assert rows(path, "id", "name", "tag") in (TAG, filled)
    compacted(path)
    assert rows(path, "id", "name", "tag") == filled


def test_defaults_of_required_columns(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "req")
    columns = ("id", "name", "status", "flag", "n", "amt")
    assert rows(path, *columns) == REQUIRED
    compacted(path)
    assert rows(path, *columns) == REQUIRED


def test_a_required_field_of_a_record_inside(tmp_path: Path) -> None:
    """Refused by name, as Hudi fails on it; nothing is scheduled."""
    path = unpacked(tmp_path, "sub")
    with pytest.raises(UnsupportedError, match="another default than null"):
        read(path).to_arrow()
    assert schedule(path, sole_writer=True).requested == ()


EVOLVED = json.loads(ANSWERS.read_text())


@pytest.mark.parametrize("name", EVOLVED)
def test_columns_as_production_evolves_them(name: str, tmp_path: Path) -> None:
    """What Hudi reads of its table, now and as of earlier times, before and behind a compaction of ours."""
    with ZipFile(TABLES) as archive:
        archive.extractall(tmp_path, [n for n in archive.namelist() if n.startswith(f"{name}/")])
    path, answer = str(tmp_path / name), EVOLVED[name]

    def ours(as_of: str | None = None) -> Rows:
        return plain(read(path, as_of=as_of).to_arrow())

    for now, then in (("before", "as_of"), ("after", "as_of_after")):
        if now == "after":
            assert compacted_by_us(path) == answer["compacted"]
        for as_of, rows in {None: answer[now], **answer[then]}.items():
            if not isinstance(rows, str):  # else Hudi cannot read it
                assert ours(as_of) == rows, (now, as_of)
