"""RECORD_POSITIONS against headers of real log blocks, Java's bitmap (recorded), and by round trip."""

from __future__ import annotations

import base64
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyroaring
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.log.block import parse_positions, print_positions, scan_blocks
from phantombase.timeline.log.decode import count_entries
from tests.support.golden_tables import unzip_golden
from tests.support.places import GOLDEN_FOLDER

RECORD_POSITIONS = 5

# Roaring64NavigableMap (RoaringBitmap 0.9.45): runOptimize, serializePortable.
JAVA = {
    "AAAAAAAAAAA=": [],
    "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAMAEAAAAAAAAQACAAUA": [0, 1, 2, 5],
    "AgAAAAAAAAAAAAAAOjAAAAIAAAAAAAAAAQAAABgAAAAaAAAABwBwEQEAAAA6MAAAAQAAAAAAAAAQAAAAAwA=": [
        7,
        70_000,
        2**32 + 3,
    ],
    "AQAAAAAAAAAAAQAAOjAAAAEAAAAAAAAAEAAAAAAA": [2**40],
    "AgAAAAAAAAAAAAAAOjAAAAEAAAAAAAAAEAAAAAMAAAAAgDowAAABAAAAAAAAABAAAAAFAA==": [3, 2**63 + 5],
    "AQAAAAAAAAAAAAAAOzABAAMAAJv/AQCfhgEAZACb/wEAAACfhg==": list(range(100, 100_000)),
}


def headers(log: bytes) -> Iterator[dict[int, str]]:
    """The header map of every block of a log file."""
    at = 0
    while at < len(log):
        assert log[at : at + 6] == b"#HUDI#"
        size, _version, _kind, count = struct.unpack_from(">qiii", log, at + 6)
        place, header = at + 26, {}
        for _ in range(count):
            key, length = struct.unpack_from(">ii", log, place)
            header[key] = log[place + 8 : place + 8 + length].decode()
            place += 8 + length
        yield header
        at += 14 + size


def real_headers(case: str) -> list[str]:
    with zipfile.ZipFile(GOLDEN_FOLDER / f"{case}.zip") as archive:
        logs = [archive.read(n) for n in archive.namelist() if ".log." in n and "/.hoodie/" not in n]
    found = [header.get(RECORD_POSITIONS) for log in logs for header in headers(log)]
    return [text for text in found if text is not None]


@pytest.mark.parametrize("case", ["v8_plain", "v8_commit_time", "v9_log_compacted", "v9_parquet_log"])
def test_real_headers(case: str) -> None:
    texts = real_headers(case)
    assert texts
    for text in texts:
        positions = parse_positions(text)
        assert 0 < len(positions) <= 60
        assert positions.max() < 60
        assert print_positions(positions) == text


@pytest.mark.parametrize("text", JAVA)
def test_same_as_java(text: str) -> None:
    assert list(parse_positions(text)) == JAVA[text]
    assert print_positions(pyroaring.BitMap64(JAVA[text])) == text


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 200_000)),
    st.tuples(st.integers(0, 2**33), st.integers(0, 100_000)),
)
def test_round_trip(single: set[int], run: tuple[int, int]) -> None:
    positions = pyroaring.BitMap64(single)
    positions.add_range(run[0], run[0] + run[1])
    before = positions.copy()
    assert parse_positions(print_positions(positions)) == positions == before


RAW = base64.b64decode("AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAMAEAAAAAAAAQACAAUA")


@pytest.mark.parametrize(
    "data",
    [b"", RAW[:3], RAW[:-1], RAW + b"x", b"\xff" * 20, RAW[:12] + b"\0" * 24, RAW[:-2] + b"\0\0"],
    ids=["empty", "count", "short", "long", "garbage", "cookie", "order"],
)
def test_damaged(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_positions(base64.b64encode(data).decode())


@pytest.mark.parametrize("text", ["no base64!", "é", "AQAA="])
def test_not_base64(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_positions(text)


@settings(deadline=None)
@given(st.binary(max_size=80), st.integers(0, len(RAW)))
def test_damage_is_malformed_or_a_bitmap_never_another_error(garbage: bytes, keep: int) -> None:
    text = base64.b64encode(RAW[:keep] + garbage).decode()
    try:
        positions = parse_positions(text)
    except MalformedError:
        return
    assert parse_positions(print_positions(positions)) == positions


def test_blocks_of_real_tables_tell_their_positions(tmp_path: Path) -> None:
    """As many positions as entries, in every block that has the header."""
    path = unzip_golden("v9_event_time", tmp_path)
    seen = 0
    for log in path.glob("*/.*.log.*"):
        source = pa.memory_map(str(log))
        for block in scan_blocks(source, log.name):
            positions = block.record_positions
            if positions is not None:
                seen += 1
                assert len(positions) == count_entries(block, source)
    assert seen
