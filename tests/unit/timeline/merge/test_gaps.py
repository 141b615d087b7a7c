"""Rows put together from partial updates: a row-by-row model, in memory and spilled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.log.delete_block import Deletes
from phantombase.timeline.merge.gaps import SHAPE, Gaps
from phantombase.timeline.merge.ledger import Ledger
from phantombase.timeline.merge.log_fold import LogFold
from phantombase.timeline.merge.rule import Keyed, MergeRule
from phantombase.timeline.merge.slice_merge import SliceMerge
from phantombase.timeline.merge.spill import LogSpill
from phantombase.timeline.merge.spilled_merge import SpilledMerge
from tests.support.seed import SEED

COMMIT, EVENT = MergeMode.COMMIT_TIME, MergeMode.EVENT_TIME
NAMES = ("id", "a", "b", "c")
SCHEMA = pa.schema([("id", pa.string()), *((name, pa.string()) for name in "abc")])
GAPS = Gaps(shapes=(frozenset({"id", "a"}), frozenset({"id", "b", "c"}), frozenset({"id", "c"})))

Row = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """`row` None: a delete; `block`: it stands in a delete block, without `order` it has no ordering value."""

    order: int | None
    row: Row | None = None
    block: bool = False

    @property
    def natural(self) -> bool:
        return self.row is None and self.order is None


def over(new: Entry, old: Entry) -> Entry:
    """The columns of `new`, and those it lacks from `old`."""
    return Entry(order=new.order, row={**(old.row or {}), **(new.row or {})})


def folded(mode: MergeMode, entries: Sequence[Entry]) -> Entry:
    """The entries of one key, each merged with all before it."""
    now = entries[0]
    for new in entries[1:]:
        if mode is COMMIT or new.natural or now.natural:
            wins = not (new.block and now.natural and mode is EVENT)
        else:
            wins = (new.order or 0) >= (now.order or 0)
        if new.row is not None and now.row is not None:
            now = over(new, now) if wins else over(now, new)
        elif wins:
            now = new
    return now


def modelled(mode: MergeMode, base: Mapping[str, Entry], logs: Mapping[str, Sequence[Entry]]) -> list[Row]:
    """All rows after the merge."""
    rows: list[Row] = []
    for key in sorted({*base, *logs}):
        old = base.get(key)
        new = folded(mode, logs[key]) if key in logs else None
        if old is not None and new is not None:
            wins = mode is COMMIT or new.natural or (new.order or 0) >= (old.order or 0)
            new = (over(new, old) if new.row is not None else new) if wins else old
        found = new or old
        if found is not None and found.row is not None:
            rows.append({name: found.row.get(name) for name in NAMES})
    return rows


def keyed(entries: Sequence[tuple[str, Entry]], shape: int | None) -> Keyed:
    """A batch; `shape` None: of the base file. A delete among its rows is a row marked deleted."""
    rows = [{name: (entry.row or {}).get(name) for name in NAMES} for _, entry in entries]
    table = pa.Table.from_pylist(rows, SCHEMA)
    if shape is not None:
        table = table.append_column(SHAPE, pa.array([shape] * len(rows), pa.int32()))
    return Keyed(
        rows=table,
        keys=pa.array([key for key, _ in entries], pa.string()),
        ordering=(pa.array([entry.order for _, entry in entries], pa.int64()),),
        deleted=pa.array([entry.row is None for _, entry in entries]).to_numpy(zero_copy_only=False),
    )


def deletes(entries: Sequence[tuple[str, Entry]]) -> Deletes:
    """A delete block."""
    natural = [entry.natural for _, entry in entries]
    return Deletes(
        keys=pa.array([key for key, _ in entries], pa.string()),
        ordering=() if all(natural) else (pa.array([entry.order for _, entry in entries], pa.int64()),),
        natural=pa.array(natural),
    )


def without_ordering(mode: MergeMode, batch: Keyed) -> Keyed:
    """Commit time needs none."""
    return batch if mode is EVENT else Keyed(rows=batch.rows, keys=batch.keys, ordering=(), deleted=batch.deleted)


def random_blocks(random: Random, keys: Sequence[str]) -> list[tuple[int | None, list[tuple[str, Entry]]]]:
    """Blocks with their shapes, None for delete blocks."""
    blocks: list[tuple[int | None, list[tuple[str, Entry]]]] = []
    for number in range(random.randrange(1, 8)):
        some = random.sample(keys, random.randrange(1, len(keys)))
        if random.random() < 0.3:
            natural = random.random() < 0.5
            block = [(k, Entry(order=None if natural else random.randrange(4), block=True)) for k in some]
            blocks.append((None, block))
            continue
        shape = random.choice((0, 1, 2, 3, 3))
        columns = NAMES if shape == 0 else GAPS.shapes[shape - 1]
        values = [{name: key if name == "id" else f"{name}{number}" for name in columns} for key in some]
        marked = [random.random() < 0.1 for _ in some]
        entries = [Entry(order=random.randrange(4), row=None if m else v) for v, m in zip(values, marked, strict=True)]
        blocks.append((shape, list(zip(some, entries, strict=True))))
    return blocks


@pytest.mark.parametrize("mode", [COMMIT, EVENT])
def test_rows_are_put_together_as_in_the_model(mode: MergeMode, tmp_path: Path) -> None:
    """Partial and whole rows, late and in time, deletes of all kinds, keys with and without a base row."""
    random = Random(f"{SEED} {mode}")
    rule = MergeRule(mode=mode, ordering_types=(pa.int64(),) if mode is EVENT else ())
    keys = [f"k{n:02d}" for n in range(24)]
    for number in range(60):
        base = {
            key: Entry(order=random.randrange(4), row={"id": key, **{name: f"{name}-base" for name in "abc"}})
            for key in random.sample(keys, 16)
        }
        blocks = random_blocks(random, keys)
        logs: dict[str, list[Entry]] = {}
        for _, entries in blocks:
            for key, entry in entries:
                logs.setdefault(key, []).append(entry)

        def filled_fold(blocks: Sequence[tuple[int | None, list[tuple[str, Entry]]]] = blocks) -> LogFold:
            fold = LogFold(rule, SCHEMA, GAPS)
            for shape, entries in blocks:
                if shape is None:
                    fold.add_deletes(deletes(entries))
                else:
                    fold.add_rows(without_ordering(mode, keyed(entries, shape)))
            return fold

        batch = without_ordering(mode, keyed(list(base.items()), None))
        note = f"seed {SEED}, number {number}"
        rows, ledger = in_memory(rule, filled_fold(), batch)
        assert rows == modelled(mode, base, logs), note
        assert spilled(rule, filled_fold(), batch, tmp_path / str(number)) == (rows, ledger), note


def in_memory(rule: MergeRule, fold: LogFold, base: Keyed) -> tuple[list[Any], Ledger]:
    """Rows by key, and the ledger."""
    merge = SliceMerge(rule, fold.finish(), hashed=True)
    changed = merge.changes(base).apply(base.rows)
    rows = pa.concat_tables([changed, merge.inserts()[1]])
    return by_key(rows), merge.ledger(rows.num_rows)


def spilled(rule: MergeRule, fold: LogFold, base: Keyed, folder: Path) -> tuple[list[Any], Ledger]:
    """The same through files."""
    folder.mkdir()
    spill = LogSpill(str(folder), rule, SCHEMA, 2, GAPS)
    spill.add(fold.drain())
    merge = SpilledMerge(rule, spill, SCHEMA, str(folder), hashed=True)
    merge.decide(lambda: [base], 3)
    changed = merge.changes(base.rows.num_rows).apply(base.rows)
    rows = pa.concat_tables([changed, *(rows for rows, _ in merge.inserts(5))])
    return by_key(rows), merge.ledger(rows.num_rows)


def by_key(rows: pa.Table) -> list[Any]:
    """Sorted."""
    return sorted(rows.to_pylist(), key=lambda row: str(row["id"]))


def test_a_required_column_must_come_from_somewhere() -> None:
    """Of the base row it may come; a row without it is an error."""
    rule = MergeRule(mode=COMMIT, ordering_types=())
    strict = pa.schema([field.with_nullable(field.name != "b") for field in SCHEMA])
    fold = LogFold(rule, strict, GAPS)
    fold.add_rows(without_ordering(COMMIT, keyed([("k", Entry(order=1, row={"id": "k", "a": "new"}))], 1)))
    won = fold.finish()
    whole = keyed([("k", Entry(order=0, row=dict.fromkeys(NAMES, "old")))], None)
    base = Keyed(rows=whole.rows.cast(strict), keys=whole.keys, ordering=())
    merge = SliceMerge(rule, won)
    (row,) = merge.changes(base).apply(base.rows).to_pylist()
    assert row == {"id": "k", "a": "new", "b": "old", "c": "old"}
    with pytest.raises(MalformedError, match="lack a required column"):
        SliceMerge(rule, won).inserts()
