"""The merge of a file slice: real Hudi's answers case by case, a row-by-row model, and the books.

Cases are written as in the notes: `b10` a base row of ordering value 10, `upd2` a row in a log, `isdel5` a log row
marked deleted, `delL5` / `delI5` a delete-block entry with LongWrapper / IntWrapper 5, `del0` one without an
ordering value (IntWrapper 0). The ordering column is a long unless said otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec.columns import at_least, ranks
from phantombase.timeline.errors import LedgerError, MalformedError
from phantombase.timeline.format.ledger import COUNTS, Identity, Ledger, total
from phantombase.timeline.format.log_deletes import Deletes
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.log_fold import EntryKind, LogFold, Winners
from phantombase.timeline.merge.rule import Keyed, MergeRule
from phantombase.timeline.merge.slice_merge import SliceMerge
from tests.support.builders import (
    COLUMN,
    INTEGER_0,
    ORDERING_COLUMNS,
    BaseRow,
    Java,
    Kind,
    LogEntry,
    Merged,
    OrderingColumn,
    reference_merge,
    same_java_class,
)
from tests.support.selection import ALL, deep, for_each

COMMIT, EVENT = MergeMode.COMMIT_TIME, MergeMode.EVENT_TIME
OVERWRITE_0X, EVENT_0X = MergeMode.OVERWRITE_WITH_LATEST_0X, MergeMode.EVENT_TIME_0X
EVENT_AVRO_0X = MergeMode.EVENT_TIME_AVRO_0X
LONG, INT = COLUMN["long"], COLUMN["int"]

Columns = Sequence[OrderingColumn]


def table(labels: Sequence[str]) -> pa.Table:
    return pa.table({"label": pa.array(labels, pa.string())})


def keyed(columns: Columns, keys: Sequence[str], values: Sequence[Sequence[Any]], labels: Sequence[str]) -> Keyed:
    """A batch; `values`: one tuple of ordering values a row."""
    return Keyed(
        rows=table(labels),
        keys=pa.array(keys, pa.string()),
        ordering=tuple(pa.array([v[i] for v in values], c.arrow) for i, c in enumerate(columns)),
    )


def deletes(keys: Sequence[str], values: Sequence[Sequence[Any] | None], types: Sequence[pa.DataType]) -> Deletes:
    """A delete block's entries; None: no ordering value, which is how IntWrapper 0 counts too."""
    integer_0 = [v is None or (types[0] == pa.int32() and tuple(v) == (0,)) for v in values]
    natural = pa.array(integer_0, pa.bool_())
    ordering = tuple(pa.array([None if v is None else v[i] for v in values], t) for i, t in enumerate(types))
    return Deletes(keys=pa.array(keys, pa.string()), ordering=() if all(integer_0) else ordering, natural=natural)


def rule_of(mode: MergeMode, columns: Columns, *, every_duplicate: bool = False) -> MergeRule:
    types = () if mode is COMMIT else tuple(c.arrow for c in columns)
    return MergeRule(mode=mode, ordering_types=types, every_duplicate=every_duplicate)


def run(rule: MergeRule, won: Winners, batches: Sequence[Keyed]) -> tuple[list[str], Ledger]:
    """Labels of the merged rows in order, and the books."""
    merge = SliceMerge(rule, won)
    out = [label for batch in batches for label in merge.changes(batch).apply(batch.rows).column("label").to_pylist()]
    _, inserts, _ = merge.inserts()
    out += inserts.column("label").to_pylist()
    return out, merge.ledger(len(out))


# --- cases that real Hudi has answered --------------------------------------------------------------------------


def case(
    mode: MergeMode, base: str, log: str, column: OrderingColumn = LONG, *, every_duplicate: bool = False
) -> list[str]:
    """The rows left of one key; `base`: `b10` or `b10 b10`, `log`: entries, each a block of its own."""
    columns = () if mode is COMMIT else (column,)
    rule = rule_of(mode, columns, every_duplicate=every_duplicate)
    fold = LogFold(rule, table([]).schema)
    for text in log.split():
        add_entry(fold, columns, text)
    bases = base.split()
    values = [(value_of(b[1:]),) for b in bases]
    return run(rule, fold.finish(), [keyed(columns, ["k"] * len(bases), values, bases)] if bases else [])[0]


def value_of(text: str) -> Any:
    return None if text == "null" else Decimal(text) if "." in text else int(text)


def add_entry(fold: LogFold, columns: Columns, text: str) -> None:
    if text.startswith("del"):
        wrapper = {"L": pa.int64(), "I": pa.int32(), "D": pa.decimal128(30, 15)}.get(text[3])
        entry = None if wrapper is None else (value_of(text[4:]),)
        fold.add_deletes(deletes(["k"], [entry], [wrapper] if wrapper else []))
        return
    marked = text.startswith("isdel")
    batch = keyed(columns, ["k"], [(value_of(text.removeprefix("isdel").removeprefix("upd")),)], [text])
    fold.add_rows(replace(batch, deleted=np.array([marked])))


GONE: list[str] = []
HAND_WRITTEN = [
    # base, log, 0.15 Default, 0.15 Overwrite, 1.2 commit time, 1.2 event time (None: Hudi fails)
    ("b10", "del0 delL5", GONE, GONE, GONE, GONE),
    ("b10", "delL5 del0", GONE, GONE, GONE, GONE),
    ("b4", "delL5 delL3", GONE, GONE, GONE, GONE),
    ("b4", "delL3 delL5", GONE, GONE, GONE, GONE),
    ("b10", "delL5", GONE, GONE, GONE, ["b10"]),
    ("b10", "del0 upd2", ["b10"], ["upd2"], ["upd2"], ["b10"]),
    ("b4", "delL5 upd3", ["b4"], ["upd3"], ["upd3"], GONE),
    ("b4", "delL5 upd6", ["upd6"], ["upd6"], ["upd6"], ["upd6"]),
    ("b10", "del0 isdel5", ["b10"], GONE, GONE, ["b10"]),
    ("b10", "isdel5", ["b10"], GONE, GONE, ["b10"]),
    ("b5", "isdel5", GONE, GONE, GONE, GONE),
    ("b2", "isdel5 upd3", GONE, GONE, ["upd3"], GONE),
    ("b2", "isdel5 upd6", ["upd6"], ["upd6"], ["upd6"], ["upd6"]),
    ("b4", "isdel5 delL3", GONE, GONE, GONE, GONE),
    ("b2", "upd5 isdel3", ["upd5"], ["upd5"], GONE, ["upd5"]),
    ("b2", "delL5 isdel3 upd4", ["upd4"], ["upd4"], ["upd4"], GONE),
    ("b2", "upd7 delI5", GONE, GONE, GONE, None),
    ("", "isdel5", GONE, GONE, GONE, GONE),
    ("", "delL5 upd3", ["upd3"], ["upd3"], ["upd3"], GONE),
    # The table of hudi-format.md section 6.3.
    ("b1", "upd0", ["b1"], ["upd0"], ["upd0"], ["b1"]),
    ("b1", "upd1", ["upd1"], ["upd1"], ["upd1"], ["upd1"]),
    ("b1", "upd2 upd1", ["upd2"], ["upd2"], ["upd1"], ["upd2"]),
    ("b1", "del0", GONE, GONE, GONE, GONE),
    ("b1", "upd2 del0", GONE, GONE, GONE, GONE),
    ("b1", "delL0", GONE, GONE, GONE, ["b1"]),
    ("b1", "upd2 delL0", ["upd2"], ["upd2"], GONE, ["upd2"]),
    ("b1", "upd2 delL1", ["upd2"], ["upd2"], GONE, ["upd2"]),
    ("b1", "upd2 delL2", GONE, GONE, GONE, GONE),
    # A null ordering value in the base loses in 0.15 and by commit time.
    ("bnull", "upd1", ["upd1"], ["upd1"], ["upd1"], None),
    ("bnull", "isdel1", GONE, GONE, GONE, None),
]
ANSWERS = [
    (mode, base, log, row[i])
    for base, log, *row in HAND_WRITTEN
    for i, mode in enumerate((EVENT_0X, OVERWRITE_0X, COMMIT, EVENT))
    if row[i] is not None
]


@for_each(ANSWERS)
def test_as_hudi_answered(mode: MergeMode, base: str, log: str, expected: list[str]) -> None:
    """Hand-written log entries end as real Hudi reads and compacts them."""
    assert case(mode, base, log) == expected


@for_each(
    [
        ("b10", "delI0", GONE),  # typed or not: Integer 0
        ("b10", "isdel0", GONE),
        ("b10", "isdelnull", GONE),
        ("b10", "delI5", ["b10"]),
        ("b5", "delI5", GONE),
        ("b1", "updnull", ["b1"]),
        ("b1", "upd1 updnull", ["upd1"]),
        ("b-5", "updnull upd-1", ["updnull"]),
        ("bnull", "upd-1", ["bnull"]),
        ("bnull", "upd0", ["upd0"]),
    ]
)
def test_int_column_counts_null_as_zero(base: str, log: str, expected: list[str]) -> None:
    """Under EVENT_TIME_ORDERING on an int column null is 0, and a delete of value 0 has no ordering value."""
    assert case(EVENT, base, log, INT) == expected


@pytest.mark.parametrize("mode", [OVERWRITE_0X, EVENT_0X])
def test_hudi_0x_int_column(mode: MergeMode) -> None:
    """In 0.15 a typed delete of value 0 on an int column deletes whatever came before; another one compares."""
    assert case(mode, "", "upd7 delI0", INT) == GONE
    assert case(mode, "", "upd7 delI5", INT) == ["upd7"]


def test_hudi_0x_null_in_the_base_is_not_zero() -> None:
    """In 0.15 any log row beats a base row without an ordering value, also one below 0 on an int column."""
    assert case(EVENT_0X, "bnull", "upd-1", INT) == ["upd-1"]
    assert case(EVENT_0X, "bnull", "isdel-1", INT) == GONE


def test_rows_marked_deleted_of_flinks_payload() -> None:
    """They delete any base row; among log entries their ordering values count."""
    assert case(EVENT_AVRO_0X, "b10", "isdel5") == GONE
    assert case(EVENT_AVRO_0X, "b10", "upd5") == ["b10"]
    assert case(EVENT_AVRO_0X, "b1", "upd5 isdel3") == ["upd5"]
    assert case(EVENT_0X, "b10", "isdel5") == ["b10"]


@for_each(
    [
        ("upd3.00 upd-1.00", ["upd-1.00"]),
        ("upd-1.00 upd3.00", ["upd-1.00"]),
        ("upd-1.00 upd-5.00", ["upd-1.00"]),
        ("upd3.00 upd1.00", ["upd3.00"]),
        ("upd3.00 delD1.00", GONE),
    ]
)
def test_hudi_0x_compares_decimals_by_their_bytes(log: str, expected: list[str]) -> None:
    """0.15 takes negative decimals for the greatest among log entries; a typed delete always takes effect."""
    for mode in (OVERWRITE_0X, EVENT_0X):
        assert case(mode, "", log, COLUMN["decimal"]) == expected


def test_hudi_0x_compares_decimals_with_the_base_by_value() -> None:
    """Against the base 0.15 knows that -1.00 is less than 3.00."""
    assert case(EVENT_0X, "b3.00", "upd-1.00", COLUMN["decimal"]) == ["b3.00"]


@for_each(product([OVERWRITE_0X, EVENT_0X, EVENT], ORDERING_COLUMNS))
def test_typed_delete_against_a_greater_row(mode: MergeMode, column: OrderingColumn) -> None:
    """A typed delete loses to a greater row before it, except where its Java class is not the rows': 0.15's text
    and decimals, the wrapper of dates everywhere."""
    low, high = column.pool[-2:] if column.name not in ("double", "float") else column.pool[1:3]
    rule = rule_of(mode, [column])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(keyed([column], ["k"], [(high,)], ["high"]))
    fold.add_deletes(deletes(["k"], [(low,)], [column.wrapper_arrow]))
    unordered = column.name == "date" or (mode is not EVENT and column.name in ("string", "decimal"))
    assert run(rule, fold.finish(), [])[0] == ([] if unordered else ["high"])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(keyed([column], ["k"], [(low,)], ["low"]))
    fold.add_deletes(deletes(["k"], [(high,)], [column.wrapper_arrow]))
    assert run(rule, fold.finish(), [])[0] == []


@pytest.mark.parametrize("mode", [OVERWRITE_0X, EVENT_0X, EVENT])
def test_rows_hold_dates_as_day_numbers(mode: MergeMode) -> None:
    """With these in an int wrapper a delete of an older day loses, in 0.15 to log rows only (seen in 0.15.0, 1.2.0)."""
    rule = rule_of(mode, [COLUMN["date"]])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(keyed([COLUMN["date"]], ["a", "b"], [(5,), (5,)], ["a", "b"]))
    fold.add_deletes(deletes(["a", "b", "c", "d"], [(4,), (6,), (4,), (6,)], [pa.int32()]))
    base = keyed([COLUMN["date"]], ["c", "d"], [(5,), (5,)], ["c", "d"])
    assert sorted(run(rule, fold.finish(), [base])[0]) == (["a", "c"] if mode is EVENT else ["a"])


@pytest.mark.parametrize("mode", [OVERWRITE_0X, EVENT_0X, EVENT])
def test_without_ordering_fields_the_latest_wins(mode: MergeMode) -> None:
    """With no ordering field every value is Integer 0: ties, and deletes that always delete."""
    rule = rule_of(mode, [])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(keyed([], ["a", "b", "c", "d"], [()] * 4, ["a1", "b1", "c1", "d1"]))
    fold.add_rows(replace(keyed([], ["a", "b"], [()] * 2, ["a2", "b2"]), deleted=np.array([False, True])))
    fold.add_deletes(deletes(["c", "d"], [None, None], []))
    fold.add_rows(keyed([], ["d"], [()], ["d2"]))
    base = keyed([], ["a", "b", "c", "d", "e"], [()] * 5, ["a0", "b0", "c0", "d0", "e0"])
    assert run(rule, fold.finish(), [base])[0] == ["a2", "d2", "e0"]


# --- duplicates in the base -------------------------------------------------------------------------------------


DUPLICATES = (
    ("upd2", False, ["upd2", "b1"]),
    ("upd2", True, ["upd2", "upd2"]),
    ("del0", False, ["b1"]),
    ("del0", True, GONE),
)


@for_each((mode, *one) for mode in MergeMode for one in DUPLICATES)
def test_duplicate_base_rows(mode: MergeMode, log: str, every_duplicate: bool, expected: list[str]) -> None:
    """Readers and 1.2's compaction change the first row of a duplicated key, 0.15's compaction every one."""
    assert case(mode, "b1 b1", log, every_duplicate=every_duplicate) == expected


def test_a_duplicate_behind_a_kept_row_is_not_touched() -> None:
    """The log entry is used up by the first row of its key, also where that row wins."""
    assert case(EVENT, "b10 b1", "upd5") == ["b10", "b1"]
    assert case(EVENT_0X, "b10 b1", "upd5", every_duplicate=True) == ["b10", "upd5"]


def test_duplicates_in_different_batches() -> None:
    """Which row of a key is the first does not depend on where batches end."""
    rule = rule_of(EVENT, [LONG])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(keyed([LONG], ["k"], [(5,)], ["log"]))
    won = fold.finish()
    batches = [keyed([LONG], ["k"], [(1,)], [label]) for label in ("first", "second")]
    assert run(rule, won, batches)[0] == ["log", "second"]


# --- several ordering fields ------------------------------------------------------------------------------------


def two_fields(
    *rows: tuple[int | None, int | None, str], base: tuple[int | None, int | None] | None = None
) -> list[str]:
    columns = [INT, LONG]
    rule = rule_of(EVENT, columns)
    fold = LogFold(rule, table([]).schema)
    for a, b, label in rows:
        if label == "del":
            fold.add_deletes(deletes(["k"], [(a, b)], [pa.int32(), pa.int64()]))
        else:
            fold.add_rows(keyed(columns, ["k"], [(a, b)], [label]))
    return run(rule, fold.finish(), [keyed(columns, ["k"], [base], ["base"])] if base else [])[0]


def test_ordering_fields_compare_in_declared_order() -> None:
    """The first field decides, the second where the first is equal; ties go to the later."""
    assert two_fields((2, 1, "x"), (1, 9, "y")) == ["x"]
    assert two_fields((1, 9, "x"), (2, 1, "y")) == ["y"]
    assert two_fields((1, 2, "x"), (1, 1, "y")) == ["x"]
    assert two_fields((1, 2, "x"), (1, 2, "y")) == ["y"]
    assert two_fields((1, 2, "x"), base=(1, 3)) == ["base"]
    assert two_fields((1, 3, "x"), base=(1, 3)) == ["x"]
    assert two_fields((1, 2, "x"), (1, 1, "del")) == ["x"]
    assert two_fields((1, 2, "x"), (1, 2, "del")) == []


def test_null_in_a_tuple() -> None:
    """Null in an int field is 0; a field behind the one that decides is never looked at."""
    assert two_fields((None, 9, "x"), base=(1, 1)) == ["base"]
    assert two_fields((None, 9, "x"), base=(0, 1)) == ["x"]
    assert two_fields((2, None, "x"), base=(1, 1)) == ["x"]


def test_a_tuple_of_zeros_is_no_natural_delete() -> None:
    """Only a lone Integer 0 stands for "no ordering value"."""
    assert two_fields((0, 0, "del"), base=(1, 1)) == ["base"]
    rule = rule_of(EVENT, [INT, INT])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(replace(keyed([INT, INT], ["k"], [(0, 0)], ["x"]), deleted=np.array([True])))
    assert run(rule, fold.finish(), [keyed([INT, INT], ["k"], [(0, 1)], ["base"])])[0] == ["base"]


def test_tuples_with_negative_and_large_numbers() -> None:
    """(1, -5) is greater than (0, 3), and (20, 10**18) than (1, 10**18)."""
    assert two_fields((1, -5, "x"), (0, 3, "y")) == ["x"]
    assert two_fields((20, 10**18, "x"), (1, 10**18, "y")) == ["x"]


def test_a_delete_of_another_class_deletes() -> None:
    """IntWrapper 5 on a long column: taken unconditionally, and nothing but a row behind it undoes that. Hudi 1.x would
    let LongWrapper 3 behind it replace it and then lose to the base row, but cannot compare the first with a base row
    at all: its read fails (docs/internals/hudi-format.md 6.3)."""
    assert case(EVENT, "b10", "delI5") == []
    assert case(EVENT, "b10", "delI5 delL3") == []


# --- the model --------------------------------------------------------------------------------------------------


class Slice:
    """A random base and log, as the product takes them and as the model does."""

    def __init__(self, data: st.DataObject, mode: MergeMode, columns: Columns, *, nulls: bool) -> None:
        self._draw = data.draw
        self._mode = mode
        self._columns = columns
        self._nulls = nulls
        self._labels = itertools.count()
        self.rule = rule_of(
            mode, columns, every_duplicate=mode in (OVERWRITE_0X, EVENT_0X, EVENT_AVRO_0X) and data.draw(st.booleans())
        )
        self._fold = LogFold(self.rule, table([]).schema)
        self.log: list[tuple[str, LogEntry]] = []
        self.base: list[BaseRow] = []
        self.odd: set[str] = set()
        for _ in range(data.draw(st.integers(0, 6))):
            (self._rows if data.draw(st.booleans()) else self._deletes)()
        self.won = self._fold.finish()
        self.batches = self._base()

    def _values(self, nulls: bool) -> tuple[Any, ...]:
        return tuple(
            self._draw(st.sampled_from((*c.pool, None) if nulls and self._nulls else c.pool)) for c in self._columns
        )

    def _java(self, values: Sequence[Any]) -> Java:
        if not self._columns:
            return INTEGER_0
        each = tuple(c.row_value(v, self._mode) for c, v in zip(self._columns, values, strict=True))
        return each[0] if len(each) == 1 else ("Array", each)

    def _draw_keys(self) -> list[str]:
        return self._draw(st.lists(st.sampled_from("abcd"), max_size=6))

    def _rows(self) -> None:
        keys = self._draw_keys()
        values = [self._values(True) for _ in keys]
        labels = [f"log{next(self._labels)}" for _ in keys]
        marked = [self._draw(st.booleans()) for _ in keys]
        batch = keyed([] if self._mode is COMMIT else self._columns, keys, values, labels)
        self._fold.add_rows(replace(batch, deleted=np.array(marked, np.bool_)))
        for key, value, mark, label in zip(keys, values, marked, labels, strict=True):
            kind = Kind.DELETED_ROW if mark else Kind.ROW
            null = any(v is None for v in value)
            self.log.append((key, LogEntry(kind=kind, order=self._java(value), null=null, label=label)))

    def _deletes(self) -> None:
        keys = self._draw_keys()
        mismatched = len(self._columns) == 1 and self._draw(st.booleans())
        column = self._columns[0] if self._columns else INT
        other = LONG if column.java == "Integer" and column.name == "int" else INT
        natural = not self._columns or self._draw(st.booleans())
        entries: list[tuple[Any, ...] | None] = []
        for key in keys:
            if natural or self._draw(st.integers(0, 3)) == 0:
                entries.append(None)
                order = INTEGER_0
            elif mismatched and column.name != "date":
                value = self._draw(st.sampled_from([v for v in other.pool if v]))
                entries.append((value,))
                order = other.delete_value(value)
            else:
                values = self._values(False)
                entries.append(values)
                each = tuple(c.delete_value(v) for c, v in zip(self._columns, values, strict=True))
                order = each[0] if len(each) == 1 else ("Array", each)
                if order == INTEGER_0:
                    entries[-1] = None
            self._note_odd(key, order)
            self.log.append((key, LogEntry(kind=Kind.DELETE, order=order)))
        types = (
            [other.wrapper_arrow] if mismatched and column.name != "date" else [c.wrapper_arrow for c in self._columns]
        )
        self._fold.add_deletes(deletes(keys, entries, types))

    def _note_odd(self, key: str, order: Java) -> None:
        """The product takes a delete of another class for a natural one (see the test above)."""
        if self._mode is EVENT and order != INTEGER_0 and self._columns:
            sample = self._java([c.pool[0] for c in self._columns])
            if not same_java_class(order, sample):
                self.odd.add(key)

    def _base(self) -> list[Keyed]:
        rows = [(key, self._values(True)) for key in self._draw(st.lists(st.sampled_from("abcdef"), max_size=8))]
        self.base = [
            BaseRow(key=key, order=self._java(value), null=None in value, label=f"base{i}")
            for i, (key, value) in enumerate(rows)
        ]
        batches, at = [], 0
        while at < len(rows):
            end = at + self._draw(st.integers(1, 4))
            part, labels = rows[at:end], [r.label for r in self.base[at:end]]
            batches.append(keyed(self._columns, [k for k, _ in part], [v for _, v in part], labels))
            at = end
        return batches

    def expected(self) -> Merged:
        return reference_merge(self._mode, self.base, self.log, every_duplicate=self.rule.every_duplicate)

    def keys_by_label(self) -> dict[str, str]:
        return {r.label: r.key for r in self.base} | {e.label: key for key, e in self.log}


MULTIPLE = (
    [replace(INT, pool=(0, 1, 2)), replace(LONG, pool=(0, 1, 2))],
    [COLUMN["string"], COLUMN["decimal"]],
    [COLUMN["decimal"], COLUMN["string"], replace(INT, pool=(0, 1, 2))],
)
SHAPES = [
    *(
        (pytest.param if mode in (EVENT, EVENT_0X) or column.name in ("int", "string", "decimal") else deep)(
            mode, [column], id=f"{mode.name}-{column.name}"
        )
        for mode in (EVENT, EVENT_0X, EVENT_AVRO_0X, OVERWRITE_0X)
        for column in ORDERING_COLUMNS
    ),
    *(pytest.param(EVENT, columns, id=f"EVENT_TIME-{'-'.join(c.name for c in columns)}") for columns in MULTIPLE),
    *(pytest.param(mode, [], id=f"{mode.name}-none") for mode in (EVENT, EVENT_0X, EVENT_AVRO_0X, OVERWRITE_0X)),
    pytest.param(COMMIT, [LONG], id="COMMIT_TIME"),
]


@pytest.mark.parametrize(("mode", "columns"), SHAPES)
@settings(max_examples=60 if ALL else 12)
@given(data=st.data())
def test_every_slice_merges_as_in_the_model(mode: MergeMode, columns: Columns, data: st.DataObject) -> None:
    """Random slices: same rows in the same order as the model, and books that balance and agree with it."""
    # Nulls of a date and inside tuples of other types than int: the product and Hudi differ, see the report.
    nulls = len(columns) == 1 and not (columns[0].name == "date" and mode is EVENT)
    slice_ = Slice(data, mode, columns, nulls=nulls)
    expected = slice_.expected()
    rows, ledger = run(slice_.rule, slice_.won, slice_.batches)
    key_of, apart = slice_.keys_by_label(), expected.failed | slice_.odd
    assert [r for r in rows if key_of[r] not in apart] == [label for key, label in expected.rows if key not in apart]

    ledger.check(
        footer_rows_in=len(slice_.base), header_entries=len(slice_.log), footer_rows_out=len(rows), where="slice"
    )
    assert ledger.log_keys == len({key for key, _ in slice_.log})
    if not apart:
        counts = ("untouched", "kept", "replaced", "deleted", "duplicate_hits", "inserts", "deletes_of_absent")
        assert {c: getattr(ledger, c) for c in counts} == {c: getattr(expected, c) for c in counts}


@settings(deadline=None)
@given(
    st.lists(st.tuples(*(st.sampled_from((*c.pool, None)) for c in (COLUMN["string"], COLUMN["double"]))), min_size=2)
)
def test_ranks_and_row_by_row_comparison_agree(rows: list[tuple[Any, Any]]) -> None:
    """`ranks` orders rows as `at_least` compares them pair by pair."""
    columns = [COLUMN["string"], COLUMN["double"]]
    ordering = tuple(pa.array([r[i] for r in rows], c.arrow) for i, c in enumerate(columns))
    order = ranks(ordering, len(rows))
    left, right = np.arange(len(rows)), np.roll(np.arange(len(rows)), 1)
    pairs = at_least(
        tuple(o.take(pa.array(left)) for o in ordering), tuple(o.take(pa.array(right)) for o in ordering), len(rows)
    )
    assert (pairs == (order[left] >= order[right])).all()


# --- what a fold keeps ------------------------------------------------------------------------------------------


def test_winners_are_in_order_of_first_appearance_with_live_rows_only() -> None:
    """Keys stand as they first appeared, deletes included; only winning rows stay in memory."""
    rule = rule_of(EVENT, [LONG])
    fold = LogFold(rule, table([]).schema)
    fold.add_rows(keyed([LONG], ["c", "a", "c"], [(1,), (1,), (2,)], ["c1", "a1", "c2"]))
    fold.add_deletes(deletes(["b", "a"], [None, None], []))
    fold.add_rows(replace(keyed([LONG], ["e", "d"], [(1,), (1,)], ["e1", "d1"]), deleted=np.array([True, False])))
    won = fold.finish()
    assert won.keys.to_pylist() == ["c", "a", "b", "e", "d"]
    assert won.entries == 7
    row, deleted_row, delete = EntryKind.ROW, EntryKind.DELETED_ROW, EntryKind.DELETE
    assert won.kinds.tolist() == [row, delete, delete, deleted_row, row]
    assert won.rows.column("label").to_pylist() == ["c2", "d1"]
    assert won.row.tolist() == [0, -1, -1, -1, 1]


def test_an_empty_log_changes_nothing() -> None:
    """No entries: the base comes out as it went in."""
    rule = rule_of(EVENT, [LONG])
    won = LogFold(rule, table([]).schema).finish()
    rows, ledger = run(rule, won, [keyed([LONG], ["a", "a"], [(1,), (2,)], ["x", "y"])])
    assert rows == ["x", "y"]
    assert (ledger.untouched, ledger.log_entries, ledger.rows_out) == (2, 0, 2)


def test_a_base_without_log_entries_is_counted_too() -> None:
    """Where no key needs to be looked up the books still know the rows."""
    rule = rule_of(EVENT, [LONG])
    merge = SliceMerge(rule, LogFold(rule, table([]).schema).finish())
    merge.untouched(2)
    merge.ledger(2).check(footer_rows_in=2, header_entries=0, footer_rows_out=2, where="slice")


def test_log_entries_without_a_key_are_malformed() -> None:
    """A null record key names no row."""
    fold = LogFold(rule_of(EVENT, [LONG]), table([]).schema)
    with pytest.raises(MalformedError, match="without a record key"):
        fold.add_deletes(deletes([None], [None], []))  # type: ignore[list-item]


# --- the books --------------------------------------------------------------------------------------------------

BOOKS = Ledger(
    base_rows=10,
    untouched=4,
    kept=1,
    replaced=3,
    deleted=2,
    duplicate_hits=1,
    log_entries=12,
    log_keys=9,
    update_keys=6,
    update_keys_in_base=4,
    delete_keys_in_base=1,
    inserts=2,
    deletes_of_absent=2,
    rows_out=10,
)


def check(books: Ledger, **changes: int) -> None:
    footers = {"footer_rows_in": 10, "header_entries": 12, "footer_rows_out": 10, **changes}
    books.check(**footers, where="p/f")


def test_books_that_balance() -> None:
    """The ledger above is sound, so what follows tests one fault each."""
    check(BOOKS)


@for_each(product(COUNTS, [-1, 1]))
def test_any_wrong_count_is_found(name: str, by: int) -> None:
    """One more or one less in any single count breaks some equation, and the error says where."""
    with pytest.raises(LedgerError, match="does not balance") as failure:
        check(replace(BOOKS, **{name: getattr(BOOKS, name) + by}))
    assert failure.value.path == "p/f"


@for_each([f.name for f in fields(Identity)])
def test_any_wrong_row_is_found(name: str) -> None:
    """Books whose counts agree while the rows do not."""
    right = Identity(base=10, removed=3, added=2**64 - 1, out=6)
    check(replace(BOOKS, identity=right))
    with pytest.raises(LedgerError, match="hash of the rows out"):
        check(replace(BOOKS, identity=replace(right, **{name: getattr(right, name) + 1})))


@pytest.mark.parametrize("name", ["footer_rows_in", "header_entries", "footer_rows_out"])
def test_any_wrong_footer_is_found(name: str) -> None:
    """Files that hold other counts than the books are found, one end at a time."""
    right = {"footer_rows_in": 10, "header_entries": 12, "footer_rows_out": 10}
    with pytest.raises(LedgerError, match=r"footer|block headers"):
        check(BOOKS, **{name: right[name] + 1})


@for_each(
    [
        ("base rows = untouched", {"untouched": 5, "base_rows": 10}),
        ("rows out = base rows", {"inserts": 3, "update_keys": 7, "deletes_of_absent": 1}),
        ("update keys = in base", {"update_keys": 5, "deletes_of_absent": 3}),
        ("delete keys = in base", {"deletes_of_absent": 3}),
        ("touched base rows", {"duplicate_hits": 0}),
        ("more keys than entries", {"log_keys": 13, "update_keys": 6, "deletes_of_absent": 6}),
    ]
)
def test_each_equation_stands_alone(equation: str, changes: dict[str, Any]) -> None:
    """Each equation finds a fault that the others do not see."""
    with pytest.raises(LedgerError, match=equation):
        check(replace(BOOKS, **changes))


def test_books_add_up_and_travel() -> None:
    """Totals are sums; JSON goes both ways, knows newer fields to ignore and refuses missing ones."""
    assert total([BOOKS, BOOKS]).rows_out == 20
    assert BOOKS.superseded == 3
    assert Ledger.from_json({**BOOKS.to_json(), "new": 1}) == BOOKS
    with pytest.raises(KeyError):
        Ledger.from_json({"base_rows": 1})


def test_rows_that_all_win_are_not_copied() -> None:
    """Each key once, in one block: the rows stay where they were decoded. Those of several blocks become one piece."""

    def folded(*blocks: Keyed) -> pa.ChunkedArray:
        fold = LogFold(rule_of(COMMIT, []), table([]).schema)
        for block in blocks:
            fold.add_rows(block)
        return fold.finish().rows.column("label")

    first, second = keyed([], ["a", "b"], [(), ()], ["x", "y"]), keyed([], ["c"], [()], ["z"])
    (kept,) = folded(first).chunks
    assert kept.buffers()[2].address == first.rows.column("label").chunk(0).buffers()[2].address
    both = folded(first, second)
    assert (both.num_chunks, both.to_pylist()) == (1, ["x", "y", "z"])
