"""Freed memory is kept for small slices only."""

from __future__ import annotations

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.execution.slice_task import keep_freed
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.view.view import DataFile, FileSlice


@pytest.mark.parametrize(
    ("log_bytes", "limit_bytes", "decay_ms"), [(100, 800, 10_000), (101, 800, 1_000), (100, None, 10_000)]
)
def test_small_slices_keep_what_they_freed(
    log_bytes: int, limit_bytes: int | None, decay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eighth of the limit, or no limit at all."""
    name = LogFileName(file_id="f", instant="20", version=1)
    log = DataFile(partition="", name=name, size=log_bytes)
    slice_ = FileSlice(partition="", file_id="f", base_instant="10", base=None, logs=(log,))
    said: list[int] = []
    monkeypatch.setattr(pa, "jemalloc_set_decay_ms", said.append)
    monkeypatch.setattr(pa, "default_memory_pool", pa.jemalloc_memory_pool)
    keep_freed(slice_, limit_bytes)
    monkeypatch.setattr(pa, "default_memory_pool", pa.system_memory_pool)
    keep_freed(slice_, limit_bytes)  # nothing to set
    assert said == [decay_ms]
