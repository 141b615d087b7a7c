"""Row hashes: fixed for ever, blind to how Arrow holds a value, and different where rows differ."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec import avro_decode, row_hash
from phantombase.timeline.codec import columns as module
from phantombase.timeline.codec.columns import row_bytes, rows_at
from phantombase.timeline.codec.row_hash import KeyLookup, row_hashes
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.ledger import Identity
from phantombase.timeline.merge import rule
from phantombase.timeline.merge.rule import NO_CHANGES, Changes
from phantombase.timeline.merge.slice_merge import identity_columns, identity_hashes, identity_sum
from phantombase.writer_hooks.engine import engine
from tests.support.selection import for_each

COLUMNS: dict[str, pa.Array] = {
    "text": pa.array(["", "a", "a\0", None, "exactly8", "nine byte", "ä" * 40]),
    "bytes": pa.array([b"", b"a", b"b", None, b"\0", b"\0\0", b"12345678"]),
    "int": pa.array([0, 1, -1, None, 5, 6, 7], pa.int32()),
    "long": pa.array([0, 1, -1, None, 2**62, 6, 7], pa.int64()),
    "double": pa.array([0.0, -0.0, 1.5, None, float("inf"), 1e-300, float("nan")]),
    "bool": pa.array([True, False, None, True, False, None, True]),
    "date": pa.array([date(2024, 1, d) for d in range(1, 7)] + [None]),
    "time": pa.array([datetime(2024, 1, d, tzinfo=UTC) for d in range(1, 7)] + [None], pa.timestamp("us", "UTC")),
    "decimal": pa.array([Decimal(i) for i in range(6)] + [None], pa.decimal128(20, 2)),
    "fixed": pa.array([b"aa", b"ab", None, b"ba", b"bb", b"bc", b"bd"], pa.binary(2)),
    "list": pa.array([[], [1], [1, 2], [2, 1], None, [None], [1, None]], pa.list_(pa.int64())),
    "map": pa.array(
        [[], [("a", 1)], [("b", 1)], None, [("a", None)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]],
        pa.map_(pa.string(), pa.int64()),
    ),
    "record": pa.array(
        [{"x": 1, "y": ["a"]}, {"x": 1, "y": ["b"]}, {"x": None}, None, {"x": 2, "y": []}, {"x": 2}, {"x": 3}],
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
    ),
}


def hashes_of(*columns: pa.Array) -> list[int]:
    return [int(h) for h in row_hashes(columns, len(columns[0]))]


def test_the_hash_never_changes() -> None:
    """Ledgers of years ago are compared with it: these numbers are part of the format."""
    assert hashes_of(pa.array(["", "key", "a key of 17 bytes", None])) == [
        0x71CAC37448049CE4,
        0x358DB91A6CE299E7,
        0xCCC94279F4A86976,
        0x952F14F1E8DDC491,
    ]
    assert hashes_of(pa.array([1, None], pa.int64()), pa.array(["x", "y"])) == [0xEF411FD5316BB12D, 0xE700FB0BA3982863]
    assert len(set(hashes_of(pa.array(["", "\x03", "\x01\0"])))) == 3  # short ones that met once


@for_each(COLUMNS)
def test_different_values_differ(name: str) -> None:
    """Null, empty and every value have hashes of their own."""
    column = COLUMNS[name]
    distinct = len({repr(v) for v in column.to_pylist()})
    assert len(set(hashes_of(column))) == distinct


@for_each(COLUMNS)
def test_a_slice_hashes_like_its_values(name: str) -> None:
    """Offsets into shared buffers play no part, nor do chunks."""
    column = COLUMNS[name]
    whole = hashes_of(column)
    assert hashes_of(column.slice(2, 4)) == whole[2:6]
    chunked = pa.chunked_array([column.slice(0, 3), column.slice(3)])
    assert [int(h) for h in row_hashes([chunked], len(column))] == whole


def test_how_text_is_held_plays_no_part() -> None:
    """Large offsets, dictionaries."""
    text = COLUMNS["text"]
    assert hashes_of(text) == hashes_of(text.cast(pa.large_string())) == hashes_of(text.dictionary_encode())


def test_the_place_of_a_value_counts() -> None:
    """The same values in other columns are another row."""
    a, b = pa.array(["a", "b"]), pa.array(["b", "a"])
    first, second = hashes_of(a, b)
    assert first != second


@given(st.lists(st.text(max_size=20), unique=True, max_size=40))
def test_texts_do_not_collide(texts: list[str]) -> None:
    """64 bits: a collision among a few texts would be a fault of the function."""
    assert len(set(hashes_of(pa.array(texts, pa.string())))) == len(texts)


def test_one_bit_moves_half_of_all_bits() -> None:
    """Sums of hashes only tell rows apart if hashes of like rows are unlike."""
    numbers = pa.array(np.arange(4096), pa.int64())
    hashes = np.array(hashes_of(numbers), np.uint64)
    flipped = np.bitwise_count(hashes[1:] ^ hashes[:-1])
    assert 31 < flipped.mean() < 33


META = {"_hoodie_commit_time": "1", "_hoodie_commit_seqno": "1_0_1", "_hoodie_record_key": "k", "v": 1}


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**META, **r} for r in rows])


def test_a_row_is_known_by_key_time_and_number() -> None:
    """Where a table has meta columns the others need not be read."""
    assert identity_columns(table_of({}).schema) == [
        "_hoodie_record_key",
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
    ]
    same, other = table_of({"v": 2}), table_of({"_hoodie_commit_seqno": "1_0_2"})
    assert identity_sum([table_of({})]) == identity_sum([same]) != identity_sum([other])
    assert identity_columns(pa.schema([("id", pa.int64())])) == ["id"]


def test_a_row_under_another_key_shows() -> None:
    """The key a row was looked up by counts, not the one it carries."""
    rows = table_of({})
    assert (
        identity_hashes(rows)[0]
        == identity_hashes(rows, pa.array(["k"]))[0]
        != identity_hashes(rows, pa.array(["l"]))[0]
    )


def test_sums_travel_and_add_up() -> None:
    """Mod 2^64, as hex in JSON."""
    top = Identity(base=2**64 - 1, removed=1, added=2, out=0)
    assert Identity.from_json(top.to_json()) == top
    assert Identity.total([top, top]).base == 2**64 - 2
    top.check("slice")
    assert NO_CHANGES.apply(table_of({})) == table_of({})


def test_long_values() -> None:
    """Fixed for ever too; every byte and the order of words count, and neighbours of other lengths do not."""
    value = bytes(i * 37 % 251 for i in range(1029))
    (plain,) = hashes_of(pa.array([value]))
    assert plain == LONG_HASH
    changed = [value[:i] + bytes([value[i] ^ 1]) + value[i + 1 :] for i in range(len(value))]
    swapped = value[8:16] + value[:8] + value[16:]
    others = [*changed, swapped, value[:-1], value + b"\0"]
    assert len({plain, *hashes_of(pa.array(others))}) == len(others) + 1
    assert hashes_of(pa.array([b"", value, b"short", value * 3]))[1] == plain


LONG_HASH = 7302228552018812408

# Key lookup answers as a dict does, whatever the hash.


def find(keys: list[str], probes: Sequence[str | None]) -> list[int]:
    """Both ways: with the module in Rust, if it is installed, and with numpy."""
    of, asked = pa.array(keys, pa.string()), pa.array(probes, pa.string())
    found = [int(position) for position in KeyLookup(of).find(asked)]
    with by_numpy():
        assert KeyLookup(of).find(asked).tolist() == found
    return found


def by_numpy() -> Any:
    """As where `phantombase-native` is not installed."""
    return mock.patch.object(row_hash, "native", None)


def by_dict(keys: list[str], probes: Sequence[str | None]) -> list[int]:
    positions: dict[str | None, int] = {key: i for i, key in enumerate(keys)}
    return [positions.get(probe, -1) for probe in probes]


texts = st.text(max_size=3) | st.sampled_from(["", "a", "k1", "k2", "é"])


@settings(deadline=None)
@given(st.lists(texts, unique=True, max_size=50), st.lists(texts | st.none(), max_size=50))
def test_as_a_dict(keys: list[str], probes: list[str | None]) -> None:
    """Every probe gets its key's position or -1."""
    assert find(keys, [*probes, *keys]) == by_dict(keys, [*probes, *keys])


def test_many_keys() -> None:
    """Over many keys and twice as many probes."""
    keys = [f"k{i:07d}" for i in range(20_000)]
    probes: list[str | None] = [f"k{i:07d}" for i in range(39_999, -1, -1)]
    assert find(keys, probes) == by_dict(keys, probes)


def weak(key: str | None, seed: int, modulus: int) -> int:
    """A hash that tells `modulus` classes of texts apart, in the leading bits; another one for each seed."""
    return ((sum((key or "").encode()) + seed * len(key or "")) % modulus) << 60


def weakly(modulus: int) -> Any:
    def _hash(keys: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
        return np.array([weak(k, seed, modulus) for k in keys.to_pylist()], np.uint64)

    return mock.patch("phantombase.timeline.codec.row_hash.hash_keys", _hash)


@settings(deadline=None)
@given(st.lists(texts | st.none(), max_size=30))
def test_an_equal_hash_is_no_answer(probes: list[str | None]) -> None:
    """With a hash of 16 values most probes hit some key's hash: only equal keys are found."""
    keys = ["a", "b", "é"]
    with weakly(16):
        assert find(keys, [*probes, *keys]) == by_dict(keys, [*probes, *keys])


def test_another_hash_is_taken_when_keys_collide() -> None:
    """Keys that share a hash under three seeds, with another one between them, get the fourth, and so do probes."""
    seeds: list[int] = []

    def _hash(keys: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
        seeds.append(seed)
        return np.array([i % 2 if seed < 3 else i for i in map(len, keys.to_pylist())], np.uint64)

    with by_numpy(), mock.patch("phantombase.timeline.codec.row_hash.hash_keys", _hash):
        lookup = KeyLookup(pa.array(["x", "yy", "zzz"]))
        assert lookup.find(pa.array(["zzz", "yy", "x", "w"])).tolist() == [2, 1, 0, -1]
    assert seeds == [0, 1, 2, 3, 3]


def test_keys_that_are_not_distinct() -> None:
    """Two equal keys collide under every hash: that is said, not guessed."""
    with pytest.raises(MalformedError, match="not distinct"):
        KeyLookup(pa.array(["a", "b", "a"]))


def test_nothing_to_find() -> None:
    """No keys, no probes, neither."""
    assert find([], ["a", None]) == [-1, -1]
    assert find(["a"], []) == []
    assert find([], []) == []


def test_nulls_are_not_found() -> None:
    """A null probe is no key, not even the empty one."""
    assert find([""], [None, "", None]) == [-1, 0, -1]


def test_sliced_arrays() -> None:
    """Keys and probes may be views into longer arrays; a lookup is sent to tasks with its keys."""
    lookup = KeyLookup(pa.array(["x", "a", "b", "y"]).slice(1, 2))
    for one in lookup, pickle.loads(pickle.dumps(lookup)):
        assert one.find(pa.array(["b", "a", "x", "b"]).slice(1, 3)).tolist() == [0, -1, 1]
        assert one.find(pa.array(["b", None], pa.large_string())).tolist() == [1, -1]


@pytest.mark.skipif(avro_decode.native is None, reason="phantombase-native is not built")
def test_the_module_trusts_no_offset() -> None:
    """Offsets that lead outside, backwards or below 0, and numbers that no array has, are an error of one kind."""
    make = avro_decode.native.Keys
    good = np.array([0, 1, 2], np.int32).tobytes()
    keys = make(good, b"ab", 0, 2)
    assert np.frombuffer(keys.find(good, b"bc", 0, 2), np.int64).tolist() == [1, -1]
    for offsets in ([0, 1, 3], [0, 2, 1], [-1, 1, 2], [0, 1]):
        data = np.array(offsets, np.int32).tobytes()
        for ask in (make, keys.find):
            with pytest.raises(ValueError, match="laid out"):
                ask(data, b"ab", 0, 2)
    for start, count in (1, 2), (2**62, 1), (0, 2**62), (2**64 - 1, 2**64 - 1):
        with pytest.raises(ValueError, match="laid out"):
            keys.find(good, b"ab", start, count)


# Rows by number of a table that is too large for Arrow's own `take`: the same rows, in chunks.


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if 2 GiB were 200 bytes."""
    monkeypatch.setattr(module, "MANY_BYTES", 200)
    monkeypatch.setattr(rule, "MANY_BYTES", 200)
    monkeypatch.setattr(module, "PIECE_BYTES", 50)


def drawn(pick: random.Random, rows: int) -> pa.Table:
    """Text of very different lengths, nulls, numbers, lists and records, in chunks."""
    made = [
        {
            "t": pick.choice([None, "", "x" * pick.randrange(60)]),
            "b": b"y" * pick.randrange(9),
            "n": pick.randrange(99),
            "l": ["z" * pick.randrange(9)] * pick.randrange(3),
            "r": pick.choice([None, {"s": "w" * pick.randrange(9)}]),
        }
        for _ in range(rows)
    ]
    schema = pa.schema(
        [
            ("t", pa.string()),
            ("b", pa.binary()),
            ("n", pa.int64()),
            ("l", pa.list_(pa.string())),
            ("r", pa.struct([("s", pa.string())])),
        ]
    )
    cuts = sorted(pick.randrange(rows + 1) for _ in range(3))
    whole = pa.Table.from_pylist(made, schema)
    parts = [whole.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
    return pa.concat_tables(parts)


@pytest.mark.usefixtures("small")
@for_each(range(20))
def test_rows_by_number(seed: int) -> None:
    """Each row as often as asked for, in the order asked for, in pieces of a bounded size."""
    pick = random.Random(seed)
    table = drawn(pick, pick.randrange(1, 40))
    numbers = np.array([pick.randrange(table.num_rows) for _ in range(pick.randrange(80))], np.int64)
    found = rows_at(table, numbers)
    assert found.schema == table.schema
    assert found.to_pylist() == [table.slice(n, 1).to_pylist()[0] for n in numbers.tolist()]
    largest = int(row_bytes(table).max())
    assert all(batch.nbytes <= 8 * (50 + largest) + 200 for batch in found.to_batches())


@pytest.mark.usefixtures("small")
@for_each(range(20))
def test_a_batch_is_changed_in_pieces(seed: int) -> None:
    """As in one piece: rows replaced by far larger ones, deleted ones, a new row for several old ones."""
    pick = random.Random(seed)
    rows, values = drawn(pick, pick.randrange(1, 30)), drawn(pick, pick.randrange(1, 30))
    at = pick.sample(range(rows.num_rows), pick.randrange(rows.num_rows + 1))
    replaced, deleted = at[: len(at) // 2], at[len(at) // 2 :]
    changes = Changes(
        replaced=np.array(replaced, np.int64),
        deleted=np.array(deleted, np.int64),
        values=values,
        row=np.array([pick.randrange(values.num_rows) for _ in replaced], np.int64),
        hashes=np.zeros(0, np.uint64),
    )
    wanted: list[dict[str, Any] | None] = list(rows.to_pylist())
    for place, row in zip(replaced, changes.row.tolist(), strict=True):
        wanted[place] = values.slice(row, 1).to_pylist()[0]
    for place in deleted:
        wanted[place] = None
    model = [row for place, row in enumerate(wanted) if place not in deleted]
    pieces = list(changes.pieces(rows))
    assert [row for piece in pieces for row in piece.to_pylist()] == model
    assert changes.apply(rows).to_pylist() == model


@pytest.mark.usefixtures("small")
def test_a_large_batch_of_a_write_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that other libraries hold with offsets of 64 bits fits those of the table part by part."""
    monkeypatch.setattr(engine, "MANY_BYTES", 200)
    text = ["x" * 60] * 9
    rows = pa.table({"t": pa.array(text, pa.large_string())})
    batches = list(engine.in_batches(rows.to_batches()))
    assert pa.Table.from_batches(batches).equals(rows)
    assert len(batches) > 3
    for batch in batches:
        offsets = np.frombuffer(batch.column(0).buffers()[1], np.int64)
        assert offsets[0] == 0
        assert offsets[batch.num_rows] <= 200
