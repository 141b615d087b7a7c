"""Where framed records begin: found for records of any bytes, or not at all, never in another place."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phantombase.timeline.avro import framing
from phantombase.timeline.avro.framing import record_starts

_RECORDS = st.lists(
    st.binary(max_size=12) | st.sampled_from([b"\0" * 9, b"\0\0\0\0", b"\0\0\0\1\0", b"\0" * 300]), max_size=9
)


def framed(records: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The records behind their lengths."""
    return np.frombuffer(b"".join(struct.pack(">i", len(r)) + r for r in records), np.uint8)


def chain(records: list[bytes]) -> list[int]:
    """One offset after the other."""
    return [0, *np.cumsum([4 + len(r) for r in records]).tolist()]


@given(_RECORDS)
@example([b"\0\0\0\0"])
@example([b"\0\0\0\2ab"])
def test_a_chain_that_is_found_is_the_one_of_the_prefixes(records: list[bytes]) -> None:
    """Also where the records' own bytes look like prefixes."""
    found = record_starts(framed(records), len(records))
    assert found is None or found.tolist() == chain(records)


@pytest.mark.parametrize("window", [1, 7, 64, 1 << 19])
def test_usual_records_are_found_in_windows_of_any_size(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    records = [random.integers(0, 4, random.integers(1, 700), np.uint8).tobytes() + b"\xff" for _ in range(300)]
    monkeypatch.setattr(framing, "_WINDOW_BYTES", window)
    found = record_starts(framed(records), len(records))
    assert found is not None
    assert found.tolist() == chain(records)


def test_what_is_no_chain_is_not_made_one() -> None:
    """Another count, a cut end, a record of 64 KiB."""
    records = [b"abc", b"de"]
    assert record_starts(framed(records), 3) is None
    assert record_starts(framed(records)[:-1], 2) is None
    assert record_starts(framed([b"x" * 65536, b"a"]), 2) is None
    assert record_starts(framed([]), 0) is None
