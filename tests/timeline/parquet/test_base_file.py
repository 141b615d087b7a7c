"""Key ranges of base files are in Java's order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.parquet.base_file import java_ends

# U+10FFFF is no character; surrogates cannot stand alone in UTF-8.
KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x10FFFE), max_size=6), min_size=1)


@given(KEYS, st.integers(0, 5))
def test_ends_are_those_of_java_strings(keys: list[str], cut: int) -> None:
    """As `String.compareTo` orders them: by UTF-16 code units, in one chunk or several, sliced or not."""
    ordered = sorted(keys, key=lambda key: key.encode("utf-16-be"))
    chunks = pa.chunked_array([keys[:cut], keys[cut:]], pa.string())
    assert java_ends(chunks) == (ordered[0], ordered[-1])


@pytest.mark.parametrize("keys", [["\U0001f6001", "\ufdfa1"], ["\ufdfa1", "\U0001f6001", "z"]])
def test_the_case_that_doubled_rows(keys: list[str]) -> None:
    """A BLOOM upsert took keys like U+FDFA for absent where an emoji was recorded as the greatest key."""
    assert java_ends(pa.chunked_array([keys]))[1] == "\ufdfa1"


def test_no_keys() -> None:
    """An empty file has no range."""
    assert java_ends(pa.chunked_array([], pa.string())) == (None, None)
