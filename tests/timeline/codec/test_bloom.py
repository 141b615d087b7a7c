"""Bloom filters against real base files, real Hudi's own classes (recorded), and a scalar murmur."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec import parquet_write
from phantombase.timeline.codec.bloom import ALWAYS_TRUE, SATURATED_KEYS, BloomBuilder, BloomFilter
from phantombase.timeline.codec.output_options import Bloom
from phantombase.timeline.errors import MalformedError, UnsupportedError
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import ALL, for_each

BITS, HASHES = 2_587_966, 30

# What BloomFilterFactory of Hudi 0.15.0 and of 1.2.0 (the same) makes of `java_keys(n)` in the default shape:
# SHA-256 of the text. Key 60001 begins row 1, key 120001 is the first past the maximum, then turns are taken.
HUDI_DEFAULT = {
    1: "7288b9e0a9a1697870545aba335a8c90239b184dfa89e068009be39268384eaf",
    60_000: "5eefad539f083fe3750ddfa4acb4701b4af47560206765be4f1eb02974cab4a4",
    60_001: "960c2c65411cee63083eefdca83eec577e26bf53421e15961aa4f9acf9d69c79",
    120_000: "f05b430e4444a478de6c46d81a19f2b90856b0e65daaaf5207eed75b0f46a0bc",
    120_001: "71e56211916023a132f940683a25576724183fa9d73b12013e255d6970f47e51",
    120_002: "fbf27b53a678120487bc2ec7f616b2e53a40ca10253a10ffe589935d51beb607",
    130_001: "d75107855c96cb69ec45966c4f6c4ef0e7e28cae6ab488b9c0d6d2b4f152dc6e",
}
# 7 keys a row, error rate 0.01, at most 20 keys.
SMALL = {"entries": 7, "error_rate": 0.01, "max_entries": 20}
HEAD = "/////wAAAAcBAAAARAAAAAcAAAA"
HUDI_SMALL = {
    0: HEAD + "AAAAAAf////8AAAAHAQAAAEQAAAAAAAAAAAA=",
    7: HEAD + "HAAAAAf////8AAAAHAQAAAESsSMxnpnpdRA4=",
    8: HEAD + "BAAAAAv////8AAAAHAQAAAESsSMxnpnpdRA7/////AAAABwEAAABEAIACCgMAEAAA",
    21: HEAD + "HAAAAA/////8AAAAHAQAAAESsSMxnpnpdRA7/////AAAABwEAAABET4rjupOgdbAM/////wAAAAcBAAAARH1SSdGa7swwBw==",
    22: HEAD + "IAAAAA/////8AAAAHAQAAAESuyM1npntdRA7/////AAAABwEAAABET4rjupOgdbAM/////wAAAAcBAAAARH1SSdGa7swwBw==",
    40: HEAD + "aAAAAA/////8AAAAHAQAAAESuz/1/7n9/Zg7/////AAAABwEAAABE/6v//rOm97EM/////wAAAAcBAAAARH3TzdP//+wzBw==",
}
HUDI_SIMPLE = "/////wAAAAcBAAAAROzI7m+n+l1UDg=="


def java_keys(count: int) -> pa.Array:
    return pa.array([f"k{i}é" if i % 3 == 0 else f"k{i}" for i in range(count)], pa.string())


def build(keys: pa.Array | pa.ChunkedArray, **shape: float) -> BloomFilter:
    builder = BloomBuilder(**shape)  # type: ignore[arg-type]
    builder.add(keys)
    return builder.finish()


def murmur(data: bytes, seed: int) -> int:
    """One signed 32-bit hash, byte by byte: the reference for the vectorised one."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (seed ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if left := data[whole:]:
        for place, byte in enumerate(reversed(left)):
            h ^= ((byte - 256 if byte > 127 else byte) << 8 * place) & mask
        h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def positions(key: str, hashes: int, bits: int) -> list[int]:
    h, found = 0, []
    for _ in range(hashes):
        h = murmur(key.encode(), h)
        found.append(abs(h) % bits)
    return found


def set_bits(bloom: BloomFilter) -> list[int]:
    """The set bits of a filter of one default row, from its bytes."""
    data = np.frombuffer(base64.b64decode(bloom.text), np.uint8, offset=25 + 13)
    return [int(i) for i in np.flatnonzero(np.unpackbits(data, bitorder="little"))]


@for_each([("a", -1838653602), ("é", -384040333), ("abé", -933858263), ("k0000000000", 1729293889)])
def test_known_hashes(key: str, value: int) -> None:
    assert murmur(key.encode(), 0) == value
    assert abs(value) % BITS in set_bits(build(pa.array([key])))


def test_known_positions() -> None:
    assert positions("k0000000000", 4, BITS) == [532601, 881481, 1962551, 2045992]
    assert set_bits(build(pa.array(["k0000000000"]))) == sorted(positions("k0000000000", HASHES, BITS))


@pytest.mark.parametrize("case", ["v6_plain", "v6_complex_key", "v8_bucket_nonpart", "v9_clustered"])
def test_same_text_as_real_base_files(case: str, tmp_path: Path) -> None:
    zipfile.ZipFile(GOLDEN_FOLDER / f"{case}.zip").extractall(tmp_path)
    table = tmp_path / case.partition("_")[2]
    files = [path for path in table.rglob("*_*.parquet") if ".hoodie" not in path.parts]
    assert len(files) >= 2
    for path in files:
        footer = pq.read_metadata(path).metadata
        type_code = footer[b"hoodie_bloom_filter_type_code"].decode()
        text = footer[b"org.apache.hudi.bloomfilter"].decode()
        keys = pq.read_table(path, columns=["_hoodie_record_key"], partitioning=None).column(0)
        assert build(keys) == BloomFilter(type_code, text)
        bloom = BloomFilter.parse(type_code, text)
        assert bloom.might_contain(keys).all()
        assert not bloom.might_contain(pa.array(["absent", "näher"])).any()


@for_each(HUDI_DEFAULT)
def test_same_as_hudi_in_default_shape(count: int) -> None:
    keys = java_keys(count)
    builder = BloomBuilder()
    for start in range(0, count, 50_021):
        builder.add(keys.slice(start, 50_021))
    bloom = builder.finish()
    assert hashlib.sha256(bloom.text.encode()).hexdigest() == HUDI_DEFAULT[count]
    assert bloom.might_contain(keys).all()


def test_a_base_file_has_the_default_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_write, "BloomBuilder", BloomBuilder)  # tests of a usual run write small ones
    footer = parquet_write.HudiFooter("{}", Bloom.ON, has_keys=True)
    footer.add(pa.chunked_array([java_keys(1)]))
    assert hashlib.sha256(footer.key_values()[parquet_write.BLOOM_FILTER].encode()).hexdigest() == HUDI_DEFAULT[1]


@for_each(HUDI_SMALL)
def test_same_as_hudi_in_small_shape(count: int) -> None:
    assert build(java_keys(count), **SMALL) == BloomFilter("DYNAMIC_V0", HUDI_SMALL[count])


def test_reads_simple_filter_of_hudi() -> None:
    bloom = BloomFilter.parse("SIMPLE", HUDI_SIMPLE)
    assert bloom.might_contain(java_keys(9)).all()
    others = [f"other{i}" for i in range(200)]
    data = np.frombuffer(base64.b64decode(HUDI_SIMPLE), np.uint8, offset=13)
    bits = np.unpackbits(data, bitorder="little")
    expected = [all(bits[i] for i in positions(key, 7, 68)) for key in others]
    assert bloom.might_contain(pa.array(others)).tolist() == expected


@settings(max_examples=100 if ALL else 25)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=1))
def test_vectorised_equals_scalar_and_never_forgets(keys: list[str]) -> None:
    bloom = build(pa.array(keys), entries=1000)
    assert bloom.might_contain(pa.array(keys)).all()
    data = base64.b64decode(bloom.text)
    bits, hashes = int.from_bytes(data[9:13], "big"), int.from_bytes(data[4:8], "big")
    table = np.zeros(bits, np.uint8)
    for key in keys:
        table[positions(key, hashes, bits)] = 1
    assert data[25 + 13 :] == np.packbits(table, bitorder="little").tobytes()


@settings(max_examples=100 if ALL else 25)
@given(st.lists(st.text("aé😀", min_size=1, max_size=9), max_size=60), st.integers(1, 20))
def test_batches_slices_and_arrow_types_do_not_matter(keys: list[str], step: int) -> None:
    whole = build(pa.array(keys, pa.string()), **SMALL)
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        array = pa.array(["before", *keys, "behind"]).cast(kind).slice(1, len(keys))
        builder = BloomBuilder(entries=7, error_rate=0.01, max_entries=20)
        for start in range(0, len(keys), step):
            builder.add(array.slice(start, step))
        assert builder.finish() == whole
        chunked = pa.chunked_array([array.slice(i, step) for i in range(0, len(keys), step)], kind)
        assert build(chunked, **SMALL) == whole
        assert whole.might_contain(chunked).all()


def test_chunks_of_long_keys() -> None:
    keys = [f"{i:0700d}" for i in range(900)]
    bloom = build(pa.array(keys), entries=1000)
    assert bloom.might_contain(pa.array(keys)).all()
    assert bloom.might_contain(pa.array([f"x{i}" for i in range(1000)])).sum() == 0


def test_always_true() -> None:
    assert len(base64.b64decode(ALWAYS_TRUE.text)) == 14
    assert BloomFilter.parse(ALWAYS_TRUE.type_code, ALWAYS_TRUE.text) == ALWAYS_TRUE
    assert ALWAYS_TRUE.might_contain(pa.array(["a", "é", "k0000000000"])).all()


def test_saturated_filter_is_given_up() -> None:
    keys = java_keys(40)
    assert build(keys, **SMALL, saturated_keys=40).type_code == "DYNAMIC_V0"
    assert build(keys, **SMALL, saturated_keys=39) == ALWAYS_TRUE


def test_at_the_threshold_nine_of_ten_absent_keys_pass() -> None:
    bloom = build(pa.array(range(SATURATED_KEYS)).cast(pa.string()))
    absent = pa.array([f"absent{i}" for i in range(20_000)])
    assert bloom.might_contain(absent).mean() == pytest.approx(0.895, abs=0.01)


@pytest.mark.parametrize("bad", [None, ""])
def test_null_and_empty_keys_are_refused(bad: str | None) -> None:
    with pytest.raises(MalformedError):
        build(pa.array(["a", bad, "bcd"]))
    with pytest.raises(MalformedError):
        ALWAYS_TRUE.might_contain(pa.chunked_array([["a"], [bad]], pa.string()))


def damaged(at: int, *values: int) -> bytes:
    data = bytearray(base64.b64decode(HUDI_SMALL[8]))
    data[at : at + len(values)] = values
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        damaged(0)[:24],
        damaged(0)[:-1],
        damaged(0) + b"\0",
        damaged(4, 0, 0, 0, 0),
        damaged(9, 255, 255, 255, 255),
        damaged(21, 0, 0, 0, 0),
        damaged(21, 255, 255, 255, 255),
        damaged(29, 0, 0, 0, 8),
    ],
    ids=["empty", "head", "short", "long", "hashes", "bits", "no-rows", "negative-rows", "row-shape"],
)
def test_damaged(data: bytes) -> None:
    with pytest.raises(MalformedError):
        BloomFilter.parse("DYNAMIC_V0", base64.b64encode(data).decode())


def test_not_base64() -> None:
    with pytest.raises(MalformedError):
        BloomFilter.parse("SIMPLE", "no base64!")
    with pytest.raises(MalformedError):
        BloomFilter.parse("SIMPLE", "é")


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="SIMPLE_V9"):
        BloomFilter.parse("SIMPLE_V9", ALWAYS_TRUE.text)
    with pytest.raises(UnsupportedError, match="hash type 0"):
        BloomFilter.parse("DYNAMIC_V0", base64.b64encode(damaged(8, 0)).decode())
