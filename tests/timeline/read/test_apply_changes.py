"""`Changes.apply`: new rows are copied as a whole beside the batch, or taken before, and the batch is taken row by row
or copied in runs; all give the same rows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.merge import rule
from phantombase.timeline.merge.rule import NO_HASHES, Changes

_SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))])


def rows_of(draw: Any, least: int, label: str) -> pa.Table:
    """Rows in one to three chunks, with nulls."""
    parts = draw(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=9), min_size=1, max_size=3))
    parts[0] += [0] * max(0, least - sum(map(len, parts)))
    tables = []
    for part in parts:
        text = [None if n is None else f"{label}{n}" for n in part]
        lists = [None if n is None else [n] * (n % 3) for n in part]
        tables.append(pa.table({"number": part, "text": text, "list": lists}, schema=_SCHEMA))
    return pa.concat_tables(tables)


@st.composite
def changed_batches(draw: Any) -> tuple[pa.Table, Changes]:
    """A batch, and changes whose new rows may repeat and come in any order."""
    batch = rows_of(draw, 1, "base")
    numbers = st.sets(st.integers(0, batch.num_rows - 1))
    replaced = draw(numbers)
    deleted = draw(numbers) - replaced
    values = rows_of(draw, 1 if replaced else 0, "log")
    row = [draw(st.integers(0, values.num_rows - 1)) for _ in replaced]
    changes = Changes(
        replaced=np.array(sorted(replaced), np.int64),
        deleted=np.array(sorted(deleted), np.int64),
        values=values,
        row=np.array(row, np.int64),
        hashes=NO_HASHES,
    )
    return batch, changes


@given(drawn=changed_batches())
def test_all_ways_give_the_rows_of_a_row_by_row_model(drawn: tuple[pa.Table, Changes]) -> None:
    """However many values there are for each new row, and however many rows for each change."""
    batch, changes = drawn
    new = changes.values.to_pylist()
    model: list[Any] = batch.to_pylist()
    for at, row in zip(changes.replaced.tolist(), changes.row.tolist(), strict=True):
        model[at] = new[row]
    model = [row for at, row in enumerate(model) if at not in set(changes.deleted.tolist())]
    for few, rare in product((0, 1 << 30), repeat=2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(rule, "_FEW_TIMES", few)
            patched.setattr(rule, "_RARE", rare)
            assert changes.apply(batch).to_pylist() == model


@pytest.mark.parametrize(("count", "few_bytes", "whole"), [(4, 1 << 20, True), (5, 1 << 20, False), (4, 10, False)])
def test_many_values_are_not_copied_for_one_new_row(
    count: int, few_bytes: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond so many for each new row, or so many bytes, only the new rows are."""
    monkeypatch.setattr(rule, "_FEW_BYTES", few_bytes)
    values = pa.table({"number": list(range(count))})
    changes = Changes(
        replaced=np.array([1]), deleted=np.array([], np.int64), values=values, row=np.array([3]), hashes=NO_HASHES
    )
    new, row = changes._new_rows()
    assert new.num_rows == (count if whole else 1)
    assert new["number"][int(row[0])].as_py() == 3
