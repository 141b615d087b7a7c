"""Records of `record_index`: the file group that holds the row of a key (pure).

The key of a record is the row's key. A file id that is a UUID with a number behind it, as those of Spark's writers, is
stored as two integers and the number; any other as text. A key that is deleted has no record: its older ones are
deleted by a delete block. (HoodieRecordIndexInfo; seen in what 0.15.0 and 1.2.0 write.)
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...format.bucket import java_hashes
from .keys import MetadataRecord

RECORD_INDEX_TYPE = 5
"""Field `type` of a record."""

_UUID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:-(0|[1-9][0-9]{0,8}))?")
_AS_UUID, _AS_TEXT = 0, 1
_NONE = -1


def location(partition: str, file_id: str, milliseconds: int) -> MetadataRecord:
    """The record of every key that a file group has got. `milliseconds`: the moment that the write's instant names."""
    split = _UUID.fullmatch(file_id)
    if split is None:
        high, low, index, text, encoding = _NONE, _NONE, _NONE, file_id, _AS_TEXT
    else:
        digits = bytes.fromhex(split[1].replace("-", ""))
        high, low = (int.from_bytes(part, "big", signed=True) for part in (digits[:8], digits[8:]))
        index, text, encoding = int(split[2] or _NONE), "", _AS_UUID
    place = {
        "partitionName": partition,
        "fileIdHighBits": high,
        "fileIdLowBits": low,
        "fileIndex": index,
        "fileId": text,
        "instantTime": milliseconds,
        "fileIdEncoding": encoding,
        "position": None,
    }
    return {"type": RECORD_INDEX_TYPE, "recordIndexMetadata": place}


def file_groups_of(keys: pa.StringArray, count: int) -> npt.NDArray[np.int64]:
    """Which of the index's `count` file groups holds each key: by Java's hash, as `file_group_index`."""
    hashed = java_hashes(keys).astype(np.uint32).view(np.int32).astype(np.int64)
    return np.abs(hashed) % count
