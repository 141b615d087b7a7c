"""Resident memory of a read grows little while the logs grow to several times the limit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import memory
from bench.processes import run

_LIMIT = 32 << 20
_LOG_BYTES = 10 << 20
_FILES = 16


@pytest.mark.deep
def test_a_read_of_much_log_data_takes_little_more_memory(tmp_path: Path) -> None:
    """160 MiB of log entries, none of which can be forgotten early, under a limit of 32 MiB; as bytes in Arrow they are
    more, and the allocators keep some of what they had."""
    size = memory._write(tmp_path, _LOG_BYTES)
    assert _FILES * size > 4 * _LIMIT
    peaks = {}
    for files in (4, _FILES):
        command = [sys.executable, "-m", "bench.memory", "--one", "read", str(tmp_path), str(files), str(_LIMIT)]
        peaks[files] = run(command).peak_private_bytes
    assert peaks[_FILES] < 1.5 * peaks[4]
    assert peaks[_FILES] - peaks[4] < (_FILES - 4) * size * 0.75
