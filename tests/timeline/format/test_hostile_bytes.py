"""Few bytes that stand for much, and what decoders raise on nonsense: each found by tests/world/fuzz."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.avro_container import encode_long, optional, read_record, root_record
from phantombase.timeline.codec.avro_schema import META_COLUMNS, parse_avro, smallest_bytes
from phantombase.timeline.errors import MalformedError, PhantombaseError, StorageError, UnsupportedError
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, decode_plan, encode_plan
from phantombase.timeline.format.layout import LAYOUT_1
from phantombase.timeline.format.log_decode import decode_rows
from phantombase.timeline.format.log_deletes import decode_deletes
from phantombase.timeline.format.record_key import KeySource
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.view.grouping import file_groups
from phantombase.timeline.view.view import ViewFacts
from tests.support.builders import (
    AVRO,
    DELETE,
    INSTANT_TIME,
    PARQUET,
    SCHEMA,
    avro_content,
    avro_schema,
    block,
    blocks_of,
    delete_content,
    timeline_of,
)
from tests.support.selection import for_each
from tests.world.fuzz.avro import Container


def test_an_error_is_one_short_line() -> None:
    """Whatever was found, a damaged file of many lines too."""
    text = str(MalformedError("broken", path="a\nb", found="x\n" * 10_000, expected="y" * 10_000))
    assert "\n" not in text
    assert len(text) < 4000


def record(name: str, *kinds: Any) -> dict[str, Any]:
    """An Avro record of fields f0, f1, ..."""
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": k} for i, k in enumerate(kinds)]}


def nested(depth: int) -> Any:
    """An int in so many arrays."""
    kind: Any = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


LAUGHS = [record("n0", "int"), *(record(f"n{i}", *[f"n{i - 1}"] * 3) for i in range(1, 40))]
HOSTILE: list[tuple[Any, type[PhantombaseError]]] = [
    (record("top", *LAUGHS), UnsupportedError),
    (record("top", nested(100)), UnsupportedError),
    (record("top", {"type": "array", "items": "null"}), UnsupportedError),
    (record("top", {"type": "array", "items": record("nothing")}), UnsupportedError),
    (record("top", {"type": "fixed", "name": "f", "size": 1 << 31}), UnsupportedError),
    (record("top", {"type": "fixed", "name": "f", "size": -1}), UnsupportedError),
    (record("top", {"type": "fixed", "name": "f", "size": "4"}), UnsupportedError),
    (record("top", {"type": "long", "logicalType": ["x"]}), MalformedError),
    (record("top", {"type": "bytes", "logicalType": "decimal", "precision": "x"}), MalformedError),
    (record("top", {"type": "bytes", "logicalType": "decimal", "precision": 0}), MalformedError),
    ({"type": "record", "name": "top", "fields": 5}, MalformedError),
]


@for_each(HOSTILE)
def test_schemas_that_stand_for_much(schema: Any, kind: type[PhantombaseError]) -> None:
    """Refused before anything is built from them."""
    with pytest.raises(kind):
        arrow_schema(json.dumps(schema))


def test_a_schema_nested_too_deeply_for_the_json_parser() -> None:
    """Python's own limit is an error of ours."""
    with pytest.raises(MalformedError, match="Avro schema"):
        parse_avro("[" * 100_000)


def test_schemas_within_the_limits() -> None:
    """What tables have: nesting, fixed types, arrays of records."""
    parse_avro(json.dumps(record("top", nested(50), {"type": "fixed", "name": "f", "size": 16})))
    parse_avro(json.dumps(record("top", *["int"] * 5000)))


@for_each(
    [
        ("null", 0),
        ("string", 1),
        ("double", 8),
        (["null", "double"], 1),
        (["double", "float"], 5),
        (record("r", "int", "float", "null"), 5),
        ({"type": "fixed", "name": "f", "size": 9}, 9),
        (nested(1), 1),
    ]
)
def test_smallest_bytes(kind: Any, size: int) -> None:
    """The shortest encoding, as fastavro writes it for the smallest value."""
    assert smallest_bytes(kind) == size


def rows_of(schema: str, content: bytes) -> pa.Table:
    """The rows of an Avro block of this content."""
    data = block(AVRO, {INSTANT_TIME: "1", SCHEMA: schema}, content)
    (only,) = blocks_of(data)
    return pa.concat_tables(decode_rows(only, pa.BufferReader(data), arrow_schema(schema)))


@pytest.mark.parametrize("count", [2, 1 << 20, (1 << 31) - 1])
def test_more_records_than_fit(count: int) -> None:
    """A decoder would make room for them all first: gigabytes for a few bytes."""
    schema = avro_schema(("a", "long"), ("b", ["null", "string"]))
    content = avro_content(schema, [{"a": 1, "b": None}])
    with pytest.raises(MalformedError, match="do not add up"):
        rows_of(schema, content[:4] + count.to_bytes(4, "big") + content[8:])


def test_length_prefixes_below_zero() -> None:
    """Their sum is right, so only their sign tells."""
    schema = avro_schema(("a", "long"))
    content = bytearray(avro_content(schema, [{"a": 1}, {"a": 1}]))
    content[8:12], content[13:17] = (-1).to_bytes(4, "big", signed=True), (3).to_bytes(4, "big")
    with pytest.raises(MalformedError, match="do not add up"):
        rows_of(schema, bytes(content))


def test_what_pyarrow_calls_an_os_error() -> None:
    """A damaged page of a Parquet block is no failure of the disk."""
    stream = io.BytesIO()
    pa.parquet.write_table(pa.table({"a": ["x" * 50] * 50}), stream, compression="gzip")
    content = bytearray(stream.getvalue())
    content[30:60] = bytes(30)
    data = block(PARQUET, {INSTANT_TIME: "1", SCHEMA: "{}"}, bytes(content))
    (only,) = blocks_of(data)
    with pytest.raises(MalformedError, match="PARQUET_DATA block"):
        list(decode_rows(only, pa.BufferReader(data), pa.schema([("a", pa.string())])))


def deletes_of(content: bytes) -> None:
    """Decodes a delete block of this content."""
    data = block(DELETE, {INSTANT_TIME: "1", SCHEMA: "{}"}, content)
    (only,) = blocks_of(data)
    decode_deletes(only, pa.BufferReader(data))


@for_each([-1, -12, 13, 1 << 40])
def test_union_indexes_out_of_range(index: int) -> None:
    """Below zero they would count from the end of our own list of types."""
    content = delete_content([("k", None)], partition=None)
    assert content.endswith(b"\x00\x00")
    body = content[8:-2] + encode_long(index) + b"\x00"
    with pytest.raises(MalformedError, match="unknown type of an ordering value"):
        deletes_of(content[:4] + len(body).to_bytes(4, "big") + body)


def test_thousands_of_ordering_values() -> None:
    """Each would become a column."""
    with pytest.raises(UnsupportedError, match="number of ordering values"):
        deletes_of(delete_content([("k", ("ArrayWrapper", [("IntWrapper", 1)] * 5000))]))


COMMIT = root_record("HoodieCommitMetadata", optional("operationType", "string"))


def container(schema: Any, body: bytes, *, codec: bytes = b"null", count: int = 1) -> bytes:
    """A container file of one block."""
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec}
    return Container(metadata, bytes(16), count, body).dump()


def test_compressed_containers_are_refused() -> None:
    """Half a megabyte would become half a gigabyte; Hudi writes none."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(1 << 20)) + packer.flush()
    with pytest.raises(UnsupportedError, match=r"compressed.*deflate"):
        read_record(container(COMMIT, bomb, codec=b"deflate"), "x", COMMIT)


def test_containers_whose_arrays_hold_nothing() -> None:
    """Any number of items fits into no bytes: decoding them never ends."""
    fields = [{"name": "n", "type": {"type": "array", "items": "null"}}, *COMMIT["fields"]]
    with pytest.raises(UnsupportedError, match="arrays of values without bytes"):
        read_record(container({**COMMIT, "fields": fields}, encode_long(1 << 60) + b"\x00\x00"), "x", COMMIT)


def test_containers_of_endless_records() -> None:
    """Records without fields need no bytes either; two are enough to know that it is not one."""
    with pytest.raises(MalformedError, match="2 records or more"):
        read_record(container({**COMMIT, "fields": []}, b"", count=1 << 60), "x", COMMIT)


def test_sound_containers_still_read() -> None:
    """The checks let through what Hudi's writer makes."""
    out = io.BytesIO()
    fastavro.writer(out, COMMIT, [{"operationType": "UPSERT"}])
    assert read_record(out.getvalue(), "x", COMMIT)[1] == {"operationType": "UPSERT"}


@for_each(["..", "../other", "a/../../b", "/etc", "a\0b"])
def test_plans_stay_inside_the_table(partition: str) -> None:
    """A compaction lists and writes the partitions of its plan."""
    operation = CompactionOperation(
        base_instant_time="1", delta_file_paths=(), data_file_path=None, file_id="f", partition_path=partition
    )
    with pytest.raises(MalformedError, match="outside the table"):
        decode_plan(encode_plan(CompactionPlan(operations=(operation,))), "x")


@for_each(["..", "../..", "/tmp", "a/../../../b"])
def test_timelines_stay_inside_the_table(folder: str) -> None:
    """Commits are written into that folder."""
    config = TableConfig(properties={"hoodie.table.version": "9", "hoodie.timeline.path": folder})
    with pytest.raises(MalformedError, match="inside the table"):
        _ = config.timeline_folder


def test_paths_that_no_file_system_takes(tmp_path: Path) -> None:
    """A NUL in a name is no ValueError of Python's."""
    with pytest.raises(StorageError, match="impossible path"):
        LocalStorage(str(tmp_path)).list("a\0b")


def test_a_planned_partition_that_is_not_listed() -> None:
    """Without its metadata file a partition is not seen, and a read would just be shorter."""
    facts = ViewFacts(pending_plans={("p", "f"): "10"}, replaced={}, compacted={})
    timeline = timeline_of(LAYOUT_1, "10.compaction.requested")
    (group,) = file_groups("p", (), timeline, facts)
    assert [flaw.path for flaw in group.flaws] == ["p/f"]
    assert file_groups("q", (), timeline, facts) == ()


def test_meta_columns_without_record_key_fields() -> None:
    """Such a table has its key in a meta column."""
    assert KeySource.of(True, ()).fields == (META_COLUMNS[2],)
