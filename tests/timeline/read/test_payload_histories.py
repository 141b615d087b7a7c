"""Random histories of tables of every merge rule: whatever the rows are, all ways of reading them agree.

Upserts, deletes, partial updates, plans, compactions and log compactions, and after each the snapshot: from memory and
spilled, in small batches, with filters and columns. A compaction changes no row; the change feed replays the history.
What the rows must be is judged elsewhere, by real Hudi (`tests/hudi/cases/test_payloads.py` and others)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import compact, schedule, writer
from phantombase.timeline.filter.possible import bound, matching
from phantombase.timeline.filter.tree import parse_filter
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.read import table_read
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.change_feeds import MERGE_LOGS, feed, moments_of, replay, state
from tests.support.compare_rows import assert_same_rows
from tests.support.drawn_partitions import random_filter
from tests.support.places import SEED
from tests.support.selection import ALL, deep
from tests.support.written_tables import seed_note

EVENT, COMMIT = MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME
_PAYLOAD = "hoodie.compaction.payload.class"
_CLASSES = "org.apache.hudi.common.model."
_CUSTOM = {
    "hoodie.record.merge.mode": "CUSTOM",
    "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
}
_MODE = "hoodie.table.partial.update.mode"
_UNAVAILABLE = "hoodie.record.merge.property.hoodie.write.partial.update.unavailable.value"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of table. `merges`: it takes partial updates. `null`: texts that mean "not given"; `marks`: it may have
    rows that are marked deleted."""

    version: int
    mode: MergeMode = EVENT
    properties: Mapping[str, str] | None = None
    merges: bool = False
    null: str | None = None
    marks: bool = True


CASES: Mapping[str, Case] = {
    "9 event time": Case(version=9, merges=True),
    "9 commit time": Case(version=9, mode=COMMIT, merges=True),
    "8 event time": Case(version=8, merges=True),
    "6 event time": Case(version=6),
    "9 ignore defaults": Case(version=9, properties={_MODE: "IGNORE_DEFAULTS"}),
    "9 ignore defaults, commit time": Case(version=9, mode=COMMIT, properties={_MODE: "IGNORE_DEFAULTS"}),
    "9 fill": Case(version=9, properties={_MODE: "FILL_UNAVAILABLE", _UNAVAILABLE: "?"}, null="?"),
    "8 partial": Case(version=8, properties={_PAYLOAD: f"{_CLASSES}PartialUpdateAvroPayload", **_CUSTOM}, marks=False),
    "8 non-defaults": Case(
        version=8, properties={_PAYLOAD: f"{_CLASSES}OverwriteNonDefaultsWithLatestAvroPayload", **_CUSTOM}, marks=False
    ),
    "6 partial": Case(version=6, properties={_PAYLOAD: f"{_CLASSES}PartialUpdateAvroPayload"}, marks=False),
    "6 flink": Case(version=6, properties={_PAYLOAD: f"{_CLASSES}EventTimeAvroPayload"}),
}
USUAL = ("9 event time", "9 fill", "8 partial")
KEYS = 30


@dataclass(kw_only=True)
class History:
    """A table and what happens to it."""

    path: str
    case: Case
    chance: random.Random
    number: int = 0
    marked: bool = False
    buckets: int = 1
    log_format: LogFormat = LogFormat.PARQUET

    @staticmethod
    def begun(path: Path, case: Case, chance: random.Random) -> History:
        """A table with rows for every second key."""
        path.mkdir()
        kind = NewTable(
            name="t",
            version=case.version,
            key_fields=("id",),
            ordering_fields=("ts",),
            merge_mode=case.mode,
            metadata_table=case.version > 6 and chance.random() < 0.3,
        )
        create_table(LocalStorage(str(path)), kind)
        properties, given = path / ".hoodie/hoodie.properties", case.properties or {}
        lines = [line for line in properties.read_text().splitlines() if line.partition("=")[0] not in given]
        properties.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in given.items())]) + "\n")
        made = History(
            path=str(path),
            case=case,
            chance=chance,
            marked=case.marks and chance.random() < 0.5,
            buckets=chance.choice([1, 2]),
            log_format=chance.choice(list(LogFormat)),
        )
        made._write(made._rows(range(0, KEYS, 2), marks=False))
        return made

    def _value(self, value: Any) -> Any:
        chance = self.chance.random()
        if self.case.null is not None and isinstance(value, str) and chance < 0.4:
            return self.case.null
        return None if chance < (0.15 if self.case.merges else 0.5) else value

    def _rows(self, numbers: Any, *, marks: bool = True) -> pa.Table:
        self.number += 1
        made = [
            {
                "id": f"k{k:02d}",
                "a": self._value(f"a{self.number}"),
                "b": self._value(f"b{self.number}"),
                "n": self._value(self.number),
                "s": self._value({"x": self.number, "y": self._value(f"y{k}")}),
                "ts": self.chance.randrange(5),
                "_hoodie_is_deleted": marks and self.chance.random() < 0.2,
            }
            for k in numbers
        ]
        nested = pa.struct([("x", pa.int64()), ("y", pa.string())])
        texts = [(name, pa.string()) for name in ("id", "a", "b")]
        fields = [*texts, ("n", pa.int32()), ("s", nested), ("ts", pa.int64()), ("_hoodie_is_deleted", pa.bool_())]
        rows = pa.Table.from_pylist(made, schema=pa.schema(fields))
        return rows if self.marked else rows.drop_columns(["_hoodie_is_deleted"])

    def _some(self) -> list[int]:
        return sorted(self.chance.sample(range(KEYS), self.chance.randint(1, 12)))

    def _write(self, rows: pa.Table) -> None:
        writer(rows).option(log_format=self.log_format).buckets(self.buckets).upsert(self.path)

    def read(self, **options: Any) -> pa.Table:
        """A snapshot; without the names of files, which a compaction changes."""
        rows = read_table(Table.open(self.path), ReadOptions(**options))
        return rows.drop_columns([name for name in rows.column_names if name == "_hoodie_file_name"])

    # --- steps -----------------------------------------------------------------------------------------------------

    def upsert(self) -> None:
        """Some keys, some of them twice."""
        keys = self._some()
        self._write(self._rows([*keys, *self.chance.sample(keys, len(keys) // 3)]))

    def delete(self) -> None:
        """By keys."""
        keys = pa.table({"id": [f"k{k:02d}" for k in self._some()[:6]]})
        writer(keys).buckets(self.buckets).delete(self.path)

    def merge(self) -> None:
        """Some columns of the keys that are there. Hudi does not read such updates beside marks of deletion."""
        columns = self.chance.choice([("a",), ("b",), ("a", "n"), ("n", "s")])
        if self.case.merges and not self.marked:
            needed = ("ts",) if self.case.mode is EVENT else ()
            rows = self._rows(self._some(), marks=False).select(["id", *columns, *needed])
            described = writer(rows).option(log_format=self.log_format).buckets(self.buckets)
            described.merge_into(self.path, update=[*columns, *needed])

    def compact(self) -> None:
        """What is pending, else everything."""
        if not Table.open(self.path).load_timeline().pending_compactions:
            schedule(self.path, sole_writer=True)
        compact(self.path)

    def compact_logs(self) -> None:
        """Log compactions, where the version has them."""
        if self.case.version > 6:
            schedule(self.path, MERGE_LOGS, sole_writer=True)
            compact(self.path)

    def plan(self) -> None:
        """Left pending."""
        schedule(self.path, sole_writer=True)


def spilled(rows: Callable[[], pa.Table]) -> pa.Table:
    """Each block of log entries is spilled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SliceRules, "fold_bytes", 700.0)
        return rows()


def check_reads(history: History) -> None:
    """All ways of reading the snapshot."""
    whole, chance = history.read(), history.chance
    assert_same_rows(spilled(history.read), whole)
    assert_same_rows(history.read(batch_rows=3), whole)
    assert_same_rows(spilled(lambda: history.read(batch_rows=3)), whole)
    plain = whole.drop_columns([n for n in whole.column_names if n.startswith("_hoodie") or n == "s"])
    drawn = [random_filter(chance, plain) for _ in range(2)]
    for text in (*drawn, f"id = 'k{chance.randrange(KEYS):02d}'", "a is null", "n is null and b is not null"):
        wanted = matching(bound(parse_filter(text), whole.schema), whole)
        assert_same_rows(history.read(filter=text), wanted)
        assert_same_rows(spilled(partial(history.read, filter=text, columns=("b",))), wanted.select(["b"]))
    for columns in (("n",), ("s", "a"), ("_hoodie_commit_time",)):
        assert_same_rows(history.read(columns=columns), whole.select(columns))


def check_feed(history: History) -> None:
    """Write by write, at once, and net."""
    table = Table.open(history.path)
    moments = moments_of(table)
    states = {moment: state(table, moment) for moment in moments}
    for begin, end in [*pairwise(moments), (moments[0], moments[-1])]:
        for net in (False, True):
            assert replay(feed(table, begin, end, net=net), states[begin]) == states[end]


@pytest.mark.parametrize("name", [name if name in USUAL else deep(name) for name in CASES])
def test_all_reads_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See the module."""
    monkeypatch.setattr(table_read, "LEAST_FILES", 1)
    for round_ in range(6 if ALL else 1):
        with seed_note(SEED, name, round_):
            chance = random.Random(f"{SEED} {name} {round_}")
            history = History.begun(tmp_path / str(round_), CASES[name], chance)
            steps = [history.upsert, history.merge, history.delete, history.compact, history.compact_logs, history.plan]
            for step in chance.choices(steps, weights=[3, 3, 1, 1, 1, 1], k=7):
                before, pending = history.read(), Table.open(history.path).load_timeline().pending_compactions
                step()
                if step in (history.plan, history.compact_logs) or (step == history.compact and not pending):
                    assert_same_rows(history.read(), before)
                check_reads(history)
            check_feed(history)
