"""Publishing to Iceberg: its readers have the rows of the read-optimized query, after each step of a history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.iceberg_tables import Lake, history


@pytest.mark.parametrize(
    ("version", "seed", "steps"),
    [
        (9, 2, 18),
        (6, 4, 12),
        *(pytest.param(v, s, 30, marks=pytest.mark.deep) for v in (6, 8, 9) for s in range(10, 18)),
    ],
)
def test_readers_have_the_rows_after_each_step(version: int, seed: int, steps: int, tmp_path: Path) -> None:
    """And until the next step is published, whatever it removes; and of all older snapshots that are there."""
    lake, done = Lake(tmp_path, version=version), list[str]()
    lake.put("a1", "a2", "b1", "c1")
    lake.sync()
    for name, step in history(lake, seed, steps):
        done.append(name)
        try:
            step()
            if name not in ("undo", "restore"):
                lake.check_readable()
            lake.sync()
            lake.check()
            lake.check_readable()
        except BaseException as error:
            error.add_note(f"steps: {done}")
            raise
