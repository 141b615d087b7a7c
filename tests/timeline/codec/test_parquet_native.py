"""`phantombase-native` decodes pages of Parquet to the rows that pyarrow reads; all else it leaves to pyarrow."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.codec import avro_decode, parquet_read
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches
from phantombase.timeline.ranges import one_by_one, open_ranges
from tests.support.decoded_rows import native_rows, pyarrow_rows, same
from tests.support.golden_tables import GOLDEN
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep, for_each

pytestmark = [
    pytest.mark.skipif(
        not hasattr(avro_decode.native, "RowGroup"), reason="phantombase-native is not built: deploy/setup.sh does so"
    ),
    pytest.mark.usefixtures("few_rows"),
]


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of few rows are decoded by the module too."""
    monkeypatch.setattr(parquet_read, "_FEW_ROWS", 0)


def whole(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """One table."""
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
    return pa.Table.from_batches(batches, schema)


def number(random: Random, bits: int) -> int:
    """Small ones and large ones."""
    return random.choice((0, 1, -1, random.getrandbits(bits - 1), -random.getrandbits(bits - 1), random.randrange(100)))


TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), lambda random: random.random() < 0.5),
    (pa.int32(), lambda random: number(random, 32)),
    (pa.int64(), lambda random: number(random, 64)),
    (pa.date32(), lambda random: number(random, 18)),
    (pa.float32(), lambda random: random.choice((0.0, -0.0, 1.5, float("nan"), float("inf")))),
    (pa.float64(), lambda random: random.uniform(-1e9, 1e9)),
    (pa.timestamp("ms"), lambda random: number(random, 40)),
    (pa.timestamp("us", "UTC"), lambda random: datetime.fromtimestamp(random.randrange(10**9), UTC)),
    (pa.timestamp("ns"), lambda random: number(random, 60)),
    (pa.string(), lambda random: random.choice(("", "ä", "x" * random.randrange(70), f"key {random.randrange(1000)}"))),
    (pa.binary(), lambda random: random.randbytes(random.choice((0, 1, 15, 16, 17, 32, 33, 200)))),
    *[
        (pa.decimal128(digits, 2), lambda random, digits=digits: Decimal(number(random, 3 * digits)).scaleb(-2))
        for digits in (5, 9, 10, 18, 19, 38)
    ],
]


def drawn(random: Random) -> tuple[pa.Table, bytes]:
    """A file, and its rows."""
    rows, columns, fields = random.choice((1, 7, 8, 100, 1500)), [], []
    for place, (kind, make) in enumerate(random.sample(TYPES, random.randint(1, 5))):
        few = [make(random) for _ in range(random.choice((1, 3, 40, 400)))]
        nulls = random.choice((0, 0, 0.02, 0.5, 1))
        values = [None if random.random() < nulls else random.choice(few) for _ in range(rows)]
        columns.append(pa.array(values, kind))
        fields.append(pa.field(f"c{place}", kind, nullable=nulls > 0 or random.random() < 0.5))
    table, stream = pa.table(columns, pa.schema(fields)), io.BytesIO()
    pq.write_table(
        table,
        stream,
        compression=random.choice(("none", "gzip", "zstd")),
        use_dictionary=random.choice((True, True, False)),
        dictionary_pagesize_limit=random.choice((100, 1 << 20)),
        data_page_size=random.choice((50, 1000, 1 << 20)),
        data_page_version=random.choice(("1.0", "2.0")),
        row_group_size=random.choice((5, 200, 1 << 20)) if rows < 1000 else 700,
        store_schema=random.choice((True, False)),
        store_decimal_as_integer=random.choice((True, False)),
        write_page_index=random.choice((True, False)),
        version="2.6",
    )
    return table, stream.getvalue()


@pytest.mark.parametrize("seed", [0, *map(deep, range(1, 40))])
def test_all_that_it_knows(seed: int) -> None:
    """Types, nulls, encodings, page versions and sizes, codecs, row groups, batches: the rows and schema of pyarrow."""
    random = Random(seed)
    for _ in range(40):
        table, data = drawn(random)
        names = random.sample(table.schema.names, random.randint(1, table.num_columns))
        groups = open_parquet(pa.BufferReader(data)).metadata.num_row_groups
        chosen = random.choice((None, sorted(random.sample(range(groups), random.randint(0, groups)))))
        expected = pyarrow_rows(data, names, chosen)
        try:
            found = native_rows(data, names, random.choice((1, 7, 64, 10_000)), chosen)
        except ValueError as error:
            # Booleans in a page of version 2, which pyarrow writes by run lengths.
            if "encoding" not in str(error) or pa.bool_() not in expected.schema.types:
                raise
            continue
        assert same(whole(found, expected.schema), expected)
        assert chosen is not None or same(expected, table.select(names).cast(expected.schema))


def damaged(random: Random, data: bytes, end: int) -> bytes:
    """Some bytes of the pages changed; the footer is as it was."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(4, end)
        changed[at] = random.choice(
            (0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << random.randrange(8), changed[at] + 1 & 0xFF)
        )
    return bytes(changed)


@pytest.mark.parametrize("samples", [300, *map(deep, range(40_000, 40_005))])
def test_damaged_pages(samples: int) -> None:
    """What the module accepts is what pyarrow reads; it does not panic, and its rows are valid."""
    random, seen = Random(samples), Counter[str]()
    made = [drawn(random) for _ in range(max(30, samples // 200))]
    for _ in range(samples):
        table, data = random.choice(made)
        end = len(data) - 8 - open_parquet(pa.BufferReader(data)).metadata.serialized_size
        changed, names = damaged(random, data, end), table.schema.names
        try:
            found = native_rows(changed, names, 500)
        except ValueError as error:
            seen[str(error)] += 1
            continue
        for batch in found:
            batch.validate()
        seen["accepted"] += 1
        theirs = pyarrow_rows(changed, names)
        assert same(pa.Table.from_batches(found, theirs.schema), theirs)
    assert len(seen) > 5
    assert "a panic" not in seen
    assert seen["accepted"] > samples / 20


@cache
def golden_files() -> list[bytes]:
    """The base files of the golden tables."""

    def found() -> Iterator[bytes]:
        for name in GOLDEN:
            with ZipFile(GOLDEN_FOLDER / f"{name}.zip", metadata_encoding="utf-8") as archive:
                yield from (archive.read(m) for m in archive.namelist() if m.endswith(".parquet"))

    return [data for data in found() if data[:4] == b"PAR1"]


@pytest.mark.parametrize("every", [20, deep(1)])
def test_files_of_golden_tables(every: int) -> None:
    """Those of real Hudi writers: versions, Spark, Flink."""
    seen = Counter[bool]()
    for data in golden_files()[::every]:
        names = open_parquet(pa.BufferReader(data)).schema_arrow.names
        expected, found = pyarrow_rows(data, names), []
        flat = [name for name in names if not pa.types.is_nested(expected.schema.field(name).type)]
        for some in (names, flat):
            try:
                found = native_rows(data, some, 100)
            except ValueError:
                seen[False] += 1
                continue
            seen[True] += 1
            theirs = expected.select(some)
            assert same(whole(found, theirs.schema), theirs)
    assert seen[True] > len(golden_files()) / every / 2


UNKNOWN = [
    pa.array([[1]]),
    pa.array([{"a": 1}]),
    pa.array([1], pa.int8()),
    pa.array([1], pa.uint32()),
    pa.array([1], pa.time64("us")),
    pa.array([b"1234"], pa.binary(4)),
    pa.array(["a"]).dictionary_encode(),
    pa.array(["a"], pa.large_string()),
    pa.array([1.5], pa.float16()),
]


@for_each(UNKNOWN)
def test_what_it_leaves_to_pyarrow(values: pa.Array) -> None:
    """Other types, codecs and encodings; columns that the file does not have, whole or in a record."""
    for options in ({}, {"compression": "snappy"}, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}):
        stream = io.BytesIO()
        pq.write_table(pa.table({"v": pa.array([1]) if options else values}), stream, **options)
        with pytest.raises(ValueError, match=r"pyarrow|known"):
            native_rows(stream.getvalue(), ["v"], 10)
    stream = io.BytesIO()
    pq.write_table(pa.table({"v": [1], "r": [{"a": 1}]}), stream)
    for name in ("a", "r.a"):
        with pytest.raises((ValueError, KeyError)):
            native_rows(stream.getvalue(), [name], 10)


def test_the_rest_by_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is refused after others were given: no row is lost or doubled. A file on an object store is fetched
    as for pyarrow."""
    table, stream = pa.table({"n": range(1000), "t": [f"text {i % 7}" for i in range(1000)]}), io.BytesIO()
    pq.write_table(table, stream, row_group_size=300, data_page_size=200)
    data, reads = stream.getvalue(), avro_decode.native.RowGroup
    for allowed in (0, 1, 3, 7, 100):

        class Refusing:
            def __init__(self, *given: Any) -> None:
                self.group = reads(*given)

            def read(self, rows: int) -> Any:
                nonlocal allowed
                allowed -= 1
                if allowed < 0:
                    raise ValueError("refused")
                return self.group.read(rows)

        monkeypatch.setattr(avro_decode.native, "RowGroup", Refusing)
        ranged = open_ranges(one_by_one(lambda at, count: data[at : at + count]), len(data))
        for source in (pa.BufferReader(data), ranged):
            found = list(parquet_batches(source, open_parquet(source), ["t", "n"], 128))
            assert pa.Table.from_batches(found).equals(table.select(["t", "n"]))


def test_the_rest_of_long_texts_has_the_same_schema() -> None:
    """The module refuses a batch of much text, and pyarrow reads such texts as a dictionary: a required column stays
    so, and the footer's pairs stay."""
    rows = 40_000
    schema = pa.schema([pa.field("t", pa.string(), nullable=False)], {"a": "b"})
    texts = [*map(str, range(rows)), *(f"{i % 50:900}" for i in range(rows))]
    stream = io.BytesIO()
    pq.write_table(pa.table([pa.array(texts)], schema), stream, compression="zstd", row_group_size=rows)
    source = pa.BufferReader(stream.getvalue())
    batches = list(parquet_batches(source, open_parquet(source), ["t"], rows))
    assert all(batch.schema.equals(open_parquet(source).schema_arrow, check_metadata=True) for batch in batches)
    assert pa.Table.from_batches(batches).column("t").to_pylist() == texts
