"""The places of keys: the file group of the index that holds a key, and the form of a file id."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from phantombase.timeline.metadata_table.records.keys import file_group_index
from phantombase.timeline.metadata_table.records.locations import file_groups_of, location

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


@pytest.mark.parametrize("count", [1, 2, 7, 10, 1000])
def test_the_file_group_is_by_javas_hash(count: int) -> None:
    """Also where it is the least number of 32 bits, whose absolute value Java takes for itself."""
    keys = [*HASHES, *(f"id:{n},name:ü{n}😀" for n in range(200))]
    assert {text: java(text) for text in HASHES} == HASHES
    found = file_groups_of(pa.array(keys, pa.string()), count).tolist()
    assert found == [abs(java(key)) % count for key in keys] == [file_group_index(key, count) for key in keys]
    sliced = file_groups_of(pa.array(keys, pa.string()).slice(3, 5), count).tolist()
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


@pytest.mark.parametrize(
    "text", ["f-1", "00000003-0000-0000-0000-00000000000G-0", f"{uuid.UUID(int=10**37)}-01", "ABC"]
)
def test_any_other_id_is_stored_as_it_is(text: str) -> None:
    """A number with a zero before it would come back without."""
    info = location("", text, 5)["recordIndexMetadata"]
    assert (info["fileId"], info["fileIdEncoding"]) == (text, 1)
    assert (info["fileIdHighBits"], info["fileIdLowBits"], info["fileIndex"]) == (-1, -1, -1)
