"""Tables that phantombase makes or upgrades: real Hudi finds what it would have made, and writes into them."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import javaproperties
import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.attempt import decide_commit
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.timeline.errors import TableChangedError
from phantombase.timeline.format.instant import parse_time
from phantombase.timeline.format.record_key import KeySplit, bucket_of, bucket_of_file_id
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.key_encoding import one_field_prefixed
from phantombase.writer_hooks.schema.key_generator import KeyGenerator
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.schema.partition_times import PREFIX
from phantombase.writer_hooks.schema.table_schema import new_schema
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import QUIET, Judge
from tests.support.compaction_steps import (
    base_files,
    check_no_strays,
    decided,
    open_table,
    run_all,
    staged,
    visible_files,
)
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep, versions

_AT = datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
_ROWS = pa.table(
    {
        "id": ["k1", "k2", "a:b,c", "ключ"],
        "n": [1, 2, 3, -(2**40)],
        "p": ["x", None, "a=b/c d:é%", ""],
        "at": pa.array(
            [datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=UTC), None, None, None], pa.timestamp("us", "UTC")
        ),
        "ms": [1704164645123, -1, None, 0],
        "day": [date(2024, 1, 2), date(1969, 12, 31), date(1900, 2, 28), date(9999, 12, 31)],
        "ts": [1, 1, 1, 1],
    }
)
_TIMES = (
    (f"{PREFIX}output.dateformat", "yyyy/MM-dd'T'HH"),
    (f"{PREFIX}timestamp.type", "EPOCHMILLISECONDS"),
    (f"{PREFIX}timezone", "Asia/Kolkata"),
)
_PLAIN = NewTable(name="t", version=9, key_fields=("id",), partition_fields=("p",), ordering_fields=("ts",))
CASES = {
    "plain": _PLAIN,
    "encoded": replace(_PLAIN, hive_style=True, url_encode=True),
    "no_ordering": replace(_PLAIN, ordering_fields=()),
    "several": replace(_PLAIN, key_fields=("id", "n"), partition_fields=("n", "at"), hive_style=True),
    "one_complex": replace(_PLAIN, key_generator="COMPLEX"),
    "days": replace(_PLAIN, key_fields=("day",)),
    "keyless": replace(_PLAIN, key_fields=(), ordering_fields=()),
    "unpartitioned": replace(_PLAIN, partition_fields=()),
    "times": replace(_PLAIN, partition_fields=("ms",), key_generator="TIMESTAMP", times=_TIMES),
}
_CLASSES = {"SIMPLE": "Simple", "COMPLEX": "Complex", "NON_PARTITION": "Nonpartitioned", "TIMESTAMP": "TimestampBased"}
# A writer says its payload or merge mode in a way that a new table does not repeat.
_SAID_BY_WRITERS = {"hoodie.table.legacy.payload.class", "hoodie.table.partition_extractor_class"}


def writer_options(spec: NewTable) -> dict[str, object]:
    """Hudi's options for the same table."""
    payload = "DefaultHoodieRecordPayload" if spec.ordering_fields else "OverwriteWithLatestAvroPayload"
    said = {
        "hoodie.table.name": spec.name,
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.operation": "upsert" if spec.key_fields else "insert",
        "hoodie.datasource.write.recordkey.field": ",".join(spec.key_fields),
        "hoodie.datasource.write.partitionpath.field": ",".join(spec.partition_fields),
        "hoodie.datasource.write.precombine.field": ",".join(spec.ordering_fields),
        "hoodie.datasource.write.keygenerator.class": f"org.apache.hudi.keygen.{_CLASSES[spec.kind]}KeyGenerator",
        "hoodie.datasource.write.hive_style_partitioning": str(spec.hive_style).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": str(spec.url_encode).lower(),
        "hoodie.write.complex.keygen.validation.enable": "false",
        **dict(spec.times),
    }
    if spec.version == 6:
        said["hoodie.datasource.write.payload.class"] = f"org.apache.hudi.common.model.{payload}"
    else:
        said["hoodie.write.table.version"] = str(spec.version)
    return {**QUIET, **{name: value for name, value in said.items() if value}}


def properties(path: Path) -> dict[str, str]:
    """hoodie.properties without what a writer's way of asking adds."""
    read = javaproperties.loads((path / ".hoodie/hoodie.properties").read_text())
    return {name: value for name, value in read.items() if name not in _SAID_BY_WRITERS}


def folders(path: Path) -> set[str]:
    """The folders of Hudi's metadata."""
    found = (str(p.relative_to(path)) for p in (path / ".hoodie").rglob("*") if p.is_dir())
    return {name for name in found if "phantombase" not in name}


_USUAL_6 = ("plain", "no_ordering", "keyless")
"""What a usual run has of version 6."""


@pytest.mark.interop
@pytest.mark.parametrize(
    ("version", "case"),
    [
        *((9, case) for case in CASES),
        *((6, case) if case in _USUAL_6 else deep(6, case) for case in CASES),
        *((8, case) if case == "plain" else deep(8, case) for case in CASES),
    ],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value,
)
def test_hudi_writes_into_our_tables(case: str, version: int, judge: Judge, tmp_path: Path) -> None:
    """As into its own: the same properties and folders, keys, paths, rows, and an unchanged table."""
    spec = replace(CASES[case], version=version)
    ours, hudis = tmp_path / "ours", tmp_path / "hudis"
    table = create_table(LocalStorage(str(ours)), spec)
    made = properties(ours), folders(ours)
    for path in (ours, hudis):
        judge.write(path, _ROWS, writer_options(spec))
    assert made == (properties(hudis), folders(hudis))
    assert properties(ours) == made[0]
    rows = read_table(Table.open(str(ours)))
    # Hudi's readers take partition columns out of folder names, which have "" and some other values wrong.
    derived = list(spec.partition_fields)
    assert_same_rows(rows.drop_columns(derived), judge.read(ours).drop_columns(derived))
    generator = KeyGenerator.of(
        table.config, one_field_prefixed=one_field_prefixed(Table.open(str(ours))), writer=dict(spec.times)
    )
    if spec.key_fields:
        assert generator.keys(rows).to_pylist() == rows.column("_hoodie_record_key").to_pylist()
    assert generator.partition_paths(rows).to_pylist() == rows.column("_hoodie_partition_path").to_pylist()
    text = Table.open(str(ours)).with_timeline(table.load_timeline()).newest_schema().commit_text
    assert new_schema(spec.name, _ROWS.schema) == text


@pytest.mark.interop
@pytest.mark.parametrize("fields", [("id",), ("id", "n"), ("n",)])
@versions(9, deep=(8, 6))
def test_buckets(fields: tuple[str, ...], version: int, judge: Judge, tmp_path: Path) -> None:
    """Every key in Hudi's own bucket; with several fields, hashed by one of them too."""
    spec = replace(CASES["unpartitioned"], version=version, key_fields=fields)
    hashed = fields[-1:]
    index = {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "97",
        "hoodie.bucket.index.hash.field": ",".join(hashed),
    }
    create_table(LocalStorage(str(tmp_path)), spec)
    texts = [*_ROWS.column("id").to_pylist(), "id:1,2", "x:,", ",:", "n:5,id:7", "\U0001f600,n:q", "a,b:,c:d,", "::,,:"]
    numbers = range(len(texts))
    rows = pa.table({"id": texts, "n": numbers, "p": texts, "ts": numbers})
    judge.write(tmp_path, rows, {**writer_options(spec), **index})
    written = read_table(Table.open(str(tmp_path)))
    files = [bucket_of_file_id(name) for name in written.column("_hoodie_file_name").to_pylist()]
    keys = written.column("_hoodie_record_key").combine_chunks()
    assert len(set(files)) > 3
    assert bucket_of(keys, hashed, 97, KeySplit.of(Table.open(str(tmp_path)).layout)).tolist() == files


# A stock Hudi 1.2.0 writer upgrades a version 6 table under a compaction of ours: nothing of ours gets in its way.


UPGRADE = {"hoodie.write.auto.upgrade": "true", "hoodie.write.table.version": 9}


@pytest.fixture
def table(judge: Judge, tmp_path: Path) -> SharedTable:
    """A version 6 table with a plan that pends. An upgrade takes completion times from the files' own times."""
    path = unzip_golden("v6_pending", tmp_path)
    for file in (path / ".hoodie").glob("*.*commit*"):
        moment = parse_time(file.name.split(".")[0]).replace(tzinfo=UTC).timestamp() + 0.2
        os.utime(file, (moment, moment))
    return SharedTable(judge=judge, path=path, version=6)


def upgrade(table: SharedTable) -> pa.Table:
    """One upsert of a stock writer, of rows that are there already; the rows, which must be those of the end. While the
    plan pends, Hudi 1.2.0 reads less from an upgraded table: a version 6 log that lies on the plan's instant is named
    after it, and in version 9 that is a write which has not completed. So do we."""
    rows = own_columns(table.we_read())
    table.upsert(rows.slice(0, 5), UPGRADE)
    assert open_table(table.path).config.version == 9
    return rows


def own_columns(rows: pa.Table) -> pa.Table:
    """The rows without Hudi's columns."""
    return rows.select([name for name in rows.schema.names if not name.startswith("_hoodie")])


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_before_the_decision(table: SharedTable) -> None:
    """The attempt decides nothing and leaves nothing; the next run compacts the table as it is now."""
    ours = open_table(table.path)
    (instant,) = pending_instants(ours)
    attempt, done, schema = staged(ours, instant)
    rows, after = upgrade(table), visible_files(table.path)
    with pytest.raises(TableChangedError, match="version 9"):
        decide_commit(ours, attempt, done, schema, ProcessLock("paused"))
    assert visible_files(table.path) == after
    assert table.we_compact() == [instant]
    same(own_columns(table.agree()), rows)
    check_no_strays(table.path)


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_between_decision_and_publication(table: SharedTable) -> None:
    """It has no final name afterwards, not even a file placed before; Hudi executes the plan, then our rest goes."""
    ours = open_table(table.path)
    (instant,) = pending_instants(ours)
    decision = decided(ours, instant)
    ours.storage.place(decision.placements[0].staged, decision.placements[0].final)
    rows = upgrade(table)
    table.agree()
    for _ in range(2):  # the paused owner, and a later run
        with pytest.raises(TableChangedError, match="let Hudi execute the compaction"):
            publish(ours, decision, ProcessLock("paused"))
        assert base_files(table.path, instant) == []
    with pytest.raises(TableChangedError, match="let Hudi execute the compaction"):
        run_all(open_table(table.path))
    table.hudi_compacts(instant)
    assert table.we_compact() == []
    same(own_columns(table.agree()), rows)
    check_no_strays(table.path)


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_between_publication_and_clean_up(table: SharedTable) -> None:
    """The upgrade renamed and rewrote our completed commit: it is still ours, and its files stay."""
    ours = open_table(table.path)
    (instant,) = pending_instants(ours)
    decision = decided(ours, instant)
    publish(ours, decision, ProcessLock("a"))
    rows = upgrade(table)
    table.agree()
    publish(ours, decision, ProcessLock("paused"))
    assert table.we_compact() == []
    assert {str(p.relative_to(table.path)) for p in base_files(table.path, instant)} == {
        p.final for p in decision.placements
    }
    same(own_columns(table.agree()), rows)
    check_no_strays(table.path)
