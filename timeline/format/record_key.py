"""Record keys of rows, and the buckets and file ids that Hudi's simple bucket index gives them (pure, vectorised).

A key is read from the meta column, or computed if the table has none (virtual keys):

    one key field              the value as text
    two and more fields        f1:v1,f2:v2 in declared order; null -> f:__null__, empty -> f:__empty__

Values are formatted as Java prints them: integers plain, true/false, dates as ISO days, timestamps as the stored number
(micro- or milliseconds since the epoch), decimals with their scale (0.000000001 as 1E-9).

    h = 1; for v in values of the index fields: h = 31 * h + String.hashCode(v)     (32 bits, wrapping)
    bucket = (h & 0x7fffffff) % buckets

The values are taken from the text of the record key. Hudi 0.15 and 1.2 split a key whose values contain `:` and `,` in
different ways. Hence `KeySplit`: each table version uses the rule of the Hudi release that is its reference."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_schema import RECORD_KEY
from ..codec.columns import flat
from ..errors import MalformedError, UnsupportedError, UsageError
from .layout import Layout

BUCKETS_MAX = 99_999_999
"""A file id has eight digits for the bucket."""


class KeySplit(Enum):
    """How a key's text is split into the values that are hashed. A key without `:` is one value in both. EACH_COMMA:
    the key is split at every comma, without empty parts at the end. Of the `f:v` parts (split at the first `:`) those
    of index fields count, and so do all parts without a `:`. So `a:b`, the value of a one-field key, has no values.
    LABELLED: a key without a comma is one value too. Otherwise the key is split into `f:v` parts, after the first `:`,
    at commas that are followed by a `:` with no comma in between. The parts of index fields count, or the entire key if
    there are none."""

    EACH_COMMA = "0.15"
    LABELLED = "1.2"

    @staticmethod
    def of(layout: Layout) -> KeySplit:
        """The rule of the Hudi release that is the reference for the table's version."""
        return KeySplit.LABELLED if layout.has_completion_times else KeySplit.EACH_COMMA


def bucket_of(
    keys: pa.StringArray, index_fields: Sequence[str], buckets: int, split: KeySplit
) -> npt.NDArray[np.int32]:
    """The bucket of each record key, 0 to `buckets` - 1; keys are not null.
    `index_fields`: `hoodie.bucket.index.hash.field`, by default all record key fields; at least one. UsageError: an
    impossible number of buckets; keys with NUL characters among keys that must be split."""
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError("impossible number of buckets", expected=f"1 to {BUCKETS_MAX}", found=str(buckets))
    return (key_hashes(keys, index_fields, split) % np.uint32(buckets)).astype(np.int32)


def key_hashes(keys: pa.StringArray, index_fields: Sequence[str], split: KeySplit) -> npt.NDArray[np.uint32]:
    """h & 0x7fffffff of each record key; its remainder is the bucket. Errors as in `bucket_of`."""
    hashes = np.uint32(31) + java_hashes(keys)
    is_split = pc.match_substring(keys, ":")
    if split is KeySplit.LABELLED:
        is_split = pc.and_(is_split, pc.match_substring(keys, ","))
    rows = np.flatnonzero(is_split.to_numpy(zero_copy_only=False))
    if len(rows):
        some = keys.take(pa.array(rows))
        if split is KeySplit.LABELLED:
            parts = _labelled_parts(some)
        else:  # Java's split drops empty parts at the end
            parts = pc.split_pattern(pc.replace_substring_regex(some, ",+$", ""), ",")
        hashed, has_values = _list_hashes(parts, index_fields)
        whole = ~has_values if split is KeySplit.LABELLED else np.zeros(len(rows), bool)
        hashes[rows] = np.where(whole, hashes[rows], hashed)
    return np.asarray(hashes & np.uint32(0x7FFFFFFF), np.uint32)


_CUT = "\0"


def _labelled_parts(keys: pa.StringArray) -> pa.ListArray:
    if pc.any(pc.match_substring(keys, _CUT)).as_py():
        raise UsageError("record keys with NUL characters have no bucket", todo="Remove them from the key columns.")
    first = pc.split_pattern(keys, ":", max_splits=1)
    name, rest = pc.list_element(first, 0), pc.list_element(first, 1)
    cut = pc.replace_substring_regex(rest, ",([^,:]*:)", f"{_CUT}\\1")
    return pc.split_pattern(pc.binary_join_element_wise(name, cut, ":"), _CUT)


def _list_hashes(
    parts: pa.ListArray, index_fields: Sequence[str]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """For rows as lists of `f:v` or `v`: List.hashCode of each row's values, and whether it has any."""
    row = pc.list_parent_indices(parts).to_numpy()
    pair = pc.split_pattern(parts.flatten(), ":", max_splits=1)
    has_name = pc.equal(pc.list_value_length(pair), 2)
    # The value is the second text of `f:v` and the first of `v`: in both cases the last text of the list.
    value = pair.flatten().take(pc.subtract(pair.offsets[1:], pc.add(pair.offsets[0], 1)))
    name = pair.flatten().take(pc.subtract(pair.offsets[:-1], pair.offsets[0]))
    kept = pc.or_(pc.invert(has_name), pc.is_in(name, value_set=pa.array(list(index_fields), pa.string())))
    nothing = pc.and_(has_name, pc.is_in(value, value_set=pa.array(["__null__", "__empty__"])))
    hashes = java_hashes(pc.if_else(nothing, "", value))  # null and "" both hash to 0
    chosen = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
    row, hashes = row[chosen], hashes[chosen]
    counts = np.bincount(row, minlength=len(parts))
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = np.ones(len(parts), np.uint32)
    for position in range(int(counts.max(initial=0))):
        at = place == position
        result[row[at]] = result[row[at]] * np.uint32(31) + hashes[at]
    return result, counts > 0


_WINDOW_ROWS, _WINDOW_BYTES = 65_536, 2 << 20
"""Texts hashed at a time, and their bytes of UTF-8: their sums fit into the processor's cache."""
_INT_MAX = 2**31 - 1


def java_hashes(texts: pa.StringArray) -> npt.NDArray[np.uint32]:
    """Java's String.hashCode of each text, over its UTF-16 units; texts are not null.
    One running sum over many texts: with P[i] the sum of unit[k] / 31**k below i, the hash of the units from a to b is
    31**(b-1) * (P[b] - P[a]); 31 is odd, so it divides in 32 bits."""
    windows = [_window_hashes(window) for window in _windows(texts)]
    return np.concatenate(windows) if windows else np.zeros(0, np.uint32)


def _windows(texts: pa.StringArray) -> Iterator[pa.StringArray]:
    """The texts in windows of at most `_WINDOW_ROWS` rows and about `_WINDOW_BYTES` bytes."""
    if not len(texts):
        return
    offsets, start = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1], 0
    while start < len(texts):
        end = np.int32(min(int(offsets[start]) + _WINDOW_BYTES, _INT_MAX))  # of the offsets' type: no conversion
        until = int(np.searchsorted(offsets, end, side="right")) - 1
        stop = min(len(texts), start + _WINDOW_ROWS, max(start + 1, until))
        yield texts.slice(start, stop - start)
        start = stop


def _window_hashes(texts: pa.StringArray) -> npt.NDArray[np.uint32]:
    offsets, units = _utf16(texts)
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * _powers(pow(31, -1, 1 << 32), len(units)), dtype=np.uint32, out=sums[1:])
    start, end = offsets[:-1], offsets[1:]
    last = np.maximum(end - 1, 0)  # an empty text has no last unit, and a sum of 0
    return _powers(31, len(units) + 1)[last] * (sums[end] - sums[start])


def _powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    """base**0 to base**(count - 1) in 32 bits."""
    return _power_table(base, max(1, count - 1).bit_length())[:count]


@lru_cache(maxsize=8)
def _power_table(base: int, bits: int) -> npt.NDArray[np.uint32]:
    table = np.full(1 << bits, base, np.uint32)
    table[0] = 1
    return np.cumprod(table, dtype=np.uint32)


def _utf16(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """The offsets and UTF-16 units of all texts, one after the other."""
    _, offsets_buffer, data = texts.buffers()
    if not len(texts) or data is None:
        return np.zeros(len(texts) + 1, np.int64), np.zeros(0, np.uint32)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    if data.max(initial=0) < 0x80:
        return offsets, data.astype(np.uint32)
    # A character has one unit, or two if it has four UTF-8 bytes. They count at its first byte; other bytes count zero.
    per_byte = (data & 0xC0 != 0x80).astype(np.int64) + (data >= 0xF0)
    units = np.frombuffer(data.tobytes().decode().encode("utf-16-le"), "<u2").astype(np.uint32)
    return np.r_[0, np.cumsum(per_byte)][offsets], units


def bucket_file_id(instant: str, partition: str, bucket: int) -> str:
    """The file id of a bucket that an instant opens: the same in every attempt of a task."""
    name = uuid.uuid5(_FILE_IDS, f"{instant}\n{partition}\n{bucket}")
    return f"{bucket:08d}{str(name)[8:]}-0"


_FILE_IDS = uuid.UUID("6f3c2f0e-6a5b-4c0e-9a53-0b6b1f9d2c11")


def bucket_of_file_id(file_id: str) -> int | None:
    """The bucket of a file group, None if its id does not begin with eight digits."""
    digits = file_id[:8]
    return int(digits) if len(digits) == 8 and digits.isascii() and digits.isdecimal() else None


def looks_like_bucket(file_id: str) -> bool:
    """Whether an id is probably a bucket's: its number is below 100000, which only 2 of 100 000 random ids have."""
    bucket = bucket_of_file_id(file_id)
    return bucket is not None and bucket < 100_000


def refuse_buckets(file_ids: Collection[str], what: str, where: str, todo: str) -> None:
    """UnsupportedError if half of the file ids look like a bucket's: a random one does in 2 of 100 000 cases."""
    buckets = sum(map(looks_like_bucket, file_ids))
    if buckets and 2 * buckets >= len(file_ids):
        found = f"{buckets} of {len(file_ids)} file ids begin with the number of a bucket"
        raise UnsupportedError(what, path=where, expected="file groups that are not buckets", found=found, todo=todo)


def is_nonblocking_bucket(file_id: str) -> bool:
    """Whether a writer of Hudi with NON_BLOCKING_CONCURRENCY_CONTROL has opened a bucket: its id has no random part."""
    return file_id[8:].startswith("-0000-0000-0000-000000000000") and looks_like_bucket(file_id)


def plain_file_id() -> str:
    """A random file id that does not look like a bucket's."""
    while True:
        file_id = f"{uuid.uuid4()}-0"
        if not looks_like_bucket(file_id):
            return file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """`fields`: the record key fields of a table without meta columns, or only the meta column's name.
    `other_in_deletes`: delete blocks may write a key in another form than its row has."""

    fields: tuple[str, ...]
    other_in_deletes: bool = False

    @property
    def are_stored(self) -> bool:
        """Whether base files contain the keys, so that their footers describe these."""
        return self.fields == (RECORD_KEY,)

    @staticmethod
    def of(populate_meta_fields: bool, record_key_fields: tuple[str, ...]) -> KeySource:
        return KeySource(fields=(RECORD_KEY,) if populate_meta_fields else record_key_fields)

    def keys(self, rows: pa.Table, where: str) -> pa.Array:
        """The record key of each row as text; MalformedError if a row has none."""
        parts = [value_text(flat(rows.column(name)), name) for name in self.fields]
        keys = parts[0] if len(parts) == 1 else labelled_keys(self.fields, parts)
        if keys.null_count:
            raise MalformedError("rows without a record key", path=where, found=f"{keys.null_count} of {len(keys)}")
        return keys


def labelled_keys(names: Sequence[str], parts: Sequence[pa.Array]) -> pa.Array:
    """`f1:v1,f2:v2` of each row, from the text of its values; nothing is escaped."""
    labelled = [
        pc.binary_join_element_wise(name, pc.if_else(pc.equal(filled, ""), "__empty__", filled), ":")
        for name, filled in ((name, pc.fill_null(part, "__null__")) for name, part in zip(names, parts, strict=True))
    ]
    return pc.binary_join_element_wise(*labelled, ",")


def has_text(kind: pa.DataType) -> bool:
    """Whether values of a type have one text form in keys, the same in all writers."""
    types = pa.types
    known = (types.is_string, types.is_integer, types.is_boolean, types.is_date32, types.is_timestamp, types.is_decimal)
    return any(is_of(kind) for is_of in known)


def value_text(column: pa.Array, name: str) -> pa.Array:
    """The values as they appear in keys and partition paths; null for null.
    UnsupportedError: a type without a text form, see `has_text`; `name` is the column's, for the message."""
    kind = column.type
    if not has_text(kind):
        what = "record key field of a type whose text form is not defined"
        expected = "text, integer, boolean, date, timestamp or decimal"
        raise UnsupportedError(what, expected=expected, found=f"{name}: {kind}")
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return column.cast(pa.string())
