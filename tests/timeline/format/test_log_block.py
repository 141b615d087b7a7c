"""Framing of log blocks: byte-exact vectors, torn files cut at every byte, and what is refused."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format import log_block as log_block
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, LogBlock, scan_blocks
from tests.support import builders
from tests.support.builders import (
    AVRO,
    CDC,
    COMMAND,
    COMPACTED_BLOCK_TIMES,
    DELETE,
    HFILE,
    INSTANT_TIME,
    NO_ORDERING,
    PARQUET,
    block,
    blocks_of,
    delete_content,
    rollback_block,
)
from tests.support.selection import for_each

GOOD = block(AVRO, {INSTANT_TIME: "10"}, b"content")
MAGIC = builders.MAGIC


def kinds(data: bytes) -> list[BlockKind]:
    return [b.kind for b in blocks_of(data)]


# --- test vectors of hudi-format.md section 12 ------------------------------------------------------------------


def test_command_block_of_real_hudi() -> None:
    """The builder's rollback block is the 105 bytes Hudi 0.15 wrote, and it is read back."""
    vector = bytes.fromhex(
        "234855444923 000000000000005b 00000001 00000000 00000003"
        + "00000003 00000001" + b"0".hex()
        + "00000000 00000011" + b"20261121085427016".hex()
        + "00000001 00000011" + b"20261121085406063".hex()
        + "0000000000000000 00000000 0000000000000061"
    )  # fmt: skip
    assert len(vector) == 105
    assert rollback_block("20261121085427016", "20261121085406063") == vector
    (found,) = blocks_of(vector)
    assert found.kind is BlockKind.COMMAND
    assert found.instant == "20261121085427016"
    assert found.headers == {
        HeaderKey.COMMAND_BLOCK_TYPE: "0",
        HeaderKey.INSTANT_TIME: "20261121085427016",
        HeaderKey.TARGET_INSTANT_TIME: "20261121085406063",
    }
    assert found.content_bytes == 0


def test_delete_content_of_real_hudi() -> None:
    """The builder's delete list is the one Hudi wrote for one key without an ordering value."""
    vector = bytes.fromhex("00000003 00000016 02 0216" + b"k0000000052".hex() + "0206" + b"d=0".hex() + "0400 00")
    assert delete_content([("k0000000052", NO_ORDERING)]) == vector


def test_size_fields() -> None:
    """A block on disk has 14 + S bytes and ends in S + 6."""
    data = block(AVRO, {INSTANT_TIME: "10"}, b"x" * 12345)
    (size,) = struct.unpack_from(">q", data, 6)
    (total,) = struct.unpack(">q", data[-8:])
    assert (len(data), total) == (14 + size, size + 6)
    assert kinds(data) == [BlockKind.AVRO_DATA]


# --- sound files ------------------------------------------------------------------------------------------------


def test_an_empty_file_has_no_blocks() -> None:
    """A zero-length log file is legal."""
    assert blocks_of(b"") == []


@for_each([COMMAND, DELETE, AVRO, HFILE, PARQUET, CDC])
def test_every_kind_on_disk(kind: int) -> None:
    """Kinds keep their ordinals."""
    (found,) = blocks_of(block(kind, {INSTANT_TIME: "10"}))
    assert found.kind == kind


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([COMMAND, DELETE, AVRO, PARQUET]),
            st.dictionaries(st.sampled_from(range(9)), st.text(max_size=20), max_size=9),
            st.binary(max_size=40) | st.just(MAGIC) | st.just(GOOD),
        ),
        max_size=5,
    )
)
def test_blocks_are_read_as_they_were_written(drawn: list[tuple[int, dict[int, str], bytes]]) -> None:
    """Kind, headers in any order, content and offsets of every block; a magic or a whole block inside content is
    content."""
    data = b""
    offsets = []
    for kind, headers, content in drawn:
        offsets.append(len(data))
        data += block(kind, headers, content)
    found = blocks_of(data)
    assert [b.offset for b in found] == offsets
    for b, (kind, headers, content) in zip(found, drawn, strict=True):
        assert b.kind == kind
        assert dict(b.headers) == headers
        assert data[b.content_offset : b.content_offset + b.content_bytes] == content


def test_footers_are_skipped() -> None:
    """A footer map that is not empty belongs to no content."""
    body = struct.pack(">iii", 1, AVRO, 0) + struct.pack(">q", 3) + b"abc" + builders.header_map({0: "foot"})
    size = len(body) + 8
    data = MAGIC + struct.pack(">q", size) + body + struct.pack(">q", size + 6)
    found = blocks_of(data + GOOD)
    assert [(b.kind, b.content_bytes) for b in found] == [(BlockKind.AVRO_DATA, 3), (BlockKind.AVRO_DATA, 7)]


# --- torn writes ------------------------------------------------------------------------------------------------


def test_torn_at_every_byte_in_front_of_a_good_block() -> None:
    """A block cut anywhere is skipped and the good one behind it is read."""
    for cut in range(6, len(GOOD)):
        found = blocks_of(GOOD[:cut] + GOOD)
        assert [b.kind for b in found] == [BlockKind.CORRUPT, BlockKind.AVRO_DATA], cut
        assert found[1].offset == cut


@settings(deadline=None)
@given(cut=st.integers(6, len(GOOD) - 1), before=st.integers(0, 2), after=st.integers(0, 2))
def test_torn_between_good_blocks(cut: int, before: int, after: int) -> None:
    """Good blocks on both sides of a torn one all count."""
    found = kinds(GOOD * before + GOOD[:cut] + GOOD * after)
    # The block in front of a torn one is sound: the torn one begins with a whole magic.
    assert found == [BlockKind.AVRO_DATA] * before + [BlockKind.CORRUPT] + [BlockKind.AVRO_DATA] * after


def test_torn_at_the_end_of_the_file() -> None:
    """A file that ends inside its only block has one corrupt block, also inside the magic."""
    for cut in range(1, len(GOOD)):
        assert kinds(GOOD[:cut]) == [BlockKind.CORRUPT], cut


@for_each(range(1, 6))
def test_torn_inside_the_magic_behind_a_good_block(cut: int) -> None:
    """Hudi meets the end of the file while it reads the next magic and takes the block in front as sound."""
    assert kinds(GOOD + GOOD[:cut])[0] is BlockKind.AVRO_DATA


def test_a_torn_block_in_front_of_a_magic_in_its_own_content() -> None:
    """Recovery behind a torn block stops at the first magic, which may lie in its content: still no error."""
    torn = block(AVRO, {INSTANT_TIME: "10"}, b"abc" + MAGIC + b"abc")[:-9]
    assert kinds(torn + GOOD) == [BlockKind.CORRUPT, BlockKind.CORRUPT, BlockKind.AVRO_DATA]


def damaged(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(damaged(GOOD, 6, struct.pack(">q", 1 << 40)), id="size past the end of the file"),
        pytest.param(damaged(GOOD, 6, struct.pack(">q", -5)), id="negative size"),
        pytest.param(damaged(GOOD, 6, struct.pack(">q", 8)), id="size smaller than any block"),
        pytest.param(damaged(GOOD, len(GOOD) - 8, struct.pack(">q", len(GOOD) - 7)), id="total one too large"),
        pytest.param(damaged(GOOD, len(GOOD) - 8, struct.pack(">q", len(GOOD))), id="total counts itself"),
        pytest.param(GOOD + b"garbage", id="no magic behind it"),
    ],
)
def test_corrupt(torn: bytes) -> None:
    """What the format calls corrupt is skipped up to the next magic."""
    assert kinds(torn + GOOD) == [BlockKind.CORRUPT, BlockKind.AVRO_DATA]
    assert kinds(torn) == [BlockKind.CORRUPT]


def test_magic_across_search_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next magic is found wherever the search window ends."""
    monkeypatch.setattr(log_block, "_SEARCH_STEP_BYTES", 8)
    for gap in range(8, 40):
        found = blocks_of(MAGIC + b"." * gap + GOOD)
        assert [(b.kind, b.offset) for b in found] == [(BlockKind.CORRUPT, 0), (BlockKind.AVRO_DATA, 6 + gap)], gap


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_no_bytes_raise_anything_but_malformed(noise: bytes, good: int) -> None:
    """Any file ends in blocks or in a MalformedError, never in another error or an endless loop."""
    for data in (GOOD * good + noise, GOOD * good + MAGIC + noise, noise):
        try:
            blocks_of(data)
        except MalformedError:
            continue


@settings(deadline=None)
@given(at=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_one_wrong_byte(at: int, value: int) -> None:
    """A flipped byte in the middle of a file leaves the block behind it readable, or is refused by name."""
    data = GOOD + damaged(GOOD, at, bytes([value])) + GOOD
    try:
        found = blocks_of(data)
    except MalformedError:
        return
    assert found[-1].kind is BlockKind.AVRO_DATA
    assert found[-1].offset == 2 * len(GOOD)


# --- refused ----------------------------------------------------------------------------------------------------


def raw(version: int, kind: int, middle: bytes) -> bytes:
    body = struct.pack(">ii", version, kind) + middle
    size = len(body) + 8
    return MAGIC + struct.pack(">q", size) + body + struct.pack(">q", size + 6)


EMPTY = struct.pack(">iqi", 0, 0, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"PAR1 is no log", "does not continue with a block", id="no magic"),
        pytest.param(raw(2, AVRO, EMPTY), "unknown log format version", id="format version 2"),
        pytest.param(raw(0, AVRO, EMPTY), "unknown log format version", id="pre-historic"),
        pytest.param(raw(1, 7, EMPTY), "unknown log block type", id="type 7"),
        pytest.param(raw(1, 2, EMPTY), "unknown log block type", id="CORRUPT on disk"),
        pytest.param(raw(1, AVRO, struct.pack(">iii", 1, 0, 99) + b"x" * 20), "extends past its block", id="header"),
        pytest.param(
            raw(1, AVRO, struct.pack(">iii", 1, 0, -1) + EMPTY), "extends past its block", id="negative length"
        ),
        pytest.param(raw(1, AVRO, struct.pack(">iii", 1, 9, 0) + EMPTY), "unreadable log block header", id="key 9"),
        pytest.param(
            raw(1, AVRO, struct.pack(">iii", 1, 0, 1) + b"\xff" + EMPTY), "unreadable log block header", id="no UTF-8"
        ),
        pytest.param(raw(1, AVRO, struct.pack(">iqi", 0, 1, 0)), "content extends past", id="content one too long"),
        pytest.param(raw(1, AVRO, struct.pack(">iqi", 0, -1, 0)), "content extends past", id="negative content"),
    ],
)
def test_malformed(data: bytes, message: str) -> None:
    """A well-framed block with impossible parts is an error that names the file, not a torn write."""
    with pytest.raises(MalformedError, match=message) as failure:
        blocks_of(data, "p/.f_10.log.1")
    assert failure.value.path == "p/.f_10.log.1"


def test_a_missing_header_is_named() -> None:
    """A block without an instant cannot be judged."""
    (found,) = blocks_of(block(AVRO, {}))
    with pytest.raises(MalformedError, match="INSTANT_TIME"):
        _ = found.instant


def test_compacted_instants() -> None:
    """A comma list, blanks ignored; none on ordinary blocks."""
    assert LogBlock(path="p", offset=0, kind=BlockKind.AVRO_DATA).compacted_instants == ()
    (found,) = blocks_of(block(AVRO, {COMPACTED_BLOCK_TIMES: "10, 20,,30"}))
    assert found.compacted_instants == ("10", "20", "30")


def test_content_is_not_read(tmp_path: Path) -> None:
    """Scanning reads headers only: a hundred megabytes of content cost nothing."""

    class Counting(io.FileIO):
        taken = 0

        def read(self, size: Any = -1, /) -> bytes:
            data = super().read(size)
            Counting.taken += len(data)
            return data

        def readinto(self, buffer: Any, /) -> int:
            count = super().readinto(buffer)
            Counting.taken += count
            return count

    path = tmp_path / "log"
    path.write_bytes(block(AVRO, {INSTANT_TIME: "10"}, bytes(1 << 20)) * 2)
    with Counting(str(path)) as file:
        assert len(list(scan_blocks(pa.PythonFile(file, "r"), "log"))) == 2
    assert Counting.taken < 1000
