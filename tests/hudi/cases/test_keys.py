"""Keys of every kind in turns with real Hudi: virtual, generated, global; and Bloom filters of our base files."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import schedule, writer
from phantombase.timeline.codec.output_options import Bloom, OutputOptions
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, SharedTable, check_rows
from tests.hudi.judge.client import QUIET, Judge
from tests.support.compaction_steps import run_all
from tests.support.places import SEED
from tests.support.record_indexes import Row, World, batch, some_rows
from tests.support.selection import deep, versions
from tests.support.written_tables import seed_note

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
@pytest.mark.parametrize("kind", ["simple", *(deep(kind) for kind in KINDS if kind != "simple")])
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


# Keyless tables: real Hudi and we add rows in turns; Hudi's SQL changes rows of both, and both compact.


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


# Keys that are unique over all partitions: real Hudi under its global indexes and phantombase write them in turn.


STEPS = ("ours", "hudi", "ours", "plan", "hudi", "ours", "compact", "ours", "delete", "hudi", "hudi compacts")
EVENT_TIME_6 = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload"}


@pytest.mark.parametrize("index", ["GLOBAL_SIMPLE", deep("GLOBAL_BLOOM")])
@pytest.mark.parametrize("version", [9, deep(8), deep(6)])
def test_both_move_keys(judge: Judge, version: int, index: str, tmp_path: Path) -> None:
    """Each finds what the other has moved; both compact; Hudi reads what the model holds."""
    chance = random.Random(f"{SEED} {version} {index}")
    world = World(path=tmp_path / "t", version=version)
    options = {"hoodie.index.type": index, **(EVENT_TIME_6 if version == 6 else {})}
    first: list[Row] = [(f"{p}{n}", p, 10, "old") for p in "abc" for n in range(9)]
    judge.create(world.path, "t", batch(*first), version=version, partition_field="p", options=options)
    for row in first:
        world.met(row[0], row)
    times = iter(range(100, 1000))

    def agree() -> None:
        world.check()
        found = judge.read(world.path).to_pylist()
        seen = sorted((r["id"], r["_hoodie_partition_path"], r["p"], r["ts"], r["v"]) for r in found)
        assert seen == sorted((key, folder, *row[1:]) for key, (folder, row) in world.rows.items())

    with seed_note(SEED, world.version):
        for step in STEPS:
            given = some_rows(chance, world, times)
            if step == "ours":
                world.upsert(*given)
            elif step == "hudi":
                judge.upsert(world.path, batch(*given))
                for row in given:
                    world.met(row[0], row)
            elif step == "delete":
                world.delete(*given[:4])
            elif step == "plan":
                schedule(str(world.path), sole_writer=True)
            elif step == "compact":
                run_all(Table.open(str(world.path)))
            else:
                judge.run_compaction(world.path, judge.schedule_compaction(world.path))
            agree()


# Hudi's BLOOM index finds its keys in the base files that we write.


# Without small files a key that is not found gets a new file, where it is there twice. In a small file it would
# meet itself, and nothing be seen.
BLOOM_INDEX = EVENT_TIME | {"hoodie.index.type": "BLOOM", "hoodie.parquet.small.file.limit": 0}


@pytest.mark.parametrize(
    ("version", "bloom"),
    [(9, Bloom.ON), deep(9, Bloom.OFF), deep(6, Bloom.ON), deep(6, Bloom.OFF)],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value.value,
)
def test_bloom_index_finds_every_key(judge: Judge, version: int, bloom: Bloom, tmp_path: Path) -> None:
    """Rows of known keys become updates, and no key is there twice."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=BLOOM_INDEX)
    rows = Rows(seed=1)
    table.create(rows(range(120), 1))
    table.upsert(rows(range(0, 120, 2), 2))
    table.we_schedule()
    table.we_compact(output=OutputOptions(bloom=bloom))
    latest = rows(range(150), 3)
    table.upsert(latest)
    assert table.judge.count(table.path) == 150
    check_rows(table.agree(), latest)


# Keys that a base file has twice, as after a bulk insert: each write changes every row of a key.


@versions(deep=(9, 8))
def test_both_change_every_row_of_a_doubled_key(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi deletes such keys, we write other ones into the same file and delete more; Hudi goes on, and we compact."""
    options = {**EVENT_TIME, **SIMPLE, "hoodie.bulkinsert.shuffle.parallelism": 1}
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    rows = Rows(seed=17)
    first = rows(range(30), 2)
    table.create(pa.concat_tables([first, first.slice(0, 20)]), operation="bulk_insert")
    table.delete(rows(range(3), 0))
    table.writer(rows(range(10, 30), 3)).upsert(str(table.path))
    assert table.agree().num_rows == 44
    table.writer(rows(range(3, 6), 0).select(["id", "p"])).delete(str(table.path))
    table.delete(rows(range(6, 8), 0))
    assert table.agree().num_rows == 34
    table.we_schedule()
    table.we_compact()
    assert table.agree().num_rows == 34
