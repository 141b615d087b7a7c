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
from phantombase.timeline.format.ledger import Ledger
from phantombase.timeline.format.log_deletes import Deletes
from phantombase.timeline.format.merge_settings import NotGiven
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.gaps import SHAPE, Shapes, Unset
from phantombase.timeline.merge.log_fold import LogFold
from phantombase.timeline.merge.rule import Keyed, MergeRule
from phantombase.timeline.merge.slice_merge import SliceMerge
from phantombase.timeline.merge.spilled_merge import LogSpill, SpilledMerge
from tests.support.places import SEED
from tests.support.selection import ALL

COMMIT, EVENT = MergeMode.COMMIT_TIME, MergeMode.EVENT_TIME
NAMES = ("id", "a", "b", "c")
SCHEMA = pa.schema([("id", pa.string()), *((name, pa.string()) for name in "abc")])
UNSET = {
    "null": Unset(values=NotGiven()),
    "text": Unset(values=NotGiven(text="?")),
    "base_only": Unset(values=NotGiven(among_logs=False, to_newer=False)),
}
"""The values that mean "not given"."""
GAPS = Shapes(shapes=(frozenset({"id", "a"}), frozenset({"id", "b", "c"}), frozenset({"id", "c"})))

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


def folded(mode: MergeMode, entries: Sequence[Entry], unset: Unset | None) -> Entry:
    """The entries of one key, each merged with all before it."""
    among_logs = unset is None or unset.values.among_logs
    now = entries[0]
    for new in entries[1:]:
        if mode is COMMIT or new.natural or now.natural:
            wins = not (new.block and now.natural and mode is EVENT)
        else:
            wins = (new.order or 0) >= (now.order or 0)
        if new.row is not None and now.row is not None:
            first, second = (new, now) if wins else (now, new)
            now = over(first, second) if among_logs else first
        elif wins:
            now = new
    return now


def modelled(
    mode: MergeMode, base: Mapping[str, Entry], logs: Mapping[str, Sequence[Entry]], unset: Unset | None = None
) -> list[Row]:
    """All rows after the merge. `unset`: base rows may lack columns, too."""
    absent = unset.values.text if unset is not None else None
    rows: list[Row] = []
    for key in sorted({*base, *logs}):
        old = base.get(key)
        new = folded(mode, logs[key], unset) if key in logs else None
        if old is not None and new is not None:
            wins = mode is COMMIT or new.natural or (new.order or 0) >= (old.order or 0)
            late = over(old, new) if unset is not None and unset.values.to_newer and new.row is not None else old
            new = (over(new, old) if new.row is not None else new) if wins else late
        found = new or old
        if found is not None and found.row is not None:
            rows.append({name: found.row.get(name, absent) for name in NAMES})
    return rows


def keyed(entries: Sequence[tuple[str, Entry]], shape: int | None, unset: Unset | None = None) -> Keyed:
    """A batch; `shape` None: of the base file. A delete among its rows is a row marked deleted."""
    absent = unset.values.text if unset is not None else None
    rows = [{name: (entry.row or {}).get(name, absent) for name in NAMES} for _, entry in entries]
    table = pa.Table.from_pylist(rows, SCHEMA)
    if shape is not None and unset is None:
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


@pytest.mark.parametrize("lack", ["blocks", *UNSET])
@pytest.mark.parametrize("mode", [COMMIT, EVENT])
def test_rows_are_put_together_as_in_the_model(mode: MergeMode, lack: str, tmp_path: Path) -> None:
    """Partial and whole rows, late and in time, deletes of all kinds, keys with and without a base row."""
    random, unset = Random(f"{SEED} {mode} {lack}"), UNSET.get(lack)
    rule = MergeRule(mode=mode, ordering_types=(pa.int64(),) if mode is EVENT else (), unset=unset)
    keys = [f"k{n:02d}" for n in range(24)]
    for number in range(60 if ALL else 25):
        base = {
            key: Entry(order=random.randrange(4), row={"id": key, **{name: f"{name}-base" for name in given}})
            for key in random.sample(keys, 16)
            for given in (random.sample("abc", random.randrange(4)) if unset is not None else "abc",)
        }
        blocks = random_blocks(random, keys)
        logs: dict[str, list[Entry]] = {}
        for _, entries in blocks:
            for key, entry in entries:
                logs.setdefault(key, []).append(entry)

        def filled_fold(blocks: Sequence[tuple[int | None, list[tuple[str, Entry]]]] = blocks) -> LogFold:
            fold = LogFold(rule, SCHEMA, GAPS if unset is None else None)
            for shape, entries in blocks:
                if shape is None:
                    fold.add_deletes(deletes(entries))
                else:
                    fold.add_rows(without_ordering(mode, keyed(entries, shape, unset)))
            return fold

        batch = without_ordering(mode, keyed(list(base.items()), None, unset))
        note = f"seed {SEED}, number {number}"
        rows, ledger = in_memory(rule, filled_fold(), batch)
        assert rows == modelled(mode, base, logs, unset), note
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
    spill = LogSpill(str(folder), rule, SCHEMA, 2, GAPS if rule.unset is None else None)
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


def test_the_last_row_stamps() -> None:
    """An older row behind a newer one gives its meta columns, in Hudi 0.15 and the payload class of 1.2."""
    schema = pa.schema([("id", pa.string()), ("_hoodie_commit_time", pa.string()), ("a", pa.string())])
    rule = MergeRule(mode=EVENT, ordering_types=(pa.int64(),), unset=Unset(values=NotGiven(stamps=True)))

    def batch(time: str, order: int) -> Keyed:
        row = {"id": "k", "_hoodie_commit_time": time, "a": time}
        return Keyed(rows=pa.Table.from_pylist([row], schema), keys=pa.array(["k"]), ordering=(pa.array([order]),))

    fold = LogFold(rule, schema)
    fold.add_rows(batch("2", 7))
    fold.add_rows(batch("3", 6))
    base = batch("1", 8)
    merge = SliceMerge(rule, fold.finish())
    (row,) = merge.changes(base).apply(base.rows).to_pylist()
    assert row == {"id": "k", "_hoodie_commit_time": "3", "a": "1"}


def test_deletes_win_whatever_their_ordering_values() -> None:
    """Over rows of the log and of the base file, in the payload classes of 1.2."""
    rule = MergeRule(mode=EVENT, ordering_types=(pa.int64(),), deletes_win=True)
    rows = keyed([("k", Entry(order=7, row={"id": "k"}))], None)
    fold = LogFold(rule, SCHEMA)
    fold.add_rows(rows)
    fold.add_deletes(deletes([("k", Entry(order=1, block=True))]))
    assert SliceMerge(rule, fold.finish()).changes(rows).deleted.tolist() == [0]
