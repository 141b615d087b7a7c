"""What one write of ours does to the rows, in plain Python: a third judge beside real Hudi and our reads."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.rule import HUDI_0X, IS_DELETED
from tests.hudi.cases.rows import same

__all__ = ["Write", "check_write"]


@dataclass(frozen=True)
class Write:
    """A batch of rows with `id` and, unless it is `deletes`, `ts`; all or none of the rows are marked deleted."""

    rows: pa.Table
    deletes: bool

    @property
    def marked(self) -> bool:
        """Whether the rows ask for their own deletion."""
        return IS_DELETED in self.rows.schema.names and bool(self.rows[IS_DELETED][0].as_py())


def check_write(write: Write, before: pa.Table, after: pa.Table, mode: MergeMode, hidden: Set[str]) -> None:
    """Rows of the batch have won or lost against the snapshot before, and no other row has changed. `hidden`: keys with
    deletes in the logs whose ordering values a snapshot does not show."""
    batch = _best(write, mode)
    same(_without(after, batch), _without(before, batch))
    old = _numbered(before)
    won, lost, gone = list[int](), list[int](), set[str]()
    for key, row in batch.items():
        if write.deletes:
            gone.add(key)
            continue
        ts = write.rows["ts"][row].as_py()
        late = mode in _BY_TIME and key in old and before["ts"][old[key]].as_py() > ts
        if (key in hidden and key not in old) or (write.marked and late and mode in HUDI_0X):
            continue
        if late:
            lost.append(old[key])
        elif write.marked:
            gone.add(key)
        else:
            won.append(row)
    found = _numbered(after)
    assert not gone & found.keys(), f"deleted keys are there: {sorted(gone & found.keys())[:5]}"
    for rows, numbers in ((write.rows, won), (before, lost)):
        expected = rows.take(pa.array(numbers, pa.int64()))
        missing = [key for key in expected["id"].to_pylist() if key not in found]
        assert not missing, f"rows are not there: {missing[:5]}"
        there = after.take(pa.array([found[key] for key in expected["id"].to_pylist()], pa.int64()))
        columns = [name for name in write.rows.schema.names if not name.startswith("_hoodie_")]
        same(there.select(columns), expected.select(columns))


_BY_TIME = (MergeMode.EVENT_TIME, MergeMode.EVENT_TIME_0X)


def _best(write: Write, mode: MergeMode) -> dict[str, int]:
    """Of each key the row that the batch is reduced to: the greatest time in most modes, then the last."""
    best: dict[str, int] = {}
    times: list[Any] = [0] * write.rows.num_rows
    if not write.deletes and mode is not MergeMode.COMMIT_TIME:
        times = write.rows["ts"].to_pylist()
    for row, key in enumerate(write.rows["id"].to_pylist()):
        if key not in best or times[row] >= times[best[key]]:
            best[key] = row
    return best


def _numbered(rows: pa.Table) -> dict[str, int]:
    """Row numbers by key; a key twice is an error."""
    ids = rows["id"].to_pylist()
    assert len(set(ids)) == len(ids), "doubled keys"
    return {key: row for row, key in enumerate(ids)}


def _without(rows: pa.Table, keys: dict[str, int]) -> pa.Table:
    """Rows of other keys; the file of a row may change when its neighbours are written."""
    others = rows.filter(pa.array([key not in keys for key in rows["id"].to_pylist()], pa.bool_()))
    return others.drop_columns(["_hoodie_file_name"])
