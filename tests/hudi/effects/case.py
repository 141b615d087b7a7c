"""One dictionary of Hudi's names and the batches that are written with it, run by real Hudi and by phantombase."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from phantombase import read, writer
from phantombase.timeline.errors import PhantombaseError
from tests.hudi.judge.client import QUIET, Judge, JudgeError

RECORDED = Path(__file__).with_name("recorded.json")
OPERATION = "hoodie.datasource.write.operation"
USUAL: Mapping[str, Any] = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
}
"""What each dictionary has, unless it says something else; a name that it maps to None is left out."""
_OF_FILES = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name")
HUDI = {6: "0.15.0", 9: "1.2.0"}

Answer: TypeAlias = dict[str, Any]
"""`rows` at the end, as texts by column, sorted; `refused`: the batches that were refused, by number, and why."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows, what is done with them, and the names that this write has besides those of the case."""

    rows: pa.Table | None
    operation: str = "upsert"
    conf: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A dictionary, and what is written with it."""

    name: str
    conf: Mapping[str, Any]
    batches: Sequence[Batch]
    version: int = 9

    @property
    def digest(self) -> str:
        """Of all that both are given: what was recorded of another case does not count."""
        told = [(b.operation, dict(b.conf), b.rows and (str(b.rows.schema), b.rows.to_pylist())) for b in self.batches]
        return f"{zlib.crc32(repr((dict(self.conf), told)).encode()):08x}"


@dataclass(frozen=True, kw_only=True)
class Case(Written):
    """One that Hudi and phantombase write, for the rows at the end."""

    @property
    def id(self) -> str:
        """Its name with the version."""
        return f"v{self.version}-{self.name}"

    def options(self, batch: Batch) -> dict[str, Any]:
        """The whole dictionary of a write, the same for both."""
        given = {**USUAL, **self.conf, **batch.conf, OPERATION: batch.operation}
        return {name: value for name, value in given.items() if value is not None}

    def by_hudi(self, judge: Judge, path: Path) -> Answer:
        """What real Hudi makes of it."""
        version = {} if self.version == 6 else {"hoodie.write.table.version": self.version}

        def write(batch: Batch) -> None:
            judge.write(path, batch.rows, {**QUIET, **version, **self.options(batch)})

        return self._answer(write, lambda: judge.read(path) if (path / ".hoodie").exists() else None)

    def by_us(self, path: Path) -> Answer:
        """What phantombase makes of it."""

        def write(batch: Batch) -> None:
            conf = {"hoodie.write.table.version": self.version, **self.options(batch)}
            writer(batch.rows).conf(conf).write(str(path))

        return self._answer(write, lambda: read(str(path)).to_arrow() if (path / ".hoodie").exists() else None)

    def _answer(self, write: Callable[[Batch], None], read: Callable[[], pa.Table | None]) -> Answer:
        refused: dict[str, str] = {}
        for number, batch in enumerate(self.batches):
            try:
                write(batch)
            except (PhantombaseError, JudgeError) as error:
                refused[str(number)] = _cause(error)
        try:
            rows = read()
        except JudgeError as error:
            return {"refused": refused, "unreadable": _cause(error)}
        return {"refused": refused, "rows": plain(rows) if rows is not None else []}


def _cause(error: Exception) -> str:
    """The first line, or of a trace of Java the innermost cause."""
    lines = [line for text in map(str, error.args) for line in text.splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [repr(error)])[-1 if causes else 0][:200]


def plain(rows: pa.Table) -> list[str]:
    """Each row as one text without the names of its file and commit, sorted."""
    made_up = {"_hoodie_record_key"} if "id" not in rows.schema.names else set()
    names = sorted(name for name in rows.schema.names if name not in {*_OF_FILES, *made_up})
    return sorted(json.dumps({n: _text(v) for n, v in row.items()}) for row in rows.select(names).to_pylist())


def _text(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_text(one) for one in value]
    if isinstance(value, dict):
        return {name: _text(one) for name, one in value.items()}
    return value


def recorded() -> dict[str, Answer]:
    """By id of a case."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
