"""`merge_into` of ours on tables of real Hudi: Hudi reads the same rows, writes on top of them and compacts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import BUCKET, COMMIT_TIME, EVENT_TIME, PARQUET_LOGS, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import deep

pytestmark = pytest.mark.interop

KEYS = 90
NO_SMALL_FILES: Mapping[str, object] = {"hoodie.parquet.small.file.limit": "0"}
CASES = {
    "9 event": (9, {**EVENT_TIME, **NO_SMALL_FILES}),
    "9 commit bucket": deep(9, {**COMMIT_TIME, **BUCKET}),
    "9 event bucket parquet": deep(9, {**EVENT_TIME, **BUCKET, **PARQUET_LOGS}),
    "9 commit": deep(9, {**COMMIT_TIME, **NO_SMALL_FILES}),
    "8 event parquet": deep(8, {**EVENT_TIME, **NO_SMALL_FILES, **PARQUET_LOGS}),
    "8 commit bucket": deep(8, {**COMMIT_TIME, **BUCKET}),
    "8 event bucket": deep(8, {**EVENT_TIME, **BUCKET}),
}


def rows_of(numbers: list[int], ts: int, mark: str) -> pa.Table:
    """Rows whose values say where they come from."""
    return pa.Table.from_pylist(
        [
            {"id": f"k{n:03d}", "p": f"p{n % 2}", "ts": ts, "n": 100 * ts + n, **{c: f"{mark}.{c}.{n}" for c in "ab"}}
            for n in numbers
        ]
    )


@pytest.mark.parametrize(("version", "options"), CASES.values(), ids=CASES, indirect=["version"])
def test_hudi_goes_on(judge: Judge, version: int, options: dict[str, object], tmp_path: Path) -> None:
    """Updates in time and late, inserts, deletes; between them upserts of Hudi, at last compactions.

    By commit time no row comes behind a delete: there Hudi's own upserts make a log with such updates unreadable.
    """
    random, event = Random(f"{version} {options}"), "Default" in str(options)
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    table.create(rows_of(list(range(0, KEYS, 2)), 5, "base"))

    deleted: set[int] = set()

    def merge(ts: int, mark: str, columns: list[str], *, insert: bool = False, deleting: float = 0.0) -> None:
        numbers = random.sample(range(KEYS), KEYS // 2)
        gone = [random.random() < deleting for _ in numbers]
        deleted.update(n for n, deletes in zip(numbers, gone, strict=True) if deletes and not event)
        source = rows_of(numbers, ts, mark).append_column("gone", pa.array(gone))
        table.writer(source).option(small_file_bytes=0).merge_into(
            str(table.path), update=[*columns, *["ts"] * event], insert=insert, delete="gone"
        )
        table.agree()

    merge(6, "m1", ["a"])
    merge(6, "m2", ["b", "n"], insert=True)
    table.upsert(rows_of(random.sample(range(KEYS), 20), 7, "u1"))
    table.agree()
    merge(4, "late", ["a"])
    merge(8, "m3", ["a"], insert=True)
    table.hudi_schedules()
    merge(9, "m4", ["a", "n"], deleting=0.2)
    compacted = table.copy()
    before = table.agree()
    table.compact_beside_hudi()
    compacted.we_merge_logs()
    same(compacted.agree(), before)
    table.upsert(rows_of(random.sample(sorted(set(range(KEYS)) - deleted), 20), 10, "u2"))
    merge(11, "m5", ["b"], insert=event)
    table.hudi_schedules()
    table.compact_beside_hudi()
