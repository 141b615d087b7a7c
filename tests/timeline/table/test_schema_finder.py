"""Columns of the types that Hudi 1.2 added: which of them are refused, before anything is planned.

`tests/golden/more/v9_hudi_types.zip`: made by Spark SQL with 1.2.0: VECTOR of each element type, BLOB in the table and
out of line, updates, nulls, a delete, a pending compaction; beside it what Hudi read, and the files of the blobs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phantombase
from phantombase import UnsupportedError, writer
from phantombase.timeline.codec.avro_schema import hudi_types
from phantombase.timeline.read.table_read import Query
from tests.support.golden_tables import unzip_golden
from tests.support.selection import for_each

VECTOR = {
    "type": "fixed", "name": "v", "size": 12, "logicalType": "vector", "dimension": 3, "elementType": "FLOAT",
}  # fmt: skip
BLOB = {"type": "record", "name": "blob", "logicalType": "blob", "fields": [{"name": "data", "type": "bytes"}]}
VARIANT = {"type": "record", "name": "w", "logicalType": "variant", "fields": [{"name": "value", "type": "bytes"}]}


@for_each([("vector", VECTOR), ("blob", BLOB), ("variant", VARIANT)])
def test_every_place_of_a_type(kind: str, node: dict[str, Any]) -> None:
    """Nullable or not, alone, and inside of records, arrays and maps."""
    inside = {"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", node]}]}
    for path, found in {"c": node, "c.x": inside, "c.x.": ["null", {"type": "array", "items": inside}]}.items():
        text = json.dumps({"type": "record", "name": "t", "fields": [{"name": "c", "type": found}]})
        assert hudi_types(text) == {path.rstrip("."): kind}
    for items in ({"type": "array", "items": node}, {"type": "map", "values": ["null", node]}):
        text = json.dumps({"type": "record", "name": "t", "fields": [{"name": "c", "type": items}]})
        assert hudi_types(text) == {"c": kind}
    plain = {"type": "record", "name": kind, "fields": [{"name": kind, "type": "bytes"}]}
    assert hudi_types(json.dumps(plain)) == {}


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def read_whole(name: str, query: Query) -> pa.Table:
    begin = None if query in (Query.SNAPSHOT, Query.READ_OPTIMIZED) else "earliest"
    return phantombase.read(name, query=query, begin=begin).to_arrow()


def test_nothing_is_planned(tmp_path: Path) -> None:
    path = unzip_golden("more/v9_hudi_types", tmp_path)
    name, rows = str(path), pa.table({"id": ["a"], "p": ["north"], "ts": [9]})
    work: dict[str, Callable[[], object]] = {
        **{f"read {query}": partial(read_whole, name, query) for query in Query},
        "read one column": lambda: phantombase.read(name, ["id"]).to_arrow(),
        "schedule": lambda: phantombase.schedule(name, sole_writer=True),
        "cluster": lambda: phantombase.cluster(name, phantombase.ClusterOptions(sort_by=("n",)), sole_writer=True),
        "upsert": lambda: writer(rows).upsert(name),
        "insert": lambda: writer(rows).insert(name),
        "delete": lambda: writer(rows).delete(name),
        "statistics": lambda: phantombase.build_metadata(name, sole_writer=True),
    }
    with pytest.raises(UnsupportedError, match=r"Hudi 1\.2 added"):
        phantombase.compact(name)
    (plan,) = (path / ".hoodie/timeline").glob("*.compaction.requested")
    plan.unlink()
    (path / ".hoodie/.phantombase").mkdir()
    (path / ".hoodie/.phantombase/table.lock").touch()
    before = files(path)
    for what, do in work.items():
        with pytest.raises(UnsupportedError, match=r"Hudi 1\.2 added") as refused:
            do()
        assert "e: VECTOR" in str(refused.value), what
        assert files(path) == before, what


def test_what_needs_no_rows_works(tmp_path: Path) -> None:
    """Cleaning and orphan files know names of Hudi's data files only: the files of blobs stay, wherever they are."""
    path = unzip_golden("more/v9_hudi_types", tmp_path)
    name = str(path)
    for blob in ("p=north/one.bin", "p=north/.one.log", "blobs/a_0-1-2_x.parquet", "blobs/one_1_20200101000000000"):
        (path / blob).parent.mkdir(exist_ok=True)
        (path / blob).write_bytes(b"blob")
        os.utime(path / blob, (0, 0))
    before = files(path)
    assert phantombase.orphans(name, sole_writer=True).files == 0
    phantombase.clean(name, phantombase.CleanOptions(retain=1, floor_s=0), sole_writer=True)
    built = phantombase.BuildOptions(indexes=("files",), pending_wait_s=0)
    for dry_run in (True, False):
        assert phantombase.build_metadata(name, built, sole_writer=True, dry_run=dry_run).built == ("files",)
    after = files(path)
    assert {one: after.get(one) for one in before if ".hoodie/" not in one} == {
        one: content for one, content in before.items() if ".hoodie/" not in one
    }
