"""The file groups of a bucket index that can hold given record keys.

No table records that it has a bucket index, nor with how many buckets: its files show it. A sample of the keys in base
files is hashed. With N buckets, hash - bucket is a multiple of N for each key, so N divides their greatest common
divisor; and N is above every bucket number. A file group stays if any such N leads one of the wanted keys to it. If the
table has another index, the divisor is 1 for so many keys, and every file group stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.arrays import Indices
from ..arrow.columns import flat
from ..avro.schema import RECORD_KEY
from ..format.bucket import KeySplit, bucket_of_file_id, key_hashes, looks_like_bucket
from ..format.table_config import TableConfig
from ..storage.contract import Storage
from ..view.view import FileSlice
from .slice_stream import base_tables

_SAMPLE_FILES, _SAMPLE_KEYS_MAX = 3, 1024
_SAMPLE_KEYS_MIN = 64
"""With fewer keys, chance could give them a common divisor: for 2, the smallest, once in 2**64."""


def bucket_slices(
    storage: Storage, slices: Sequence[FileSlice], keys: Sequence[str], config: TableConfig
) -> tuple[FileSlice, ...]:
    """The slices that can hold one of these keys. Reads some keys of a few base files of each partition."""
    # Of several key fields some alone may be hashed, and keys that share a value of the others would hide it.
    if not config.populate_meta_fields or not keys or len(config.record_key_fields) != 1:
        return tuple(slices)
    label = f"{config.record_key_fields[0]}:"
    given = frozenset(keys)
    bare = [key for key in keys if not (key.startswith(label) and key.removeprefix(label) in given)]
    both, plain = _hashes(keys, config), _hashes(bare, config)
    kept: list[FileSlice] = []
    for _, group in groupby(slices, key=lambda s: s.partition):
        partition = list(group)
        if len(partition) == 1:  # not worth a sample
            kept += partition
            continue
        step, labelled = _common_divisor(storage, partition, config, label)
        hashes = both if labelled else plain
        least = max((bucket_of_file_id(s.file_id) or 0 for s in partition), default=0) + 1
        kept += [s for s in partition if step < least or _can_hold(s, hashes, step, least)]
    return tuple(kept)


def _can_hold(slice_: FileSlice, hashes: Sequence[int], step: int, least: int) -> bool:
    """Whether some number of buckets, a divisor of `step` of at least `least`, leads a key to the slice's bucket."""
    bucket = bucket_of_file_id(slice_.file_id) or 0
    return any(gcd(abs(found - bucket), step) >= least for found in hashes)


def _hashes(keys: Sequence[str], config: TableConfig) -> list[int]:
    """The hash of each key by both rules: a table may have been upgraded."""
    texts = pa.array(keys, pa.string())
    both = [key_hashes(texts, config.record_key_fields, split) for split in KeySplit]
    return sorted({int(one) for hashes in both for one in hashes})


def _common_divisor(storage: Storage, slices: Sequence[FileSlice], config: TableConfig, label: str) -> tuple[int, bool]:
    """The greatest common divisor of hash - bucket over a sample; 1 if the files are not those of a bucket index.

    And whether keys of the sample have the `label`, the name of the key field.
    """
    buckets = [bucket_of_file_id(s.file_id) for s in slices]
    if not all(looks_like_bucket(s.file_id) for s in slices) or len(set(buckets)) != len(buckets):
        return 1, True
    found, count, labelled = 0, 0, False
    for bucket, keys in islice(_sampled(storage, slices), _SAMPLE_FILES):
        hashes = key_hashes(keys, config.record_key_fields, KeySplit.of(config.layout)).astype(np.int64)
        found = gcd(found, _divisor(hashes - bucket))
        count += len(keys)
        labelled = labelled or bool(pc.any(pc.starts_with(keys, label)).as_py())
    return (found if count >= _SAMPLE_KEYS_MIN and found else 1), labelled


def _divisor(numbers: Indices) -> int:
    return int(np.gcd.reduce(np.abs(numbers))) if len(numbers) else 0


def _sampled(storage: Storage, slices: Sequence[FileSlice]) -> Iterator[tuple[int, pa.Array]]:
    """The bucket and the first keys of slices with a base file."""
    schema = pa.schema([pa.field(RECORD_KEY, pa.string())])
    for slice_ in slices:
        if slice_.base is None:
            continue
        for table, _ in islice(base_tables(storage, slice_.base.path, schema, _SAMPLE_KEYS_MAX), 1):
            keys = flat(table.column(RECORD_KEY))
            yield bucket_of_file_id(slice_.file_id) or 0, keys.drop_null()
