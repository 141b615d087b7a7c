"""How much is held in memory while log files of the record index are made."""

from __future__ import annotations

import pytest

from phantombase.timeline.metadata_table.index_keys import FileKeys, NotedKeys
from phantombase.timeline.metadata_table.index_logs import Bounds

MIB = 1 << 20


def noted(files: int, count: int, key_bytes: int, limit: int) -> NotedKeys:
    """Files of so many keys each."""
    one = FileKeys(partition="p", file_id="f", path="p", count=count, size=count * key_bytes)
    return NotedKeys(files=(one,) * files, memory_limit=limit)


def test_small_logs_of_an_object_store_are_made_in_one_pass() -> None:
    """100 thousand keys of 20 bytes make 16 MiB."""
    bounds = Bounds.of(noted(4, 25_000, 20, 1 << 30), 200, 90, is_file_system=False)
    assert (bounds.files, bounds.ahead) == (256, 8)


@pytest.mark.parametrize("limit", [32 * MIB, 256 * MIB, 1 << 30])
def test_large_ones_are_made_in_passes(limit: int) -> None:
    """100 million keys: each log holds back as much as it may."""
    bounds = Bounds.of(noted(100, 1_000_000, 300, limit), 200, 90, is_file_system=False)
    assert bounds.files == max(1, limit // 2 // (48 * MIB))
    assert bounds.ahead == max(1, limit // 8 // (32 * MIB + 1))
    assert bounds.portion_bytes == limit // 12


def test_a_file_system_holds_nothing_back() -> None:
    """A write of nothing has bounds too."""
    assert Bounds.of(noted(100, 1_000_000, 300, 32 * MIB), 200, 90, is_file_system=True).files == 200 + 56
    assert Bounds.of(noted(0, 0, 0, 32 * MIB), 1, 0, is_file_system=False).files == 256
