"""Tables with virtual keys: real Hudi and we write, delete and compact in turns; both read the same after each step."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

VIRTUAL: dict[str, object] = EVENT_TIME | {"hoodie.populate.meta.fields": "false"}
SIMPLE: dict[str, object] = {"hoodie.index.type": "SIMPLE"}
_KEYGEN = "hoodie.datasource.write.keygenerator.class"
KINDS: dict[str, dict[str, object]] = {
    "simple": SIMPLE,
    "bucket": BUCKET,
    "hive": SIMPLE
    | {
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.datasource.write.partitionpath.urlencode": "true",
    },
    "one partition": SIMPLE | {_KEYGEN: "org.apache.hudi.keygen.NonpartitionedKeyGenerator"},
}


def numbers(snapshot: pa.Table) -> list[str]:
    """The keys; a row that stands there twice is an error."""
    found = snapshot.column("id").to_pylist()
    assert len(set(found)) == len(found)
    return sorted(found)


@versions(9, 6, deep=[8])
@pytest.mark.parametrize("maker", ["hudi", "phantombase"])
@pytest.mark.parametrize("kind", ["simple", *map(deep, KINDS.keys() - {"simple"})])
def test_virtual_keys(judge: Judge, version: int, maker: str, kind: str, tmp_path: Path) -> None:
    """Rows of both in the same file groups are updated and deleted by the other, around plans of both."""
    table = SharedTable(
        judge=judge,
        path=tmp_path / "table",
        version=version,
        options=VIRTUAL | KINDS[kind],
        partition_field=None if kind == "one partition" else "p",
    )
    rows, path = Rows(seed=version), str(table.path)
    if maker == "hudi":
        table.create(rows(range(30), 1))
    else:
        table.creator(rows(range(30), 1)).upsert(path)
    expected = set(rows(range(30), 1).column("id").to_pylist())
    assert set(numbers(table.agree())) == expected

    def ours(given: range, ts: int) -> None:
        table.writer(rows(given, ts)).upsert(path)
        expected.update(rows(given, ts).column("id").to_pylist())

    def hudis(given: range, ts: int) -> None:
        table.upsert(rows(given, ts))
        expected.update(rows(given, ts).column("id").to_pylist())

    def gone(given: range, *, by_us: bool) -> None:
        keys = rows(given, 0)
        if by_us:
            table.writer(keys).delete(path)
        else:
            table.delete(keys)
        expected.difference_update(keys.column("id").to_pylist())

    ours(range(0, 36, 3), 2)
    hudis(range(0, 40, 4), 3)
    gone(range(0, 12, 5), by_us=True)
    gone(range(1, 12, 5), by_us=False)
    assert set(numbers(table.agree())) == expected
    ours(range(0, 12, 5), 4)
    table.writer(rows(range(50, 55), 1)).insert(path)
    expected.update(rows(range(50, 55), 1).column("id").to_pylist())
    table.we_schedule()
    ours(range(40, 44), 5)
    hudis(range(42, 50), 6)
    assert set(numbers(table.compact_beside_hudi())) == expected
    ours(range(0, 60, 6), 7)
    gone(range(3, 60, 9), by_us=True)
    before = table.agree()
    assert set(numbers(before)) == expected
    table.hudi_compacts(table.hudi_schedules())
    same(table.agree(), before)
    hudis(range(0, 60, 7), 8)
    ours(range(0, 60, 8), 9)
    assert set(numbers(table.agree())) == expected
