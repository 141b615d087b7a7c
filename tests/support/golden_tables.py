"""The golden tables, small tables of real Hudi (`tests/golden/README.md`), and which of them a test takes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.table.table import Table
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep

GOLDEN: tuple[str, ...] = tuple(sorted(path.stem for path in GOLDEN_FOLDER.glob("*.zip")))
"""All names, `<version>_<case>`: `v6_plain`, `v9_types`, ..."""
NEWEST_AND_OLDEST = [deep(name) if name.startswith("v8_") else name for name in GOLDEN]
"""For tests to which version 8 is version 9, as it is but for hoodie.properties: its tables with all tests only."""


def golden_case(name: str) -> str:
    """`v6_plain` -> `plain`: the folder the table has inside its archive."""
    return name.partition("_")[2]


def _one_a_case(name: str) -> bool:
    cases = sorted({golden_case(other) for other in GOLDEN})
    case = golden_case(name)
    own = sorted(other for other in GOLDEN if golden_case(other) == case)
    return name == own[0 if cases.index(case) % 3 == 0 else -1]


ONE_A_CASE = [name if _one_a_case(name) else deep(name) for name in GOLDEN]
"""For tests to which the version hardly matters: the newest table of each case, of each third case the oldest."""


def unzip_golden(name: str, into: Path) -> Path:
    """Unpacks one golden table below `into` and returns the table's path, `into/<case>`. What Hudi reads from it lies
    beside it in `into/<case>.expected`. Two versions of a case need two folders."""
    with ZipFile(GOLDEN_FOLDER / f"{name}.zip", metadata_encoding="utf-8") as archive:
        archive.extractall(into)
    return into / golden_case(name)


@cache
def golden_metadata(name: str) -> MappingProxyType[str, bytes]:
    """The bytes of a golden table's own files, by path relative to the table (`.hoodie/...`), read once. Left out: the
    metadata table (a table of its own) and Hadoop's `.crc` side files."""
    prefix = f"{golden_case(name)}/"
    with ZipFile(GOLDEN_FOLDER / f"{name}.zip", metadata_encoding="utf-8") as archive:
        return MappingProxyType(
            {
                member.removeprefix(prefix): archive.read(member)
                for member in archive.namelist()
                if member.startswith(f"{prefix}.hoodie/")
                and not member.startswith(f"{prefix}.hoodie/metadata/")
                and not member.endswith(("/", ".crc"))
            }
        )


# Hudi 0.15's own compaction multiplies decimals by 100 where clustering had stored them as INT64 (scale 2 taken
# twice); its snapshot before the compaction, and ours before and after, hold the value that was written.
DECIMALS_SPOILT_BY_HUDI = {"v6_clustered": "dec"}


def golden_files(*endings: str) -> Iterator[tuple[str, str, bytes]]:
    """(table, path, bytes) of the golden tables' files with these endings."""
    for name in GOLDEN:
        for path, data in golden_metadata(name).items():
            if path.endswith(endings):
                yield name, path, data


CLUSTERINGS = list(golden_files(".clustering.requested"))
# Windows of the golden tables and their rows: what real Hudi gave, or where it is wrong, what is right.
#
# `tests/golden/README.md` tells how the answers were made.


_ANSWERS = GOLDEN_FOLDER / "answers" / "incremental.zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One window. `rows`: None where a refusal is right. `judged`: false where what is right was not known."""

    begin: str
    end: str | None
    rows: pa.Table | None
    judged: bool


def incremental_answers(name: str) -> list[Answer]:
    """The windows of one golden table."""
    with ZipFile(_ANSWERS) as archive:
        entries = json.loads(archive.read(f"{name}/index.json"))["incremental"]
        has_rows = f"{name}/rows.parquet" in archive.namelist()
        rows = pq.read_table(pa.BufferReader(archive.read(f"{name}/rows.parquet"))) if has_rows else None
    decided = (e for e in entries if not e.get("undecided"))
    return [
        Answer(
            begin=e["begin"],
            end=e["end"],
            rows=None if rows is None else _rows(rows, e.get("right", e.get("query"))),
            judged=e.get("hudi") != "not judged" and e.get("error") != "no state to judge by",
        )
        for e in decided
    ]


def _rows(rows: pa.Table, query: int | None) -> pa.Table | None:
    if query is None:
        return None
    return rows.filter(pc.equal(rows.column("_query"), query)).drop_columns(["_query"])


# Which tables a test takes: of the versions that it holds for one in the usual run; tables made once and copied.


LOCK = ProcessLock("tests")
"""A table lock of this process."""
_made: dict[object, Path] = {}


def one_of(name: str, usual: object, *others: object, indirect: bool = False) -> pytest.MarkDecorator:
    """Parametrizes a test that holds for each of these, mostly table versions; the usual run takes the first. Of a
    folder's tests some take an old version, so that both have what is general to them. A test in which the version
    matters says `pytest.mark.parametrize` instead."""
    return pytest.mark.parametrize(name, [usual, *map(deep, others)], indirect=indirect)


def template(name: object, into: Path, make: Callable[[Path], object]) -> Path:
    """A table that is made once for all tests of a process that give this name; a copy of it in `into`. Its files and
    instants are as old as the first copy: not for tests to which it matters that they are young."""
    if name not in _made:
        folder = into.parent.with_name(f"made-{len(_made)}") / into.name
        folder.parent.mkdir()
        make(folder)
        _made[name] = folder
    return shutil.copytree(_made[name], into)


# Data files of tables, damaged in every way.


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
