"""HFiles of ours are read back as they were written, and their index finds every block."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from phantombase.timeline.metadata_table.records.hfile import open_hfile
from phantombase.timeline.metadata_table.records.hfile_write import encode_columns, encode_hfile
from tests.support.seed import SEED

INFO = {"schema": b'{"type": "string"}'}


def entries_of(content: bytes) -> list[tuple[bytes, bytes]]:
    """What our reader finds."""
    batches = list(open_hfile(pa.py_buffer(content), "made").batches())
    return [pair for b in batches for pair in zip(b.column(0).to_pylist(), b.column(1).to_pylist(), strict=True)]


@pytest.mark.parametrize("count", [1, 2, 700, 20_000])
def test_it_is_read_as_written(count: int) -> None:
    """In one block and many; empty keys and values, keys outside ASCII, values greater than a block."""
    pick = random.Random(SEED)
    keys = sorted({f"{pick.choice(('', 'ü', '😀', 'a/b'))}{n}".encode() for n in range(count)} - {b"0"} | {b""})
    sizes = (0, 1, 300, 100_000) if count < 1000 else (0, 7, 80)
    entries = [(key, pick.randbytes(pick.choice(sizes))) for key in keys]
    content = encode_hfile(entries, INFO)
    assert entries_of(content) == entries, f"seed {SEED}"
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


@pytest.mark.parametrize("count", [0, 1, 2, 900, 20_000])
def test_columns_make_the_same_file(count: int) -> None:
    """Byte for byte, blocks and index included; sliced arrays too."""
    pick = random.Random(SEED)
    keys = sorted({f"{pick.choice(('', 'ü', '😀', 'a/b'))}{n}".encode() for n in range(count)})
    entries = [(key, pick.randbytes(pick.choice((0, 60, 70)))) for key in keys]
    padded = [(b"x", b"y"), *entries, (b"z", b"")]
    columns = [pa.array([pair[n] for pair in padded], pa.binary()).slice(1, count) for n in (0, 1)]
    assert encode_columns(columns[0], columns[1], INFO) == encode_hfile(entries, INFO), f"seed {SEED}"
