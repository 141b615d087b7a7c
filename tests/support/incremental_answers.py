"""Windows of the golden tables and their rows: what real Hudi gave, or where it is wrong, what is right.

`tests/golden/README.md` tells how the answers were made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.support.places import GOLDEN_FOLDER

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
