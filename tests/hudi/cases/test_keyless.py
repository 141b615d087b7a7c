"""Keyless tables: real Hudi and we add rows in turns; Hudi's SQL changes rows of both, and both compact."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import QUIET, Judge
from tests.support.selection import deep

pytestmark = pytest.mark.interop

KEYS = ["_hoodie_record_key", "_hoodie_commit_time", "_hoodie_partition_path"]


def options(version: int) -> dict[str, object]:
    """Of Hudi's writers: no key."""
    asked = {
        **QUIET,
        "hoodie.table.name": "shared",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.operation": "insert",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.partitionpath.field": "p",
    }
    return {**asked, "hoodie.write.table.version": version} if version > 6 else asked


def sorted_ids(table: pa.Table) -> list[str]:
    """The rows' numbers; two rows with one key are an error."""
    keys = table.column("_hoodie_record_key").to_pylist()
    assert len(set(keys)) == len(keys)
    return sorted(table.column("id").to_pylist())


@pytest.mark.parametrize(
    ("version", "maker"),
    [
        *((9, "hudi"), (6, "phantombase")),
        *(deep(9, "phantombase"), deep(6, "hudi"), deep(8, "hudi"), deep(8, "phantombase")),
    ],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value,
)
def test_keyless(judge: Judge, version: int, maker: str, tmp_path: Path) -> None:
    """Rows of Hudi and ours in the same small files, equal rows among them; then updated, deleted and compacted."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=version)
    path = str(table.path)
    first, again = rows(range(30), 1), rows(range(20, 40), 2)
    if maker == "hudi":
        judge.write(table.path, first, options(version), mode="errorifexists")
    else:
        writer(first).table("shared", version=version).key().partition("p").ordering("ts").insert(path)
    writer(again).insert(path)
    judge.write(table.path, again, options(version))
    writer(again).bulk_insert(path)
    snapshot = table.agree()
    expected = [row for batch in (first, again, again, again) for row in batch.column("id").to_pylist()]
    assert sorted_ids(snapshot) == sorted(expected)

    name = f"keyless_{maker}_{version}"
    judge.sql(f"create table {name} using hudi location '{path}'")
    session = {k: str(v) for k, v in options(version).items() if "datasource" not in k and "name" not in k}
    judge.sql(f"update {name} set text = 'changed' where id = '{expected[25]}'", session)
    judge.sql(f"delete from {name} where id = '{expected[45]}'", session)
    changed = table.agree()
    assert sorted_ids(changed) == sorted(one for one in expected if one != expected[45])
    touched = [row["text"] for row in changed.to_pylist() if row["id"] == expected[25]]
    assert touched == ["changed"] * expected.count(expected[25])

    writer(rows(range(40, 50), 3)).insert(path)
    before = table.agree()
    assert table.we_schedule() in table.we_compact()
    same(table.agree(), before)
    writer(rows(range(50, 55), 4)).insert(path)
    assert len(sorted_ids(table.agree())) == before.num_rows + 5
