"""Rows by number of a table that is too large for Arrow's own `take`: the same rows, in chunks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from phantombase.timeline.arrow import rows_at as module
from phantombase.timeline.arrow.rows_at import row_bytes, rows_at
from phantombase.timeline.merge import rule
from phantombase.timeline.merge.rule import Changes
from phantombase.writer_hooks.engine import engine


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("seed", range(20))
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


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_changed_in_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_large_batch_of_a_write_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that other libraries hold with offsets of 64 bits fits those of the table part by part."""
    monkeypatch.setattr(engine, "MANY_BYTES", 200)
    text = ["x" * 60] * 9
    rows = pa.table({"t": pa.array(text, pa.large_string())})
    batches = list(engine.in_batches(rows))
    assert pa.Table.from_batches(batches).equals(rows)
    assert len(batches) > 3
    for batch in batches:
        offsets = np.frombuffer(batch.column(0).buffers()[1], np.int64)
        assert offsets[0] == 0
        assert offsets[batch.num_rows] <= 200
