"""New tables: what is refused, what lies there afterwards, and two creators at once."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import javaproperties
import pyarrow as pa
import pytest

from phantombase import Writer, read, writer
from phantombase.timeline.errors import LockError, MalformedError, PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.file_name import partition_metadata
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import FirstTable
from phantombase.writer_hooks.schema import new_table
from phantombase.writer_hooks.schema.key_encoding import one_field_prefixed
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.schema.table_schema import new_schema
from phantombase.writer_hooks.write.table_conf import parse_table_conf
from tests.support.builders import schema
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at, pause_at
from tests.support.places import capture_logs, traces
from tests.support.selection import for_each

SPEC = NewTable(name="t", version=9, key_fields=("id",), partition_fields=("p",), ordering_fields=("ts",))
VERSIONS = (6, 8, 9)
TIMES = (
    ("hoodie.keygen.timebased.output.dateformat", "yyyy"),
    ("hoodie.keygen.timebased.timestamp.type", "UNIX_TIMESTAMP"),
    ("hoodie.keygen.timebased.timezone", "UTC"),
)


def files(path: Path) -> list[str]:
    """Everything in a folder."""
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_table_is_empty(version: int, tmp_path: Path) -> None:
    """It opens, has no instants, and reads as no rows where its schema is said."""
    spec = replace(SPEC, version=version, schema_text=new_schema("t", schema(id=pa.string())))
    table = create_table(LocalStorage(str(tmp_path)), spec)
    assert not table.load_timeline(archived=True).instants
    assert read_table(Table.open(str(tmp_path))).num_rows == 0
    assert table.config.merge_mode in (MergeMode.EVENT_TIME, MergeMode.EVENT_TIME_0X)
    assert one_field_prefixed(table) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_one_field_complex_keys_of_an_empty_table(version: int, tmp_path: Path) -> None:
    """As the judge of the version writes them."""
    spec = replace(SPEC, version=version, key_generator="COMPLEX")
    assert one_field_prefixed(create_table(LocalStorage(str(tmp_path)), spec)) is (version > 6)


IMPOSSIBLE: list[dict[str, Any]] = [
    {"name": " "},
    {"key_fields": ("id", "id")},
    {"partition_fields": ("a,b",)},
    {"partition_fields": (" p",)},
    {"version": 7},
    {"ordering_fields": (), "merge_mode": MergeMode.EVENT_TIME},
    {"merge_mode": MergeMode.EVENT_TIME_0X},
    {"version": 8, "ordering_fields": ("a", "b")},
    {"key_generator": "MINE"},
    {"key_generator": "NON_PARTITION"},
    {"key_generator": "SIMPLE", "key_fields": ("a", "b")},
    {"key_generator": "TIMESTAMP"},
    {"key_generator": "GLOBAL_DELETE"},
    {"key_generator": "CUSTOM"},
    {"key_generator": "CUSTOM", "version": 6},
    {"partition_fields": ("p:SIMPLE",), "version": 6},
    {
        "key_generator": "TIMESTAMP",
        "version": 6,
        "times": (*TIMES[:1], ("hoodie.keygen.timebased.timestamp.type", "EPOCHMICROSECONDS"), *TIMES[2:]),
    },
]


def test_impossible_tables(tmp_path: Path) -> None:
    """Nothing is left behind."""
    for changes in IMPOSSIBLE:
        with pytest.raises((UsageError, UnsupportedError)):
            create_table(LocalStorage(str(tmp_path)), replace(SPEC, **changes))
        assert files(tmp_path) == [], changes


def test_what_the_timestamp_generator_stores(tmp_path: Path) -> None:
    """0.15 leaves the type out; the writer's own options still make a generator of it."""
    for version in VERSIONS:
        spec = replace(SPEC, version=version, key_generator="TIMESTAMP", times=TIMES)
        stored = {k: v for k, v in spec.config().properties.items() if "timebased" in k}
        assert stored == dict(TIMES if version > 6 else (TIMES[0], TIMES[2]))
    custom = replace(SPEC, key_generator="CUSTOM", partition_fields=("p:TIMESTAMP", "q:simple"), times=TIMES)
    assert custom.config().properties["hoodie.table.partition.fields"] == "p:TIMESTAMP,q:simple"
    assert not [k for k in custom.config().properties if "timebased" in k]
    assert replace(custom, version=6).config().properties["hoodie.table.partition.fields"] == "p,q"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "name other; found name t"),
        ({"key_fields": ("id", "n"), "key_generator": "COMPLEX"}, "record key fields id,n"),
        ({"partition_fields": ()}, "partition fields none.*found partition fields p"),
        ({"ordering_fields": ("n",)}, "ordering fields n; found ordering fields ts"),
        ({"key_generator": "COMPLEX"}, "key generator COMPLEX; found key generator SIMPLE"),
        ({"hive_style": True}, "hive style folders True"),
        ({"merge_mode": MergeMode.COMMIT_TIME}, "merge mode COMMIT_TIME; found merge mode EVENT_TIME"),
    ],
)
def test_another_table_is_there(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Named with both; the same one is opened, and nothing changes."""
    for version in VERSIONS:
        path = tmp_path / str(version)
        storage, spec = LocalStorage(str(path)), replace(SPEC, version=version)
        create_table(storage, spec)
        before = (path / ".hoodie/hoodie.properties").read_bytes()
        with pytest.raises(UsageError, match=message):
            create_table(storage, replace(spec, **changes))
        for same in (spec, replace(spec, version=8), replace(spec, merge_mode=MergeMode.EVENT_TIME)):
            assert create_table(storage, same).config.version == version
        assert (path / ".hoodie/hoodie.properties").read_bytes() == before


def test_a_table_that_lost_its_properties(tmp_path: Path) -> None:
    """Its rows must not get new ones."""
    storage = LocalStorage(str(tmp_path))
    create_table(storage, SPEC)
    (tmp_path / ".hoodie/timeline/20260101000000000.deltacommit.requested").touch()
    (tmp_path / ".hoodie/hoodie.properties").unlink()
    with pytest.raises(MalformedError, match=r"without its hoodie\.properties"):
        create_table(storage, SPEC)
    assert not (tmp_path / ".hoodie/hoodie.properties").exists()


def test_killed_anywhere(tmp_path: Path) -> None:
    """The next one finishes: there is no table, or a whole one."""
    done = HookedStorage(LocalStorage(str(tmp_path / "done")), lambda call: call.do())
    create_table(done, SPEC)
    for number in range(len(done.calls)):
        inner = LocalStorage(str(tmp_path / str(number)))
        with pytest.raises(ProcessDied):
            create_table(HookedStorage(inner, die_at(number)), SPEC)
        assert create_table(inner, SPEC).config == Table.on(done.inner).config


@pytest.mark.parametrize("other", [SPEC, replace(SPEC, name="other")])
def test_a_second_creator_at_any_moment(other: NewTable, tmp_path: Path) -> None:
    """The first that places hoodie.properties wins; the other opens it, or says what is there."""
    calls = HookedStorage(LocalStorage(str(tmp_path / "count")), lambda call: call.do())
    create_table(calls, SPEC)
    for number in range(len(calls.calls)):
        inner = LocalStorage(str(tmp_path / f"{number}"))
        hooked = HookedStorage(inner, pause_at(number, lambda inner=inner: create_other(inner, other)))  # type: ignore[misc]
        create_other(hooked, SPEC)
        first = number > calls.calls.index("put_if_absent")
        assert Table.on(inner).config.name == (SPEC if first else other).name
        assert len(list((tmp_path / f"{number}/.hoodie").glob("hoodie.properties*"))) == 1


def create_other(storage: Storage, spec: NewTable) -> None:
    """The second creator may lose too."""
    with suppress(UsageError):
        create_table(storage, spec)


def test_many_creators(tmp_path: Path) -> None:
    """Eight at once, of two minds: one table, and who asked for it has it."""
    results: list[str] = []
    barrier = threading.Barrier(8)

    def run(name: str) -> None:
        barrier.wait()
        try:
            results.append(create_table(LocalStorage(str(tmp_path)), replace(SPEC, name=name)).config.name)
        except PhantombaseError as error:
            results.append(type(error).__name__)

    threads = [threading.Thread(target=run, args=(f"t{i % 2}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = Table.open(str(tmp_path)).config.name
    assert sorted(results) == sorted([winner] * 4 + ["UsageError"] * 4)


def test_partition_metadata() -> None:
    """Java Properties text under Hudi's first line."""
    data = partition_metadata("20260101000000000", 2)
    assert data.startswith(b"#partition metadata\n")
    assert javaproperties.loads(data) == {"commitTime": "20260101000000000", "partitionDepth": "2"}


# --- Hudi's names -----------------------------------------------------------------------------------------------


def test_hudi_names() -> None:
    """A writer's options as a table."""
    conf = {
        "hoodie.table.name": "t",
        "hoodie.write.table.version": "9",
        "hoodie.datasource.write.recordkey.field": "id, n",
        "hoodie.datasource.write.partitionpath.field": "p",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexAvroKeyGenerator",
        "hoodie.datasource.write.keygenerator.type": "complex",
        "hoodie.datasource.write.hive_style_partitioning": "TRUE",
        "hoodie.write.record.merge.mode": "commit_time_ordering",
        "hoodie.table.timeline.timezone": "utc",
    }
    spec = NewTable(**parse_table_conf(conf))
    assert spec == NewTable(
        name="t",
        version=9,
        key_fields=("id", "n"),
        partition_fields=("p",),
        ordering_fields=("ts",),
        key_generator="COMPLEX",
        hive_style=True,
        merge_mode=MergeMode.COMMIT_TIME,
        utc_timezone=True,
    )
    old = {"hoodie.deltastreamer.keygen.timebased.timezone": "UTC", "hoodie.keygen.timebased.timestamp.type": "X"}
    assert parse_table_conf(old)["times"] == (
        ("hoodie.keygen.timebased.timestamp.type", "X"),
        ("hoodie.keygen.timebased.timezone", "UTC"),
    )


@for_each(
    [
        ({"hoodie.nothing": "1"}, UsageError),
        ({"hoodie.write.table.version": "nine"}, UsageError),
        ({"hoodie.datasource.write.keygenerator.class": "com.mine.Generator"}, UsageError),
        ({"hoodie.datasource.write.hive_style_partitioning": "yes"}, UsageError),
        ({"hoodie.table.name": "a", "hoodie.datasource.write.table.name": "b"}, UsageError),
    ]
)
def test_refused_names_and_values(conf: dict[str, str], error: type[Exception]) -> None:
    """What has no meaning here."""
    with pytest.raises(error):
        parse_table_conf(conf)


# A first write makes its table in a folder of its own, and a refused one leaves nothing behind.


ROWS = pa.table({"id": ["a", "b"], "zone": ["x", None], "ts": pa.array([1, None], pa.int64()), "lines": ["u", "v\n"],
                 "nested": ["n", "n/m"], "inner": [{"n": 1}, {"n": 2}], "long": ["abc/" + "x" * 256, "y"],
                 "letters": ["é" * 129, "y"], "deep": ["/".join(["x" * 200] * 20), "y"], "almost": ["x" * 249, "y"]}
                )  # fmt: skip
NO_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"a\xff")]
)


def described(key: str = "id", rows: pa.Table = ROWS) -> Writer:
    return writer(rows).table("t").key(key)


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (lambda: described("zone"), "rows without a record key"),
        (lambda: described().ordering("ts"), "rows without an ordering value"),
        (lambda: described().ordering("inner.n"), "an ordering field inside a record is not supported"),
        (lambda: described().ordering("inner"), "values of this type have no order"),
        (lambda: described().partition("lines"), "not paths inside the table"),
        (lambda: described().partition("nested"), "a partition below another one"),
        (lambda: described().buckets(10**8), "impossible number of buckets"),
        (lambda: described().option(lock="file:here"), "relative path"),
        (lambda: described().option(lock="flie:/x"), "unknown lock provider"),
        (lambda: described().option(lock="file:/proc/nowhere/lock"), "its folder does not exist"),
        (lambda: described().option(lock="file:/proc"), "the lock file cannot be used"),
        (lambda: described().table("a/b").option(lock="zookeeper:localhost:1/{name}/x"), "cannot be a part of a lock"),
        (lambda: described("bad", ROWS.append_column("bad", NO_TEXT)), "none of their type.*bad: string"),
        (lambda: described("id", ROWS.append_column("bad", NO_TEXT)), "none of their type.*bad: string"),
        (lambda: described().partition("long"), "too long for a folder.*expected 255 bytes.*found 256 of 260 bytes"),
        (lambda: described().partition("letters"), "too long for a folder.*found 258 of"),
        (lambda: described().partition("deep"), "too long for a folder.*found 200 of 4019 bytes"),
        (lambda: described().partition("deep", url_encode=True), "too long for a folder.*found 40"),
        (lambda: described().partition("almost", hive_style=True), "too long for a folder.*found 256 of"),
    ],
)
def test_a_refused_first_write_leaves_nothing(refused: Callable[[], Writer], match: str, tmp_path: Path) -> None:
    """Else there would be a table that refuses the right one."""
    path = tmp_path / "t"
    for there in ([], [path]):
        with pytest.raises((UsageError, UnsupportedError, LockError), match=match):
            refused().upsert(str(path))
        assert list(tmp_path.rglob("*")) == there
        path.mkdir(exist_ok=True)
    described().upsert(str(path))
    assert len(read(str(path)).to_arrow()) == 2


@pytest.mark.parametrize(
    ("there", "path", "found"),
    [
        ("t/.hoodie/hoodie.properties", "t/x", "in the table"),
        ("t/.hoodie/hoodie.properties", "t/x/y/z", "in the table"),
        ("t/.hoodie/hoodie.properties", "t/.hoodie/x", "in the table"),
        ("lake/a/.hoodie/hoodie.properties", "lake", "the table a below it"),
        ("lake/a/b/c/.hoodie/hoodie.properties", "lake", "the table a/b/c below it"),
        ("d/_delta_log/0.json", "d", "a Delta table"),
        ("lake/d/_delta_log/0.json", "lake", "a Delta table at d"),
        ("i/metadata/v1.metadata.json", "i", "an Iceberg table"),
        ("lake/i/metadata/v1.metadata.json", "lake", "an Iceberg table at i"),
        ("d/_delta_log/0.json", "d/x/y", "in a Delta table"),
        ("i/metadata/v1.metadata.json", "i/data/x", "in an Iceberg table"),
        ("i/metadata/v1.metadata.json", "i/metadata/x", "in an Iceberg table"),
    ],
)
def test_no_table_is_made_in_or_above_another(there: str, path: str, found: str, tmp_path: Path) -> None:
    """One typing error in a path would stop the next start of a fleet."""
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"a table cannot be made here.*{found}"):
        described().upsert(str(tmp_path / path))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_where_a_partition_would_be(tmp_path: Path) -> None:
    (tmp_path / "n").write_text("x")
    with pytest.raises(UsageError, match="a file is where the folder of a partition would be"):
        described().partition("nested").option(allow_other_files=True).upsert(tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / "n"]


@pytest.mark.parametrize("method", ["key", "partition", "ordering"])
def test_a_list_is_no_name_of_a_column(method: str) -> None:
    with pytest.raises(UsageError, match="not names of columns"):
        getattr(writer(ROWS), method)(["id"])


HIDDEN = ("_SUCCESS", ".part-0.crc", "zone=x_$folder$", "_temporary/0/part-0", ".git/config", "a/.x", "metadata/_x")
OF_OTHERS = ("README", "notes/a.csv", "a/b/c/part-0.parquet")
ALLOWED: tuple[Callable[[Writer], Writer], ...] = (
    lambda to: to.option(allow_other_files=True),
    lambda to: to.conf({"phantombase.write.allow.other.files": "true"}),
)


def put(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")


def test_a_table_is_made_among_other_files_if_they_are_allowed(tmp_path: Path) -> None:
    """Hidden ones, and empty folders, are no data for Spark either."""
    put(tmp_path / "hidden", *HIDDEN)
    (tmp_path / "hidden" / "empty").mkdir()
    described().upsert(tmp_path / "hidden")
    for number, name in enumerate(OF_OTHERS):
        path = tmp_path / str(number)
        put(path, name)
        for write in (described().upsert, lambda to: described().foreach_batch(to)(ROWS, 1)):
            with pytest.raises(
                UsageError, match=f"files of others: {name}.*allow_other_files=True.*allow.other.files=true"
            ):
                write(path)
            assert [one for one in path.rglob("*") if one.is_file()] == [path / name]
    for number, allowed in enumerate(ALLOWED):
        allowed(described()).upsert(tmp_path / str(number))
        described().upsert(tmp_path / str(number))
        assert len(read(tmp_path / str(number)).to_arrow()) == 2


def test_rows_of_a_lost_table_become_none_of_a_new_one(tmp_path: Path) -> None:
    """Its base files, and log files, would be read as those of a write that is archived."""
    for path, write in ((tmp_path / "bases", described().upsert), (tmp_path / "logs", described().buckets(1).upsert)):
        write(path)
        shutil.rmtree(path / ".hoodie")
        before = files(path)
        for again in (described(), *(allowed(described()) for allowed in ALLOWED)):
            with pytest.raises(UsageError, match=f"{path}; .*of a Hudi table that has lost its .hoodie"):
                again.upsert(path)
        assert files(path) == before


def test_files_of_a_first_write_at_the_same_time_are_no_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins, or fails and removes them, between two looks at the folder."""
    path = tmp_path / "t"

    def other_write(*given: Any) -> Any:
        monkeypatch.undo()
        writer(ROWS.slice(1)).table("t").key("id").upsert(path)
        return listed_if_there(*given)

    def that_fails(*given: Any) -> Any:
        monkeypatch.undo()
        put(path, "f")
        found = listed_if_there(*given)
        (path / "f").unlink()
        return found

    for other in (that_fails, other_write):
        monkeypatch.setattr(new_table, "listed_if_there", other)
        described().upsert(path)
        assert sorted(read(path).to_arrow()["id"].to_pylist()) == ["a", "b"]
        shutil.rmtree(path)


@pytest.mark.parametrize("version", [6, 9])
def test_a_partition_below_another_one_is_refused(version: int, tmp_path: Path) -> None:
    """Readers of folders look for none below a partition, so an acknowledged row would be in no read."""
    path = str(tmp_path / "t")

    def made(*zones: str) -> Writer:
        ids = [f"k{number}" for number in range(len(zones))]
        return writer(pa.table({"id": ids, "zone": zones})).table("t", version=version).key("id").partition("zone")

    made("a", "c/d").upsert(path)
    before = traces(Path(path))
    for zones in (("a/b",), ("c",), ("c/d/e/f",), ("x", "x/y")):
        with pytest.raises(UsageError, match="a partition below another one would not be read"):
            made(*zones).upsert(path)
    assert traces(Path(path)) == before
    made("a", "c/d", "c/e", "x").upsert(path)
    assert sorted(read(path).to_arrow()["zone"].to_pylist()) == ["a", "c/d", "c/e", "x"]


def test_a_partition_value_that_is_too_long_begins_no_write(tmp_path: Path) -> None:
    path = tmp_path / "t"
    described(rows=ROWS.slice(1)).partition("long").upsert(path)
    before = files(path)
    with pytest.raises(UsageError, match="too long for a folder"):
        described().partition("long").upsert(path)
    assert files(path) == before


def test_two_first_writes_with_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the second were prepared for a table that had none: they are prepared anew."""
    path, real = str(tmp_path / "t"), FirstTable.make

    def overtaken(*given: Any) -> Table:
        monkeypatch.setattr(FirstTable, "make", real)
        first = pa.table({"extra": [1], "ts": pa.array([9], pa.int64()), "id": ["z"]})
        writer(first).table("t").key("id").upsert(path)
        return real(*given)

    monkeypatch.setattr(FirstTable, "make", overtaken)
    described().upsert(path)
    found = {row["id"]: (row["ts"], row["lines"], row["extra"]) for row in read(path).to_arrow().to_pylist()}
    assert found == {"z": (9, None, 1), "a": (1, "u", None), "b": (None, "v\n", None)}


_W, _KEYGEN, _PAYLOAD = "hoodie.datasource.write.", "org.apache.hudi.keygen.", "org.apache.hudi.common.model."
JOB = {
    "hoodie.table.name": "t",
    f"{_W}recordkey.field": "id",
    f"{_W}partitionpath.field": "p",
    f"{_W}precombine.field": "ts",
}
OTHERS: Mapping[str, Mapping[str, object]] = {
    "table name": {"hoodie.table.name": "other"},
    "key": {f"{_W}recordkey.field": "k"},
    "two keys": {f"{_W}recordkey.field": "id,k"},
    "key in other letters": {f"{_W}recordkey.field": "ID"},
    "no key": {f"{_W}recordkey.field": ""},
    "partition": {f"{_W}partitionpath.field": "q"},
    "partition in other letters": {f"{_W}partitionpath.field": "P"},
    "no partition": {f"{_W}partitionpath.field": ""},
    "two partitions": {f"{_W}partitionpath.field": "p,q"},
    "ordering": {f"{_W}precombine.field": "k"},
    "ordering in other letters": {f"{_W}precombine.field": "TS"},
    "two orderings": {f"{_W}precombine.field": "ts,k"},
    "no ordering": {f"{_W}precombine.field": ""},
    "complex class": {f"{_W}keygenerator.class": f"{_KEYGEN}ComplexKeyGenerator"},
    "non-partitioned class": {f"{_W}keygenerator.class": f"{_KEYGEN}NonpartitionedKeyGenerator"},
    "timestamp class": {f"{_W}keygenerator.class": f"{_KEYGEN}TimestampBasedKeyGenerator"},
    "own class": {f"{_W}keygenerator.class": "com.acme.Keys"},
    "complex type": {f"{_W}keygenerator.type": "COMPLEX"},
    "hive style": {f"{_W}hive_style_partitioning": "true"},
    "encoded": {f"{_W}partitionpath.urlencode": True},
    "merge mode": {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"},
    "own merge mode": {"hoodie.write.record.merge.mode": "CUSTOM"},
    "payload": {f"{_W}payload.class": f"{_PAYLOAD}OverwriteWithLatestAvroPayload"},
    "partial payload": {f"{_W}payload.class": f"{_PAYLOAD}PartialUpdateAvroPayload"},
    "strategy": {"hoodie.write.record.merge.strategy.id": "ce9acb64-bde0-424c-9b91-f6ebba25356d"},
    "virtual keys": {"hoodie.populate.meta.fields": False},
    "no partition columns": {f"{_W}drop.partition.columns": True},
    "file format": {"hoodie.table.base.file.format": "ORC"},
    "zone": {"hoodie.table.timeline.timezone": "utc"},
    "table type": {f"{_W}table.type": "COPY_ON_WRITE"},
    "captured changes": {"hoodie.table.cdc.enabled": True},
    "path": {"hoodie.base.path": "/elsewhere"},
    "two versions": {"hoodie.write.table.version": 9, "hoodie.table.version": "EIGHT"},
}
"""What contradicts the table of `JOB`, each by a name."""


@pytest.mark.parametrize("version", [6, 9])
def test_what_contradicts_a_table_is_refused_before_anything_is_written(version: int, tmp_path: Path) -> None:
    rows = pa.table({"id": ["a", "b"], "p": ["x", "y"], "ts": [1, 1], "k": [1, 2], "q": ["m", "n"]})
    rule = {f"{_W}payload.class": f"{_PAYLOAD}DefaultHoodieRecordPayload", "hoodie.write.table.version": version}
    writer(rows).conf({**JOB, **rule}).upsert(str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for name, conf in OTHERS.items():
        with pytest.raises((UsageError, UnsupportedError)):
            writer(rows).conf({**JOB, **conf}).upsert(str(tmp_path))
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, name
    writer(rows).conf(JOB).upsert(str(tmp_path))


def test_a_type_of_key_generator_that_hudi_does_not_read_is_refused(tmp_path: Path) -> None:
    """Its Spark writers infer the generator of the fields, whatever the type says: seen with 1.2.0."""
    rows = pa.table({"id": ["a"], "p": ["x"], "ts": [1]})
    for kind in ("COMPLEX", "TIMESTAMP", "NON_PARTITION"):
        with pytest.raises(UnsupportedError, match=r"do not read .*keygenerator\.type.*expected SIMPLE.*class"):
            writer(rows).conf({**JOB, f"{_W}keygenerator.type": kind}).upsert(str(tmp_path / "t"))
    assert list(tmp_path.iterdir()) == []
    named = {f"{_W}keygenerator.type": "COMPLEX", f"{_W}keygenerator.class": f"{_KEYGEN}ComplexKeyGenerator"}
    writer(rows).conf({**JOB, **named}).upsert(str(tmp_path / "t"))
    writer(rows).conf({**JOB, f"{_W}keygenerator.type": "simple"}).upsert(str(tmp_path / "s"))


def test_a_metadata_table_that_is_not_made_is_named(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a"], "p": ["x"], "ts": [1]})
    writer(rows).conf(JOB).upsert(str(tmp_path))
    with capture_logs() as logs:
        writer(rows).conf({"hoodie.metadata.enable": True}).upsert(str(tmp_path))
    assert logs[0]["names"] == "hoodie.metadata.enable"
