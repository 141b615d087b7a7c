"""Names of data files: parse and print are inverses; what is skipped, what is refused."""

from __future__ import annotations

import re
import uuid

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError, UsageError
from phantombase.timeline.format import record_key as bucket_module
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, is_of_phantombase, parse_data_file
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.record_key import (
    KeySplit,
    bucket_file_id,
    bucket_of,
    bucket_of_file_id,
    java_hashes,
    looks_like_bucket,
    plain_file_id,
)
from tests.support.selection import for_each

file_ids = st.from_regex(r"[A-Za-z0-9-]{1,36}", fullmatch=True)
digits = st.from_regex(r"[0-9]{1,20}", fullmatch=True)
tokens = st.from_regex(r"(0|[1-9][0-9]{0,3})-[0-9]{1,4}-[0-9]{1,4}", fullmatch=True)
base_names = st.builds(
    BaseFileName,
    file_id=file_ids,
    token=tokens | st.just(""),
    instant=digits,
    extension=st.sampled_from([".parquet", ".orc"]),
)
log_names = st.builds(
    LogFileName,
    file_id=file_ids,
    instant=digits,
    version=st.integers(0, 10**6),
    token=st.none() | tokens,
    suffix=st.sampled_from(["", ".cdc"]),
)


@settings(deadline=None)
@given(base_names)
def test_base_names_print_and_parse(name: BaseFileName) -> None:
    """A printed base file name parses to itself; one that is not Parquet is no data file of ours."""
    assert BaseFileName.parse(str(name)) == name
    assert parse_data_file(str(name)) == (name if name.extension == ".parquet" else None)


@settings(deadline=None)
@given(log_names)
def test_log_names_print_and_parse(name: LogFileName) -> None:
    """A printed log file name parses to itself, by either parser."""
    assert LogFileName.parse(str(name)) == name
    assert parse_data_file(str(name)) == name


@settings(deadline=None)
@given(
    st.from_regex(r"[._a-c0-9٣/-]{0,3}(log|_|\.)[._a-c0-9٣-]{0,6}(\.log\.[0-9]{1,2}|\.parquet|[.]cdc)?", fullmatch=True)
)
def test_what_parses_prints_back(text: str) -> None:
    """Any text either is refused or prints back as it was."""
    for kind in (BaseFileName, LogFileName):
        try:
            name = kind.parse(text)
        except MalformedError:
            continue
        assert str(name) == text


@pytest.mark.parametrize("text", [".f_10.log.01_0-0-0", ".f_10.log.٣"])
def test_versions_are_plain_numbers(text: str) -> None:
    """Leading zeros and digits of other scripts would print back as another file."""
    with pytest.raises(MalformedError):
        LogFileName.parse(text)


def test_names_of_real_files() -> None:
    """The examples of hudi-format.md section 3."""
    base = BaseFileName.parse("7181ef50-099a-41e8-8f8c-d1ce26675b73-0_0-14-37_20261121084011782.parquet")
    assert (base.file_id, base.token, base.instant) == (
        "7181ef50-099a-41e8-8f8c-d1ce26675b73-0",
        "0-14-37",
        "20261121084011782",
    )
    log = LogFileName.parse(".7181ef50-099a-41e8-8f8c-d1ce26675b73-0_20261121084011782.log.3_0-81-192")
    assert (log.instant, log.version, log.token, log.is_cdc) == ("20261121084011782", 3, "0-81-192", False)
    assert LogFileName.parse(".f_10.log.1").token is None
    assert LogFileName.parse(".f_10.log.1_0-0-0.cdc").is_cdc


def test_log_order() -> None:
    """Instant as text, version as a number, token as text, suffix; no token comes first."""
    ordered = [
        ".f_10.log.1",
        ".f_10.log.1_10-0-0",
        ".f_10.log.1_10-0-0.cdc",
        ".f_10.log.1_9-0-0",
        ".f_10.log.2_0-0-0",
        ".f_10.log.10_0-0-0",
        ".f_11.log.1_0-0-0",
    ]
    names = [LogFileName.parse(name) for name in reversed(ordered)]
    assert [str(name) for name in sorted(names, key=lambda n: n.sort_key)] == ordered


@for_each(
    [
        "",
        "f.parquet",
        "f_0.parquet",
        "f_0-0-0_x.parquet",
        "f_0_10",
        "a_b_c_10.parquet",
        "d/f_0_10.parquet",
        ".f_0_10.parquet",
    ]
)
def test_malformed_base_names(text: str) -> None:
    """Refused with the name in the error."""
    with pytest.raises(MalformedError) as failure:
        BaseFileName.parse(text)
    assert failure.value.found == repr(text)


@for_each(
    [
        "",
        "f_10.log.1",
        ".f.log.1",
        ".f_10.log.",
        ".f_10.log.1_0-0",
        ".f_x.log.1",
        ".f_10.log.1_0-0-0-cdc",
        "d/.f_10.log.1",
    ]
)
def test_malformed_log_names(text: str) -> None:
    """Refused with the name in the error."""
    with pytest.raises(MalformedError) as failure:
        LogFileName.parse(text)
    assert failure.value.found == repr(text)


@for_each(
    [
        ".f_10.log.1.crc",
        "f_0-0-0_10.parquet.crc",
        ".hoodie_partition_metadata",
        ".hoodie_partition_metadata.parquet",
        "_SUCCESS",
        ".temp",
    ]
)
def test_what_is_no_data(text: str) -> None:
    """Side files, partition metadata, markers, hidden files."""
    assert parse_data_file(text) is None


# Which files are those of phantombase.


@pytest.mark.parametrize("token", ["3-1-990000000", "0-980000000-123456789", "12-980000000-990000000"])
def test_tokens_of_phantombase(token: str) -> None:
    assert is_of_phantombase(token)


@for_each([None, "", "0-12-34", "980000000-1-2", "0-990000000-1", "0-1-980000000"])
def test_tokens_of_others(token: str | None) -> None:
    assert not is_of_phantombase(token)


# The bucket of a key against Java's rules one key at a time, and against real Hudi.


_KEYS = st.text(st.sampled_from("ab:,_é\U0001f600ﷺ"), max_size=12) | st.sampled_from(
    ["a:__null__,b:x", "a:__empty__,b:", "a:1,b:2", ",,", ":", ",", "a,", "a:,,", "x,a:1,b:2"]
)


def java_hash(text: str) -> int:
    """String.hashCode, unsigned."""
    data = text.encode("utf-16-be")
    value = 0
    for i in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[i : i + 2])) & 0xFFFFFFFF
    return value


def values_0x(key: str, fields: list[str]) -> list[str]:
    """The hashed values as 0.15 takes them out of a key."""
    if ":" not in key:
        return [key]
    parts = key.split(",")
    while parts and not parts[-1]:
        parts.pop()
    pairs = [part.partition(":") for part in parts]
    return [after if colon else name for name, colon, after in pairs if not colon or name in fields]


def values_1x(key: str, fields: list[str]) -> list[str]:
    """The hashed values as 1.2 takes them out of a key."""
    if ":" not in key or "," not in key:
        return [key]
    head, _, rest = key.partition(":")
    pieces = re.split(r",(?=[^,:]*:)", rest)
    pairs = [(head, pieces[0]), *((n, v) for n, _, v in (piece.partition(":") for piece in pieces[1:]))]
    return [value for name, value in pairs if name in fields] or [key]


def bucket(values: list[str], buckets: int) -> int:
    """List.hashCode of the values; marks of null and empty ones hash to 0."""
    value = 1
    for text in values:
        value = (31 * value + (0 if text in ("__null__", "__empty__") else java_hash(text))) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % buckets


@given(st.lists(_KEYS), st.integers(1, 200), st.sampled_from([["a"], ["b"], ["a", "b"]]), st.integers(0, 3))
@example(["a:b,c"], 8, ["id"], 0)
def test_buckets(keys: list[str], buckets: int, fields: list[str], skipped: int) -> None:
    """Both rules, over slices of arrays, keys that hold separators and characters of one to four bytes."""
    array = pa.array(keys, pa.string()).slice(min(skipped, len(keys)))
    keys = keys[skipped:]
    for split, values in ((KeySplit.EACH_COMMA, values_0x), (KeySplit.LABELLED, values_1x)):
        expected = [bucket(values(key, fields) if ":" in key else [key], buckets) for key in keys]
        assert bucket_of(array, fields, buckets, split).tolist() == expected, split


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_hashes(texts: list[str]) -> None:
    """Any text."""
    assert java_hashes(pa.array(texts, pa.string())).tolist() == [java_hash(t) for t in texts]


def test_hashes_over_windows() -> None:
    """More keys than are hashed at a time."""
    texts = [f"k{i}" for i in range(70_000)]
    assert java_hashes(pa.array(texts)).tolist() == [java_hash(t) for t in texts]


def test_long_texts_are_hashed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums take memory: of 65,536 texts of 300 bytes, 300 MiB for good."""
    monkeypatch.setattr(bucket_module, "_WINDOW_BYTES", 10)
    texts = ["", "a" * 4, "b" * 6, "c" * 30, "é", "", "", "d" * 9, "\U0001f600"]
    found, hashed = list[list[str]](), bucket_module._window_hashes

    def noted(window: pa.StringArray) -> npt.NDArray[np.uint32]:
        found.append(window.to_pylist())
        return hashed(window)

    monkeypatch.setattr(bucket_module, "_window_hashes", noted)
    assert java_hashes(pa.array(["x", *texts]).slice(1)).tolist() == [java_hash(t) for t in texts]
    assert found == [["", "a" * 4, "b" * 6], ["c" * 30], ["é", "", ""], ["d" * 9], ["\U0001f600"]]


def test_real_hudi() -> None:
    """File ids that 0.15.0 (version 6) and 1.2.0 (8 and 9) gave these keys."""
    simple = pa.array(["k1", "k2", "k3", "a:b,c"])
    labelled = pa.array([f"id:{key},i64:1000000000000" for key in simple.to_pylist()])
    assert bucket_of(simple, ["id"], 8, KeySplit.of(Layout.of(6))).tolist() == [5, 6, 7, 2]
    assert bucket_of(simple, ["id"], 8, KeySplit.of(Layout.of(9))).tolist() == [5, 6, 7, 7]
    assert bucket_of(labelled, ["id"], 64, KeySplit.of(Layout.of(6))).tolist() == [5, 6, 7, 59]
    assert bucket_of(labelled, ["id"], 64, KeySplit.of(Layout.of(8))).tolist() == [5, 6, 7, 31]


def test_refused() -> None:
    """Numbers of buckets that cannot be, and keys that cannot be taken apart."""
    for buckets in (0, -1, 100_000_000):
        with pytest.raises(UsageError, match="number of buckets"):
            bucket_of(pa.array(["a"]), ["id"], buckets, KeySplit.LABELLED)
    with pytest.raises(UsageError, match="NUL"):
        bucket_of(pa.array(["a:\0,b:c"]), ["a"], 4, KeySplit.LABELLED)


def test_file_ids() -> None:
    """The same for every attempt, another for another bucket, partition and write."""
    name = bucket_file_id("20260101000000000", "p=1", 7)
    assert name == bucket_file_id("20260101000000000", "p=1", 7)
    assert bucket_of_file_id(name) == 7
    assert re.fullmatch(r"00000007(-[0-9a-f]{4}){3}-[0-9a-f]{12}-0", name)
    others = {bucket_file_id(t, p, b)[8:] for t in ("1", "2") for p in ("", "a") for b in (7, 8)}
    assert len(others) == 8
    uuid.UUID(name[:-2])
    for wrong in ("", "0000001", "0000000x-1", "٠٠٠٠٠٠٠١-1"):
        assert bucket_of_file_id(wrong) is None
    assert looks_like_bucket(name)
    assert not looks_like_bucket("12345678-0000-0000-0000-000000000000-0")  # 2 of 100 random ids begin with 8 digits
    assert not looks_like_bucket(plain_file_id())
