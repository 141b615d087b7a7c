"""Key lookup answers as a dict does, whatever the hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.arrow.key_lookup import KeyLookup
from phantombase.timeline.errors import MalformedError


def find(keys: list[str], probes: Sequence[str | None]) -> list[int]:
    found = KeyLookup(pa.array(keys, pa.string())).find(pa.array(probes, pa.string()))
    return [int(position) for position in found]


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

    return mock.patch("phantombase.timeline.arrow.key_lookup.hash_keys", _hash)


@settings(deadline=None)
@given(st.lists(texts | st.none(), max_size=30))
def test_an_equal_hash_is_no_answer(probes: list[str | None]) -> None:
    """With a hash of 16 values most probes hit some key's hash: only equal keys are found."""
    keys = ["a", "b", "é"]
    with weakly(16):
        assert find(keys, [*probes, *keys]) == by_dict(keys, [*probes, *keys])


def test_another_hash_is_taken_when_keys_collide() -> None:
    """Keys that share a hash under three seeds get the fourth, and probes are hashed with it too."""
    seeds: list[int] = []

    def _hash(keys: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
        seeds.append(seed)
        return np.array([0 if seed < 3 else i for i in map(len, keys.to_pylist())], np.uint64)

    with mock.patch("phantombase.timeline.arrow.key_lookup.hash_keys", _hash):
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
    """Keys and probes may be views into longer arrays."""
    lookup = KeyLookup(pa.array(["x", "a", "b", "y"]).slice(1, 2))
    assert lookup.find(pa.array(["b", "a", "x", "b"]).slice(1, 3)).tolist() == [0, -1, 1]
