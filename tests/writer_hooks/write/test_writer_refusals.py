"""What a write refuses leaves no trace: not a byte of the table changes, and no table appears where there was none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.view.bucket_resize import HASHING_METADATA
from tests.support.golden_tables import unzip_golden
from tests.support.refused_tables import contents
from tests.support.tables import one_of
from tests.support.trips import rows, trips

ROW = rows((1, 1, 1.0))


def put(name: str, values: list[object], kind: pa.DataType) -> pa.Table:
    """The row with another column."""
    return ROW.set_column(ROW.schema.get_field_index(name), name, pa.array(values, kind))


REFUSED: dict[str, tuple[Callable[[], Writer], str]] = {
    "null key": (lambda: trips(put("id", [None], pa.string()), 9), "rows without a record key"),
    "empty key": (lambda: trips(put("id", [""], pa.string()), 9), "rows without a record key"),
    "no key column": (lambda: trips(ROW.drop_columns(["id"]), 9), "lack columns that the table needs"),
    "no partition column": (lambda: trips(ROW.drop_columns(["day"]), 9), "lack columns that the table needs"),
    "no ordering column": (lambda: trips(ROW.drop_columns(["ts"]), 9), "lack columns that the table needs"),
    "null ordering value": (lambda: trips(put("ts", [None], pa.int64()), 9), "rows without an ordering value"),
    "other type": (lambda: trips(put("fare", ["x"], pa.string()), 9), "fare"),
    "other name": (lambda: trips(ROW, 9).table("rides"), "another table is at this path"),
    "other key": (lambda: trips(ROW, 9).key("fare"), "another table is at this path"),
    "no rows at all": (lambda: writer([1, 2]), "not rows"),
    "unknown lock": (lambda: trips(ROW, 9).option(lock="etcd:x"), "lock provider"),
    "path out of the table": (lambda: trips(put("day", ["../x"], pa.string()), 9), "partition"),
}


@one_of("version", 9, 6)
@pytest.mark.parametrize("buckets", [5, 8])
def test_more_buckets_than_the_table_has(version: int, buckets: int, tmp_path: Path) -> None:
    """Keys would be looked for in other buckets than they lie in."""
    path = tmp_path / "trips"
    many = rows(*((n, 1, 1.0) for n in range(60)))
    trips(many, version, 4).upsert(str(path))
    with pytest.raises(UsageError, match="not the table's bucket index"):
        trips(many, version, buckets).upsert(str(path))
    assert trips(many, version, 4).upsert(str(path)).updates == 60


@one_of("version", 6, 9)
def test_keys_in_file_groups_of_logs_are_not_looked_for(version: int, tmp_path: Path) -> None:
    """As Flink's state index makes them: an upsert would have doubled every row."""
    path = tmp_path / "trips"
    for ts in (1, 2):
        trips(rows((1, ts, 1.0)), version, 1).upsert(str(path))
    (base,), (log,) = path.glob("tue/0*.parquet"), path.glob("tue/.0*.log.*")
    base.unlink()
    log.rename(log.with_name(f".abcdefab{log.name[9:]}"))
    for write in (Writer.upsert, Writer.delete):
        with pytest.raises(UnsupportedError, match="puts new keys into log files"):
            write(trips(ROW, version), str(path))


@pytest.mark.parametrize("case", REFUSED)
def test_refused_without_a_trace(case: str, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    trips(ROW, 9).upsert(str(path))
    before = contents(path)
    make, said = REFUSED[case]
    with pytest.raises(PhantombaseError, match=said) as caught:
        make().upsert(str(path))
    assert "\n" not in str(caught.value)
    assert contents(path) == before


@pytest.mark.parametrize("case", [c for c in REFUSED if not c.startswith(("other", "unknown", "path"))])
def test_no_table_is_made_for_what_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    make, said = REFUSED[case]
    if "null" in case or "empty" in case:
        # Whether a key is null is known once the rows are read: a table without rows may be there then.
        with pytest.raises(PhantombaseError, match=said):
            make().upsert(str(path))
        assert not list(path.rglob("*.deltacommit*"))
        return
    with pytest.raises(PhantombaseError, match=said):
        make().upsert(str(path))
    assert not path.exists()


def test_too_little_said_of_a_new_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the description of a new one is incomplete; expected name"):
        writer(ROW).key("id").upsert(str(tmp_path / "trips"))
    with pytest.raises(PhantombaseError):
        writer(ROW).delete(str(tmp_path / "trips"))
    assert not (tmp_path / "trips").exists()


def test_an_unknown_index_is_refused_or_dropped(tmp_path: Path) -> None:
    table = unzip_golden("v9_with_metadata_table", tmp_path)
    properties = table / ".hoodie/hoodie.properties"
    properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.metadata.partitions=files,vector_index\n")
    batch = pa.table({"id": ["k1"], "p": ["north"], "ts": [10**6]})
    before = contents(table)
    with pytest.raises(UnsupportedError, match="vector_index"):
        writer(batch).upsert(str(table))
    assert contents(table) == before
    assert writer(batch).option(drop_metadata_table=True).upsert(str(table)).writes == 1
    assert not (table / ".hoodie/metadata").exists()


def test_a_bucketed_table_is_recognised(tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    trips(ROW, 9, 4).upsert(path)
    with pytest.raises(UsageError, match="this table has a bucket index"):
        trips(ROW, 9).upsert(path)
    with pytest.raises(UsageError, match="not a table with this bucket index"):
        trips(ROW, 9, 1).upsert(path)


@one_of("version", 9, 6)
def test_consistent_hashing_buckets(version: int, tmp_path: Path) -> None:
    """Only Hudi knows which bucket a key belongs to."""
    path = tmp_path / "trips"
    trips(ROW, version).upsert(str(path))
    (path / HASHING_METADATA / "1").mkdir(parents=True)
    before = contents(path)
    with pytest.raises(UnsupportedError, match="writing a table with the consistent-hashing bucket index"):
        trips(ROW, version).upsert(str(path))
    assert contents(path) == before
