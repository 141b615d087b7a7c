"""Tables with many columns cost by their number, not by its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from phantombase import read, writer


def rows(columns: int, keys: int, ts: int) -> pa.Table:
    values = {f"c{i}": [f"{i}" if i % 2 else float(i)] * keys for i in range(columns)}
    return pa.table({"id": [f"k{i}" for i in range(keys)], "ts": [ts] * keys, **values})


def calls(do: Callable[[], object]) -> int:
    """How many functions are called in this thread."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


def test_four_times_the_columns_take_four_times_the_calls(tmp_path: Path) -> None:
    """A read, an upsert and a delete of a few rows. Twelve columns first: they load what is needed."""
    took = []
    for columns in (12, 100, 400):
        path = tmp_path / f"t{columns}"
        writer(rows(columns, 9, 1)).table("t").key("id").ordering("ts").bulk_insert(path)
        update, gone = writer(rows(columns, 3, 2)), writer(rows(columns, 2, 3))
        steps = (lambda: update.upsert(path), lambda: gone.delete(path), lambda: read(path).to_arrow())  # noqa: B023
        took.append([calls(step) for step in steps])
    assert [many / few for few, many in zip(took[1], took[2], strict=True) if many > 4.4 * few] == []
