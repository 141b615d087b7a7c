"""Trees of Thrift's compact protocol."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.parquet import thrift
from phantombase.timeline.parquet.thrift import Field, Sequence, field_of, read_struct, value_of, write_struct

LONGS = st.integers(-(2**63), 2**63 - 1)
LEAVES = st.one_of(
    st.tuples(st.sampled_from([thrift.I16, thrift.I32, thrift.I64]), LONGS),
    st.tuples(st.just(thrift.BINARY), st.binary(max_size=300)),
    st.tuples(st.just(thrift.BYTE), st.binary(min_size=1, max_size=1)),
    st.tuples(st.just(thrift.DOUBLE), st.binary(min_size=8, max_size=8)),
    st.tuples(st.sampled_from([thrift.TRUE, thrift.FALSE]), st.none()),
)


def _with_containers(values: st.SearchStrategy[tuple[int, object]]) -> st.SearchStrategy[tuple[int, object]]:
    structs = _structs(values).map(lambda fields: (thrift.STRUCT, fields))
    of_one_type = st.one_of(
        st.lists(LONGS, max_size=40).map(lambda items: Sequence(thrift.I64, list(items))),
        st.lists(st.binary(min_size=1, max_size=1), max_size=20).map(lambda items: Sequence(thrift.TRUE, list(items))),
        st.lists(_structs(values), max_size=3).map(lambda items: Sequence(thrift.STRUCT, list(items))),
    )
    return structs | st.tuples(st.sampled_from([thrift.LIST, thrift.SET]), of_one_type)


def _structs(values: st.SearchStrategy[tuple[int, object]]) -> st.SearchStrategy[list[Field]]:
    return st.dictionaries(st.integers(1, 32_767), values, max_size=6).map(
        lambda found: [Field(number, *found[number]) for number in sorted(found)]
    )


@given(_structs(st.recursive(LEAVES, _with_containers, max_leaves=12)), st.binary(max_size=5))
def test_what_is_written_is_read(fields: list[Field], before: bytes) -> None:
    """Also from within other bytes; each shorter text ends too early."""
    text = write_struct(fields)
    assert read_struct(before + text + b"more", len(before)) == (fields, len(before + text))
    with pytest.raises(IndexError):
        read_struct(text[:-1])


def test_a_parquet_footer_is_written_as_it_was() -> None:
    file = io.BytesIO()
    rows = pa.table({"a": list(range(100)), "b": [[{"c": None}]] * 100, "d": [b"x"] * 100})
    pq.write_table(rows, file, row_group_size=7)
    data = file.getvalue()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    found, end = read_struct(footer)
    assert (write_struct(found), end) == (footer, len(footer))
    assert value_of(found, 3) == 100


def test_a_field_that_is_missing() -> None:
    assert field_of([], 3) is None
    with pytest.raises(KeyError, match="no field 3"):
        value_of([], 3)


def test_a_wire_type_that_no_footer_has() -> None:
    with pytest.raises(ValueError, match="wire type 11"):
        read_struct(bytes([0x1B, 0]))
