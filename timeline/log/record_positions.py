"""The RECORD_POSITIONS header of a log block: the base file rows that its records replace (pure).

Format (Hudi LogReaderUtils, RoaringBitmap's Roaring64NavigableMap in its portable form): base64 of
u64 LE number of buckets, and per bucket u32 LE high word of its positions and a 32-bit Roaring portable
stream (it begins with `3A 30`, or with `3B 30` if it has run containers: Hudi optimises runs before it writes).
CRoaring's 64-bit portable form is the same, byte for byte.

A position is a row number, from 0, of the base file whose instant the block names in its header
BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS; the i-th position in order belongs to the block's i-th record.
"""

from __future__ import annotations

import base64

import pyroaring

from ..errors import MalformedError


def parse_positions(text: str) -> pyroaring.BitMap64:
    """The positions in a header value; MalformedError if it is not exactly one bitmap in base64."""
    try:
        data = base64.b64decode(text, validate=True)
        positions = pyroaring.BitMap64.deserialize(data)
    # pyroaring raises IndexError for empty input.
    except (ValueError, IndexError) as error:
        raise MalformedError("damaged record positions", found=str(error)) from error
    # pyroaring reads to the end of the bitmap and ignores the rest.
    if len(positions.serialize()) != len(data):
        raise MalformedError("damaged record positions", found="bytes after the bitmap")
    return positions


def print_positions(positions: pyroaring.BitMap64) -> str:
    """The header value for `positions`, which are not changed; inverse of `parse_positions`."""
    optimised = positions.copy()
    optimised.run_optimize()
    return base64.b64encode(optimised.serialize()).decode("ascii")
