"""HFiles: what is in them, and that damaged ones are refused by an error of ours."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError, PhantombaseError, UnsupportedError
from phantombase.timeline.metadata_table.records.entries import file_groups_of, location
from phantombase.timeline.metadata_table.records.hfile import ENTRIES, encode_columns, encode_hfile, open_hfile
from phantombase.timeline.metadata_table.records.keys import RowIndex, file_group_index
from tests.support.golden_tables import unzip_golden
from tests.support.metadata_tables import CRC32, CRC32C, GZ, NO_CHECKSUM, NONE, Style, hblock, hfile, trailer
from tests.support.places import SEED
from tests.support.selection import for_each

ENTRY = st.tuples(st.binary(max_size=40), st.binary(max_size=80))
STYLE = st.builds(
    Style,
    codec=st.sampled_from([GZ, NONE]),
    checksum=st.sampled_from([NO_CHECKSUM, CRC32, CRC32C]),
    block_entries=st.integers(1, 5),
    leaves=st.booleans(),
)


def entries_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """All entries of a file."""
    table = pa.Table.from_batches(open_hfile(pa.py_buffer(data), "file").batches(), ENTRIES)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@given(st.lists(ENTRY, max_size=30), STYLE)
def test_what_is_written_is_read(entries: list[tuple[bytes, bytes]], style: Style) -> None:
    """In the file's order, whatever the blocks are."""
    assert entries_of(hfile(entries, style)) == entries


def test_blocks_of_megabytes() -> None:
    """Of many checksums, and many of them."""
    entries = [(b"%06d" % i, bytes([i % 256]) * 3000) for i in range(2000)]
    for checksum in (NO_CHECKSUM, CRC32):
        for codec in (NONE, GZ):
            assert entries_of(hfile(entries, Style(codec=codec, checksum=checksum, block_entries=700))) == entries


def test_file_info() -> None:
    """By name."""
    info = {"schema": b'{"type": "record"}', "hfile.LASTKEY": b"\x00\x01k", "": b""}
    file = open_hfile(pa.py_buffer(hfile([(b"k", b"v")], Style(info=info))), "file")
    assert file.info == info
    assert file.entry_count == 1


def golden_hfiles(tmp_path: Path) -> Iterator[bytes]:
    """Base files that real Hudi wrote: 0.15.0 through HBase, 1.2.0 with its own writer."""
    for version in ("v6", "v8", "v9"):
        table = unzip_golden(f"{version}_with_metadata_table", tmp_path / version)
        (path,) = (table / ".hoodie/metadata/files").glob("*.hfile")
        yield path.read_bytes()


def test_files_of_hudi(tmp_path: Path) -> None:
    """One entry each, of no partition yet."""
    for data in golden_hfiles(tmp_path):
        ((key, value),) = entries_of(data)
        assert key == b"__all_partitions__"
        assert value
        assert b"HoodieMetadataRecord" in open_hfile(pa.py_buffer(data), "file").info["schema"]


# --- refusals


@for_each([(0, "lzo"), (3, "snappy"), (6, "zstd"), (77, "77")])
def test_other_compression(codec: int, name: str) -> None:
    """By its name."""
    with pytest.raises(UnsupportedError, match=rf"file; expected gz or none; found {name}"):
        open_hfile(pa.py_buffer(trailer({12: codec})), "file")


def test_no_hfile() -> None:
    """Too short, another magic, another version."""
    for data in (b"", bytes(100), bytes(5000), hfile([(b"k", b"v")], Style(version=2))):
        with pytest.raises(MalformedError, match="HFile"):
            open_hfile(pa.py_buffer(data), "file")


def test_wrong_checksum() -> None:
    """Without compression nothing else tells that a value is another one."""
    sound = hfile([(b"k", b"value")], Style(codec=NONE, checksum=CRC32))
    assert entries_of(sound) == [(b"k", b"value")]
    with pytest.raises(MalformedError, match="wrong checksum"):
        entries_of(sound.replace(b"value", b"volue"))
    damaged = bytearray(hfile([(b"k", b"value" * 9)], Style(codec=GZ)))
    damaged[struct.unpack_from(">i", damaged, 29)[0] - 8] ^= 1  # gzip's own CRC-32 of the first block
    with pytest.raises(MalformedError, match="incorrect data check"):
        entries_of(bytes(damaged))


def test_blocks_that_are_missing() -> None:
    """The trailer's count tells."""
    style = Style(block_entries=1)
    whole = hfile([(b"a", b"1"), (b"b", b"2")], style)
    blocks = whole[: whole.index(b"IDXROOT2")]
    second = blocks.index(b"DATABLK*", 1)
    shorter = hfile([(b"a", b"1")], style)
    info = shorter.index(b"FILEINF2")
    with pytest.raises(MalformedError, match="number of entries in an HFile differs"):
        entries_of(shorter[:-4096] + trailer({1: info, 7: 2, 9: 0, 10: 0, 12: GZ}))
    assert second == len(shorter[: shorter.index(b"IDXROOT2")])


def test_promises_that_do_not_fit() -> None:
    """Sizes are looked at before there is room for them: gigabytes for a few bytes."""
    style = Style(codec=GZ)
    block = bytearray(hblock(b"FILEINF2", b"PBUF\x00", style))
    block[12:16] = struct.pack(">i", (1 << 31) - 1)
    with pytest.raises(MalformedError, match="claims more than fits"):
        open_hfile(pa.py_buffer(bytes(block) + trailer({1: 0, 12: GZ})), "file")
    for at in (8, 29):
        block = bytearray(hblock(b"FILEINF2", b"PBUF\x00", style))
        block[at : at + 4] = struct.pack(">i", (1 << 31) - 1)
        with pytest.raises(MalformedError, match="impossible sizes"):
            open_hfile(pa.py_buffer(bytes(block) + trailer({1: 0, 12: GZ})), "file")
    block = bytearray(hblock(b"FILEINF2", b"PBUF\x00", Style(codec=NONE)))
    block[12:16] = struct.pack(">i", 4)
    with pytest.raises(MalformedError, match="size of an HFile block differs"):
        open_hfile(pa.py_buffer(bytes(block) + trailer({1: 0, 12: NONE})), "file")
    content = bytes(1 << 20)  # a thousandth of it on disk, and the header says less than it holds
    bomb = bytearray(hblock(b"FILEINF2", content, style))
    bomb[12:16] = struct.pack(">i", 10)
    with pytest.raises(MalformedError, match="truncated"):
        open_hfile(pa.py_buffer(bytes(bomb) + trailer({1: 0, 12: GZ})), "file")


@for_each(
    [
        (0, b"\xff\xff\xff\xff"),
        (0, b"\x40\0\0\0"),
        (0, b"\0\0\0\0"),
        (4, b"\xff\xff\xff\xff"),
        (4, b"\x40\0\0\0"),
        (8, b"\xff\xff"),
        (8, b"\x7f\xff"),
    ]
)
def test_impossible_entries(at: int, damage: bytes) -> None:
    """Lengths of key, value and row that point elsewhere."""
    data = bytearray(hfile([(b"key", b"value"), (b"more", b"values")], Style(codec=NONE)))
    data[33 + at : 33 + at + len(damage)] = damage
    with pytest.raises(MalformedError, match="HFile"):
        entries_of(bytes(data))


def test_offsets_outside_the_file() -> None:
    """And blocks of another kind where data should be."""
    sound = hfile([(b"k", b"v")], Style())
    info = sound.index(b"FILEINF2")
    for fields in (
        {1: 1 << 62, 7: 1},
        {1: info, 7: 1, 9: len(sound), 10: len(sound)},
        {1: 0},
        {1: info, 7: 1, 10: info},
    ):
        with pytest.raises(MalformedError):
            entries_of(sound[:-4096] + trailer({**fields, 12: GZ}))


def test_any_damage_is_an_error_of_ours(tmp_path: Path) -> None:
    """Or no damage at all to what is read."""
    dice = random.Random(SEED)
    for data in [*golden_hfiles(tmp_path), hfile([(b"k%d" % i, b"v") for i in range(20)], Style(codec=NONE))]:
        for _ in range(300):
            damaged = bytearray(data)
            for _ in range(dice.randint(1, 3)):
                # The trailer's padding is most of the file.
                at = dice.choice([dice.randrange(len(data) - 4096), len(data) - 4096 + dice.randrange(90)])
                damaged[at] = dice.randrange(256)
            cut = bytes(damaged[: dice.choice([len(data), len(data), dice.randrange(len(data))])])
            try:
                entries_of(cut)
            except PhantombaseError as error:
                assert error.path == "file", f"seed {SEED}"  # noqa: PT017
            except Exception as error:
                pytest.fail(f"seed {SEED}: {error!r}")


# HFiles of ours are read back as they were written, and their index finds every block.


INFO = {"schema": b'{"type": "string"}'}


def hfile_write_entries_of(content: bytes) -> list[tuple[bytes, bytes]]:
    """What our reader finds."""
    batches = list(open_hfile(pa.py_buffer(content), "made").batches())
    return [pair for b in batches for pair in zip(b.column(0).to_pylist(), b.column(1).to_pylist(), strict=True)]


@for_each([1, 2, 700, 20_000])
def test_it_is_read_as_written(count: int) -> None:
    """In one block and many; empty keys and values, keys outside ASCII, values greater than a block."""
    pick = random.Random(SEED)
    keys = sorted({f"{pick.choice(('', 'ü', '😀', 'a/b'))}{n}".encode() for n in range(count)} - {b"0"} | {b""})
    sizes = (0, 1, 300, 100_000) if count < 1000 else (0, 7, 80)
    entries = [(key, pick.randbytes(pick.choice(sizes))) for key in keys]
    content = encode_hfile(entries, INFO)
    assert hfile_write_entries_of(content) == entries, f"seed {SEED}"
    hfile = open_hfile(pa.py_buffer(content), "made")
    assert hfile.entry_count == len(entries)
    assert hfile.info["schema"] == INFO["schema"]


def test_every_block_is_found_by_the_index() -> None:
    """Its entries say where a data block lies, how long it is, and its first key; long keys have long lengths."""
    content = encode_hfile([(f"{n:0200d}".encode(), bytes(50)) for n in range(3000)], INFO)
    index, _ = block_at(content, content.index(b"IDXROOT2"))
    position, starts = 0, list[int]()
    while position < len(index):
        start, size = struct.unpack_from(">qi", index, position)
        block, bytes_ = block_at(content, start)
        assert (content[start : start + 8], bytes_) == (b"DATABLK*", size)
        starts.append(start)
        assert index[position + 12] == 0x8F  # one byte of length follows
        key = index[position + 14 : position + 14 + index[position + 13]]
        assert block[8 : 8 + len(key)] == key
        position += 14 + len(key)
    assert len(starts) == content.count(b"DATABLK*") > 5


def block_at(content: bytes, start: int) -> tuple[bytes, int]:
    """A block's content and its bytes in the file, header and checksums included."""
    behind, kept = struct.unpack_from(">i", content, start + 8)[0], struct.unpack_from(">i", content, start + 29)[0]
    return content[start + 33 : start + kept], 33 + behind


@for_each([0, 1, 2, 900, 20_000])
def test_columns_make_the_same_file(count: int) -> None:
    """Byte for byte, blocks and index included; sliced arrays too."""
    pick = random.Random(SEED)
    keys = sorted({f"{pick.choice(('', 'ü', '😀', 'a/b'))}{n}".encode() for n in range(count)})
    entries = [(key, pick.randbytes(pick.choice((0, 60, 70)))) for key in keys]
    padded = [(b"x", b"y"), *entries, (b"z", b"")]
    columns = [pa.array([pair[n] for pair in padded], pa.binary()).slice(1, count) for n in (0, 1)]
    assert encode_columns(columns[0], columns[1], INFO) == encode_hfile(entries, INFO), f"seed {SEED}"


# The places of keys: the file group of the index that holds a key, and the form of a file id.


# Java's String.hashCode, by hand: over UTF-16 units, in 32 bits with a sign.
HASHES = {
    "": 0,
    "a": 97,
    "é": 233,
    "\ud7ff": 0xD7FF,
    "\uffff": 0xFFFF,
    "😀": 31 * 0xD83D + 0xDE00,
    "polygenelubricants": -(2**31),
    "00042": 45806766,
}


def java(text: str) -> int:
    data, hashed = text.encode("utf-16-be", "surrogatepass"), 0
    for at in range(0, len(data), 2):
        hashed = (31 * hashed + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >> 31 else hashed


@for_each([1, 2, 7, 10, 1000])
def test_the_file_group_is_by_javas_hash(count: int) -> None:
    """Also where it is the least number of 32 bits, whose absolute value Java takes for itself."""
    keys = [*HASHES, *(f"id:{n},name:ü{n}😀" for n in range(200))]
    assert {text: java(text) for text in HASHES} == HASHES
    found = file_groups_of(RowIndex(), pa.array(keys, pa.string()), count).tolist()
    assert found == [abs(java(key)) % count for key in keys] == [file_group_index(key, count) for key in keys]
    sliced = file_groups_of(RowIndex(), pa.array(keys, pa.string()).slice(3, 5), count).tolist()
    assert sliced == found[3:8]


@pytest.mark.parametrize(
    "text", [f"{uuid.UUID(int=2**128 - 2)}-0", f"{uuid.UUID(int=7)}-12", f"{uuid.UUID(int=2**63)}"]
)
def test_a_uuid_is_stored_as_two_numbers(text: str) -> None:
    """As Java's UUID has them, with a sign."""
    info = location("p", text, 5)["recordIndexMetadata"]
    high, low = (info[f"fileId{part}Bits"] & (2**64 - 1) for part in ("High", "Low"))
    index = info["fileIndex"]
    assert str(uuid.UUID(int=high << 64 | low)) + ("" if index == -1 else f"-{index}") == text
    assert (info["fileId"], info["fileIdEncoding"], info["partitionName"], info["instantTime"]) == ("", 0, "p", 5)


@for_each(["f-1", "00000003-0000-0000-0000-00000000000G-0", f"{uuid.UUID(int=10**37)}-01", "ABC"])
def test_any_other_id_is_stored_as_it_is(text: str) -> None:
    """A number with a zero before it would come back without."""
    info = location("", text, 5)["recordIndexMetadata"]
    assert (info["fileId"], info["fileIdEncoding"]) == (text, 1)
    assert (info["fileIdHighBits"], info["fileIdLowBits"], info["fileIndex"]) == (-1, -1, -1)
