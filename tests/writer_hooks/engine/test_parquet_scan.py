"""Frames that are bare scans of Parquet files: the same rows as Spark gives, and the usual way for all others."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.errors import MalformedError, PhantombaseError, StorageError
from phantombase.timeline.storage.contract import Entry, Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.writer_hooks.engine import parquet_scan
from phantombase.writer_hooks.engine.parquet_scan import ParquetScan, ScannedFile, bare_scan
from phantombase.writer_hooks.engine.spark import from_spark, to_arrow
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server

NOON, FIRST = datetime(2024, 5, 1, 12, 30, 1, 123456), datetime(1, 1, 1)
PRICES = [Decimal("1.25"), Decimal("-99.99"), None]
SCANNED: dict[str, pa.Array] = {
    "bool": pa.array([True, False, None]),
    "i8": pa.array([1, -128, None], pa.int8()),
    "i16": pa.array([1, -3000, None], pa.int16()),
    "i32": pa.array([1, -(2**31), None], pa.int32()),
    "i64": pa.array([1, -(2**63), None], pa.int64()),
    "u8": pa.array([1, 255, None], pa.uint8()),
    "u16": pa.array([1, 65535, None], pa.uint16()),
    "u32": pa.array([1, 2**32 - 1, None], pa.uint32()),
    "f32": pa.array([1.1, float("nan"), None], pa.float32()),
    "f64": pa.array([1.1, float("inf"), None]),
    "text": pa.array(["x", "é😀", None]),
    "large_text": pa.array(["x", "é", None], pa.large_string()),
    "coded_text": pa.array(["x", "é", None]).dictionary_encode(),
    "bytes": pa.array([b"x", b"\xff", None]),
    "large_bytes": pa.array([b"x", b"\xff", None], pa.large_binary()),
    "date": pa.array([date(2024, 1, 1), date(1500, 1, 1), None]),
    "time_us": pa.array([NOON, FIRST, None], pa.timestamp("us", "UTC")),
    "time_ms": pa.array([FIRST, FIRST, None], pa.timestamp("ms", "UTC")),
    "time_s": pa.array([FIRST, FIRST, None], pa.timestamp("s", "UTC")),
    "time_zone": pa.array([NOON, FIRST, None], pa.timestamp("us", "America/New_York")),
    "no_zone": pa.array([NOON, FIRST, None], pa.timestamp("us")),
    "no_zone_ms": pa.array([FIRST, FIRST, None], pa.timestamp("ms")),
    "decimal9": pa.array(PRICES, pa.decimal128(9, 2)),
    "decimal18": pa.array(PRICES, pa.decimal128(18, 2)),
    "decimal38": pa.array(PRICES, pa.decimal128(38, 2)),
    "record": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None]),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
    "map": pa.array([[("a", 1), ("a", 2)], [], None], pa.map_(pa.string(), pa.int32())),
    "deep": pa.array(
        [[{"a": [[("k", {"z": Decimal("1.1")})]]}], [], None],
        pa.list_(pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.struct([("z", pa.decimal128(10, 1))]))))])),
    ),
}
"""Columns that both ways read."""
USUAL: dict[str, pa.Array] = {
    "u64": pa.array([1, 2**64 - 1, None], pa.uint64()),
    "fixed": pa.array([b"xx", b"\xff1", None], pa.binary(2)),
    "null": pa.array([None] * 3),
    "duration": pa.array([1, 2, None], pa.duration("us")),
    "text_view": pa.array(["x", "é", None], pa.string_view()),
    "decimal256": pa.array(PRICES, pa.decimal256(38, 2)),
    "large_list": pa.array([[1, None], [], None], pa.large_list(pa.int32())),
    "fixed_list": pa.array([[1, None], [1, 2], None], pa.list_(pa.int32(), 2)),
}
"""Columns that only Spark reads."""


@pytest.fixture
def why(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why frames are no bare scans."""
    found: list[str] = []

    class Log:
        def debug(self, event: str, *, why: str) -> None:
            assert event == "not_a_bare_scan"
            found.append(why)

    monkeypatch.setattr(parquet_scan, "_log", Log())
    return found


@contextmanager
def settings(spark: Any, **values: str) -> Iterator[None]:
    """Settings of the session below `spark.sql`, with `__` for `.`."""
    names = {f"spark.sql.{name.replace('__', '.')}": value for name, value in values.items()}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def scanned(frame: Any, folder: Path) -> ParquetScan | None:
    return bare_scan(frame, LocalStorage(str(folder / "table")))


def check_same(frame: Any, folder: Path) -> None:
    """A bare scan gives the rows that Spark gives, in the same types. NaN is no number that equals itself."""
    scan = scanned(frame, folder)
    assert scan is not None
    found, expected = scan.fetched(1 << 30), to_arrow(frame).cast(from_spark(frame.schema))
    assert found is not None
    assert found.schema.equals(expected.schema)
    assert str(found.to_pylist()) == str(expected.to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("names", "written"),
    [
        pytest.param(list(SCANNED), {}, id="all"),
        *(
            deep([name], {"store_schema": False, "use_dictionary": False, "data_page_version": "2.0"}, id=name)
            for name in SCANNED
        ),
        *(deep(list(SCANNED), {"compression": codec}, id=codec) for codec in ("none", "gzip", "zstd")),
    ],
)
def test_the_same_rows_by_both_ways(spark: Any, names: list[str], written: dict[str, Any], tmp_path: Path) -> None:
    """Of each type of Parquet, as pyarrow and as Spark write them."""
    table = pa.table({"id": pa.array([1, 2, 3]), **{name: SCANNED[name] for name in names}})
    pq.write_table(table, tmp_path / "rows.parquet", **written)
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    conf = {"session__timeZone": "America/New_York", "parquet__outputTimestampType": "TIMESTAMP_MICROS"}
    with settings(spark, **conf):
        check_same(frame, tmp_path)
        frame.write.parquet(str(tmp_path / "by spark"))
        check_same(spark.read.parquet(str(tmp_path / "by spark")), tmp_path)
        check_same(frame.select(*reversed(names)), tmp_path)
        required = pa.schema([pa.field(f.name, f.type, nullable=False) for f in table.schema])
        whole = table.slice(0, 1).cast(required)
        check_same(spark.read.parquet(saved(whole, tmp_path / "required.parquet")), tmp_path)
        check_same(spark.read.parquet(saved(table.slice(0, 0), tmp_path / "empty.parquet")), tmp_path)


def test_row_groups_are_shared_by_size() -> None:
    """Each in one share, in their order; no share is empty."""
    files = [
        ScannedFile(path="a", size=9, modified_ms=0, rows=(1, 1, 1), bytes=(10, 10, 10)),
        ScannedFile(path="b", size=9, modified_ms=0),
        ScannedFile(path="c", size=9, modified_ms=0, rows=(1, 1, 0), bytes=(50, 1, 0)),
    ]
    for number in (1, 2, 3, 50):
        shares = parquet_scan._shares(files, number)
        found = [(file.path, group) for share in shares for file in share for group in file.groups]
        assert found == [("a", 0), ("a", 1), ("a", 2), ("c", 0), ("c", 1), ("c", 2)]
        assert all(shares)
        assert len(shares) <= number
    assert [[file.groups for file in share] for share in parquet_scan._shares(files, 2)] == [
        [(0, 1, 2), (0,)],
        [(1, 2)],
    ]


@pytest.mark.spark
def test_files_that_change(spark: Any, tmp_path: Path, why: list[str]) -> None:
    """Before the write Spark decides; later the write fails, also where the new file has the old size and time."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": list(range(1000))}), path, row_group_size=100)
    frame = spark.read.parquet(str(path))
    scan = scanned(frame, tmp_path)
    assert scan is not None
    entry = path.stat()
    pq.write_table(pa.table({"id": list(range(1000))}), path, row_group_size=200)
    assert scanned(frame, tmp_path) is None
    assert "changed while it was read" in why[-1]
    with pytest.raises(StorageError, match="changed while it was read"):
        scan.fetched(1 << 30)
    path.write_bytes(path.read_bytes().ljust(entry.st_size, b"x")[: entry.st_size])
    os.utime(path, ns=(entry.st_atime_ns, entry.st_mtime_ns))
    with pytest.raises(PhantombaseError):
        scan.fetched(1 << 30)
    path.unlink()
    with pytest.raises(StorageError, match="no file"):
        scan.fetched(1 << 30)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": list(range(1000))}), path)
    entry = LocalStorage(str(tmp_path)).find("rows.parquet")
    assert entry is not None
    file = ScannedFile(path="rows.parquet", size=entry.size, modified_ms=entry.modified_ms, rows=(1000,), groups=(0,))
    schema = pa.schema([("id", pa.int64())])
    scan = ParquetScan(storage=LocalStorage(str(tmp_path)), schema=schema, stored=schema, shares=((file,),))
    batches = scan.batches(0)
    assert next(batches).num_rows == 1000
    os.utime(path, (1, 1))
    with pytest.raises(StorageError, match="changed while it was read"):
        next(batches)


@pytest.mark.parametrize("length", [10, 60_000], ids=["plain", "as a dictionary"])
def test_a_page_with_other_bytes_than_its_checksum(length: int, tmp_path: Path) -> None:
    """Spark would have found it out by the checksums that Hadoop keeps beside a local file."""
    text, path = "x" * length, tmp_path / "rows.parquet"
    table = pa.table({"id": [text] * 1000})
    pq.write_table(table, path, compression="none", write_page_checksum=True, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(text.encode(), text.replace("x", "y").encode(), 1))
    entry = LocalStorage(str(tmp_path)).find("rows.parquet")
    assert entry is not None
    file = ScannedFile(path="rows.parquet", size=entry.size, modified_ms=entry.modified_ms, rows=(1000,), groups=(0,))
    scan = ParquetScan(storage=LocalStorage(str(tmp_path)), schema=table.schema, stored=table.schema, shares=((file,),))
    with pytest.raises(MalformedError, match="CRC checksum") as raised:
        scan.fetched(1 << 30)
    assert raised.value.path == str(path)
    assert "frame.cache()" in raised.value.advice  # no part of the table: `timeline validate` would not find it


def saved(table: pa.Table, path: Path, **written: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **written)
    return str(path)


IDS, AT = pa.array([1, 2, 3]), pa.array([NOON, FIRST, None], pa.timestamp("us", "UTC"))
FEW = pa.table({"id": IDS, "name": SCANNED["text"], "bytes": SCANNED["bytes"], "at": AT})


def few(spark: Any, folder: Path) -> Any:
    return spark.read.parquet(saved(FEW, folder / "few.parquet"))


def marked(**marks: str) -> Callable[[Any, Path], Any]:
    """A frame of a file with these pairs in its footer."""

    def made(spark: Any, folder: Path) -> Any:
        pairs = {f"org.apache.spark.{name}": value for name, value in marks.items()}
        return spark.read.parquet(saved(FEW.replace_schema_metadata(pairs), folder / "marked.parquet"))

    return made


def stored(column: pa.Array, **written: Any) -> Callable[[Any, Path], Any]:
    """A frame of a file with this column."""
    return lambda spark, folder: spark.read.parquet(
        saved(pa.table({"id": IDS, "c": column}), folder / "stored.parquet", **written)
    )


def read_with(options: dict[str, str], schema: str | None = None) -> Callable[[Any, Path], Any]:
    def made(spark: Any, folder: Path) -> Any:
        reader = spark.read.options(**options)
        return (reader if schema is None else reader.schema(schema)).parquet(saved(FEW, folder / "few.parquet"))

    return made


def two_schemas(spark: Any, folder: Path) -> Any:
    saved(FEW, folder / "two/a.parquet")
    saved(FEW.select(["name", "id", "bytes", "at"]), folder / "two/b.parquet")
    return spark.read.parquet(str(folder / "two"))


def of_another_writer(spark: Any, folder: Path) -> Any:
    path = Path(saved(FEW, folder / "other.parquet"))
    path.write_bytes(path.read_bytes().replace(b"parquet-cpp-arrow", b"parquet-cpp-other"))
    return spark.read.parquet(str(path))


def by_spark(change: Callable[[Any], Any]) -> Callable[[Any, Path], Any]:
    def made(spark: Any, folder: Path) -> Any:
        change(few(spark, folder)).write.parquet(str(folder / "by spark"))
        return spark.read.parquet(str(folder / "by spark"))

    return made


def no_rows(spark: Any, folder: Path) -> Any:
    path = Path(saved(FEW, folder / "empty.parquet"))
    pq.ParquetWriter(path, FEW.schema).close()
    return spark.read.parquet(str(path))


def partitioned(spark: Any, folder: Path) -> Any:
    saved(FEW, folder / "parts/day=1/a.parquet")
    return spark.read.parquet(str(folder / "parts"))


def of_a_catalog(spark: Any, folder: Path) -> Any:
    few(spark, folder).createOrReplaceTempView("few")
    spark.sql("DROP TABLE IF EXISTS scanned")
    return spark.catalog.createTable("scanned", path=str(folder / "few.parquet"), source="parquet")


def cached_later(spark: Any, folder: Path) -> Any:
    frame = few(spark, folder)
    frame._jdf.queryExecution().optimizedPlan()
    frame.select("*").persist()
    return frame


def encrypted(spark: Any, folder: Path) -> Any:
    from pyarrow.parquet import encryption

    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
            return key_bytes.hex()

    factory = encryption.CryptoFactory(lambda config: Keys())
    config = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["name"]}, plaintext_footer=True)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    path = saved(FEW, folder / "encrypted.parquet", encryption_properties=properties)
    return spark.read.parquet(path)


Frames = dict[str, tuple[Callable[[Any, Path], Any], str]]
FRAMES: Frames = {
    "filter": (lambda s, f: few(s, f).where("id > 1"), "the plan is Filter"),
    "computed": (lambda s, f: few(s, f).selectExpr("id + 1 AS id", "name"), "columns are computed"),
    "cached": (lambda s, f: few(s, f).persist(), "the plan is InMemoryRelation"),
    "cached later": (cached_later, "the plan is InMemoryTableScan"),
    "an option": (read_with({"pathGlobFilter": "*"}), "options of the reader: pathglobfilter"),
    "96 bits": (stored(AT, use_deprecated_int96_timestamps=True), "c: INT96"),
    "old calendar": (marked(version="2.4.8"), "the old calendar"),
    "two schemas": (two_schemas, "other columns|the column name, where"),
}
"""Frames that go the usual way, and why: those of a usual run."""
MORE: Frames = {
    "renamed": (lambda s, f: few(s, f).selectExpr("id AS other"), "columns are computed"),
    "limit": (lambda s, f: few(s, f).limit(2), "the plan is GlobalLimit"),
    "sample": (lambda s, f: few(s, f).sample(0.5), "the plan is Sample"),
    "sorted": (lambda s, f: few(s, f).sort("id"), "the plan is Sort"),
    "union": (lambda s, f: few(s, f).union(few(s, f)), "the plan is Union"),
    "distinct": (lambda s, f: few(s, f).distinct(), "the plan is Aggregate"),
    "repartitioned": (lambda s, f: few(s, f).repartition(2), "the plan is Repartition"),
    "checkpoint": (lambda s, f: few(s, f).localCheckpoint(), "the plan is LogicalRDD"),
    "name of the file": (lambda s, f: few(s, f).selectExpr("*", "input_file_name()"), "columns are computed"),
    "metadata": (lambda s, f: few(s, f).select("id", "_metadata"), "the plan is"),
    "part of metadata": (lambda s, f: few(s, f).select("id", "_metadata.file_name"), "columns are computed"),
    "local rows": (lambda s, f: s.createDataFrame([(1,)], "id long"), "the plan is"),
    "text files": (lambda s, f: s.read.text(few(s, f).inputFiles()[0]), "no parquet.ParquetFileFormat"),
    "partitions": (partitioned, "partition columns"),
    "catalog": (of_a_catalog, "a table of a catalog"),
    "calendar of the reader": (read_with({"datetimeRebaseMode": "LEGACY"}), "options of the reader"),
    "fewer columns": (read_with({}, "id long"), "other columns than the plan has"),
    "another order": (read_with({}, "name string, id long, bytes binary, at timestamp"), "the column id, where"),
    "another case": (read_with({}, "ID long, name string, bytes binary, at timestamp"), "the column id, where"),
    "another type": (read_with({}, "id int, name string, bytes binary, at timestamp"), "id: INT64 None as int64"),
    "another text": (read_with({}, "id long, name string, bytes string, at timestamp"), "bytes: BYTE_ARRAY"),
    "legacy dates": (marked(version="3.5.0", legacyDateTime=""), "the old calendar"),
    "legacy marks": (marked(legacyDateTime=""), "the old calendar"),
    "lists of Arrow": (stored(SCANNED["list"], use_compliant_nested_type=False), "the column c.list.element?|item"),
    "brotli": (stored(IDS, compression="brotli"), "compressed by"),
    "another writer": (of_another_writer, "written by parquet-cpp-other"),
    "properties": (by_spark(lambda frame: frame.withMetadata("id", {"a": 1})), "id has properties"),
    "names": (lambda s, f: s.read.parquet(saved(FEW.rename_columns(["a b", "c", "d", "e"]), f / "n.parquet")), "names"),
    "no rows": (no_rows, "no rows"),
    "encrypted": (encrypted, "encrypted"),
    **{name: (stored(column), "c: |c.list.element: ") for name, column in USUAL.items()},
}


@pytest.mark.spark
@pytest.mark.parametrize(
    "frames", [pytest.param(FRAMES, id="some"), *(deep({name: case}, id=name) for name, case in MORE.items())]
)
def test_other_frames_go_the_usual_way(spark: Any, frames: Frames, tmp_path: Path, why: list[str]) -> None:
    """Each for its own reason."""
    try:
        for number, (name, (made, reason)) in enumerate(frames.items()):
            why.clear()
            assert scanned(made(spark, tmp_path / str(number)), tmp_path) is None, name
            assert re.search(reason, why[0]), (name, why)
    finally:
        spark.catalog.clearCache()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("parquet__datetimeRebaseModeInRead", "EXCEPTION", "the old calendar"),
        deep("files__ignoreCorruptFiles", "true", "ignoreCorruptFiles"),
        deep("files__ignoreMissingFiles", "true", "ignoreMissingFiles"),
        deep("parquet__fieldId__read__enabled", "true", "fieldId"),
        deep("parquet__binaryAsString", "true", "bytes: BYTE_ARRAY None as binary and string"),
        deep("sources__useV1SourceList", "", "the plan is"),
    ],
)
def test_settings_with_which_the_usual_way_gives_other_rows(
    spark: Any, name: str, value: str, reason: str, tmp_path: Path, why: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And places that tasks may not reach, and files that are too many to ask for."""
    with settings(spark, **{name: value}):
        assert scanned(few(spark, tmp_path), tmp_path) is None
    assert re.search(reason, why[0])
    assert scanned(few(spark, tmp_path), tmp_path) is not None
    for context in (patch_master, patch_files_max):
        with monkeypatch.context() as patch:
            context(patch, spark)
            assert scanned(few(spark, tmp_path), tmp_path) is None
    assert why[1:] == ["files of this machine, and tasks that may run elsewhere", "more than 0 files"]


def patch_master(patch: pytest.MonkeyPatch, spark: Any) -> None:
    patch.setattr(spark.sparkContext, "master", "local-cluster[2,1,1024]")


def patch_files_max(patch: pytest.MonkeyPatch, spark: Any) -> None:
    patch.setattr(parquet_scan, "_FILES_MAX", 0)


class Listed:
    """A listing of Spark with these files, and their statuses as it gives them."""

    def __init__(self, files: dict[str, Entry]) -> None:
        self._files = list(files.items())

    def listFiles(self, *filters: object) -> Any:
        return SimpleNamespace(size=lambda: 1, apply=lambda at: SimpleNamespace(files=lambda: self))

    def size(self) -> int:
        return len(self._files)

    def apply(self, at: int) -> Any:
        path, entry = self._files[at]
        return SimpleNamespace(
            getPath=lambda: SimpleNamespace(toString=lambda: path),
            getLen=lambda: entry.size,
            getModificationTime=lambda: entry.modified_ms + 123,
        )


def test_files_in_the_bucket_of_the_table(s3: S3Server) -> None:
    """Tasks on any machine enter it with the options of the table; another bucket may be closed to them."""
    bucket, other, sink = s3.new_bucket(), s3.new_bucket(), pa.BufferOutputStream()
    table = open_storage(f"s3://{bucket}/tables/t")
    pq.write_table(FEW, sink)
    rows = open_storage(f"s3://{bucket}/rows")
    assert rows.put_if_absent("é a%20.parquet", sink.getvalue().to_pybytes())
    entry = rows.find("é a%20.parquet")
    assert entry is not None
    session: Any = SimpleNamespace(
        _jvm=SimpleNamespace(PythonUtils=SimpleNamespace(toSeq=list)), sparkContext=SimpleNamespace(master="yarn")
    )

    def found(*paths: str) -> tuple[Storage, list[ScannedFile]]:
        return parquet_scan._files(session, Listed(dict.fromkeys(paths, entry)), table)

    storage, files = found(f"s3a://{bucket}/rows/é a%20.parquet")
    file, arrow = parquet_scan._with_footer(pickle.loads(pickle.dumps(storage)), files[0], FEW.schema, True)
    shares = parquet_scan._shares([file], 1)
    scan = ParquetScan(storage=storage, schema=FEW.schema, stored=arrow, shares=shares)
    assert pa.Table.from_batches(scan.batches(0)).equals(FEW)
    with pytest.raises(StorageError, match="changed"):
        parquet_scan._check_unchanged(storage, replace(file, modified_ms=file.modified_ms + 2000))
    for paths, why in (
        ([f"s3a://{other}/a"], "files that tasks may not reach"),
        (["hdfs://host:1/a"], "files that tasks may not reach"),
        ([f"s3a://{bucket}/a", f"s3a://{bucket}2/a"], "files in several places"),
        (["file:/a"], "files of this machine"),
        ([], "no files"),
    ):
        with pytest.raises(parquet_scan._NotBareError, match=why):
            found(*paths)
