"""The RECORD_POSITIONS header of a log block: which rows of the base file its records stand for (pure).

Format (Hudi LogReaderUtils, RoaringBitmap's Roaring64NavigableMap in its portable form): base64 of
u64 LE number of buckets, and per bucket u32 LE high word of its positions and a 32-bit Roaring portable
stream (it begins `3A 30`, or `3B 30` if it has run containers: Hudi optimises for runs before it writes).
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
    # pyroaring answers no bytes at all with an IndexError.
    except (ValueError, IndexError) as error:
        raise MalformedError("damaged record positions", found=str(error)) from error
    # pyroaring reads as far as the bitmap goes and says nothing about the rest.
    if len(positions.serialize()) != len(data):
        raise MalformedError("damaged record positions", found="bytes behind the bitmap")
    return positions


def print_positions(positions: pyroaring.BitMap64) -> str:
    """The header value for `positions`, which stay as they are; inverse of `parse_positions`."""
    optimised = positions.copy()
    optimised.run_optimize()
    return base64.b64encode(optimised.serialize()).decode("ascii")
