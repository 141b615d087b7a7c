"""`merge_into`: updates of some columns, beside a model in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import Writer, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.errors import ConflictError, NotATableError, PhantombaseError, UnsupportedError
from phantombase.timeline.format.log_block import HeaderKey, LogBlock, scan_blocks
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.merge_into import DELETE
from phantombase.writer_hooks.write import rows as rows_module
from phantombase.writer_hooks.write import write as write_module
from tests.support.change_feeds import check_window, moments_of, state
from tests.support.compare_rows import assert_same_rows
from tests.support.evolved_tables import schedule
from tests.support.places import SEED
from tests.support.selection import ALL, deep

SCHEMA = pa.schema([(n, pa.int64() if n in ("ts", "n") else pa.string()) for n in ("id", "day", "ts", "n", "a", "b")])
DAYS = ("mon", "tue")
MODES = {"event": MergeMode.EVENT_TIME, "commit": MergeMode.COMMIT_TIME}
KEYS = 60

Row = dict[str, Any]


def trips(rows: pa.Table, version: int = 9, mode: str = "event", **options: Any) -> Writer:
    """A write of a table with that rule."""
    described = writer(rows).table("trips", version=version).key("id").partition("day").merge_mode(MODES[mode])
    buckets = options.pop("buckets", None)
    described = described.ordering("ts") if mode == "event" else described
    return (described.buckets(buckets) if buckets else described).option(**options)


def row(number: int, ts: int, mark: str) -> Row:
    """A whole row whose values say where they come from."""
    return {"id": f"k{number:03d}", "day": DAYS[number % 2], "ts": ts, "n": ts, "a": f"{mark}.a", "b": f"{mark}.b"}


def table_of(rows: list[Row]) -> pa.Table:
    """Rows as Arrow."""
    return pa.Table.from_pylist(rows, SCHEMA)


def read(path: Path) -> dict[str, Row]:
    """The rows by key; a key twice is an error."""
    rows = read_table(Table.open(str(path))).select(SCHEMA.names).to_pylist()
    found = {one["id"]: one for one in rows}
    assert len(found) == len(rows), "doubled rows"
    return found


def blocks(path: Path) -> list[LogBlock]:
    """The blocks of all log files, oldest file first."""
    found = []
    for file in sorted(path.rglob(".*.log.*"), key=lambda one: one.stat().st_mtime_ns):
        with pa.OSFile(str(file)) as source:
            found += list(scan_blocks(source, str(file)))
    return found


def run(*command: str) -> None:
    """A command that succeeds."""
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == 0, done.output


def compact(path: Path) -> None:
    """A compaction of everything."""
    run("schedule", str(path), "--sole-writer")
    run("compact", str(path), "--executor", "local")


def compact_logs(path: Path) -> None:
    """A log compaction where one is possible."""
    schedule(path, ScheduleOptions(picking=Picking.UNIVERSAL, compaction_trigger=2, max_size_amplification=10_000))
    run("compact", str(path), "--executor", "local")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of event time with six rows, without small files."""
    made = tmp_path / "table"
    trips(table_of([row(n, 5, "base") for n in range(6)])).upsert(str(made))
    return made


def test_some_columns(path: Path) -> None:
    """Only the set columns change, only of rows that are there; late rows change nothing."""
    before = read(path)
    source = pa.table({"id": ["k001", "k002", "k900"], "day": ["tue", "mon", "mon"], "ts": [6, 4, 9], "a": ["x"] * 3})
    done = writer(source).merge_into(str(path), update=["a", "ts"])
    assert read(path) == {**before, "k001": {**before["k001"], "a": "x", "ts": 6}}
    assert (done.operation.value, done.updates, done.inserts) == ("UPSERT", 2, 0)
    found = blocks(path)
    assert [block.is_partial for block in found] == [True, True]
    columns = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
    for block in found:
        assert arrow_schema(block.header(HeaderKey.SCHEMA)).names == [*columns, "_hoodie_file_name", "ts", "a"]


def test_other_names_inserts_and_deletes(path: Path) -> None:
    """Values from columns of other names; a new row gets what an update sets; a row that deletes adds nothing."""
    before = read(path)
    source = pa.table(
        {
            "id": ["k001", "k002", "k900", "k901"],
            "day": ["tue", "mon", "mon", "mon"],
            "at": [6, 7, 8, 9],
            "n": [1, 2, 3, 4],
            "gone": [None, True, False, True],
            "a": ["old"] * 4,
            "other": ["w", "x", "y", "z"],
        }
    )
    merging: dict[str, Any] = {"set": {"a": "other", "ts": "at"}, "insert": True, "delete": "gone"}
    writer(source).merge_into(str(path), "id", **merging)
    del before["k002"]
    new = {"id": "k900", "day": "mon", "ts": 8, "n": 3, "a": "y", "b": None}
    assert read(path) == {**before, "k001": {**before["k001"], "a": "w", "ts": 6}, "k900": new}


def test_a_table_with_the_column_of_the_marks(path: Path) -> None:
    """Its own values delete nothing: true in a row of an upsert and of a base file, set by a merge."""
    marks = [True, None, False, True, None, True]
    rows = table_of([row(n, 6, "new") for n in range(6)]).append_column(DELETE, pa.array(marks))
    for _ in range(2):
        writer(rows).upsert(str(path))
    compact(path)
    writer(rows.slice(1, 2)).upsert(str(path))
    assert sorted(read(path)) == [f"k{n:03}" for n in range(6)]
    writer(rows.slice(0, 1).set_column(rows.num_columns - 1, DELETE, pa.array([False]))).merge_into(
        str(path), update=["ts", DELETE]
    )
    found = read_table(Table.open(str(path))).sort_by("id").column(DELETE).to_pylist()
    assert found == [False, *marks[1:]]
    with pytest.raises(UnsupportedError, match="of a table with this column"):
        writer(rows.append_column("gone", pa.array(marks))).merge_into(str(path), update=["ts"], delete="gone")


def test_a_small_base_file_is_written_anew(tmp_path: Path) -> None:
    """New rows come into it; its rows get the set columns only, and lose the deleted ones."""
    made = tmp_path / "table"
    trips(table_of([row(n, 5, "base") for n in range(6)])).upsert(str(made))
    before = read(made)
    rows = [row(n, 6, "new") for n in (0, 2, 10, 12)]
    source = table_of(rows).append_column("gone", pa.array([False, True, False, True]))
    writer(source).merge_into(str(made), update=["a", "ts"], insert=True, delete="gone")
    del before["k002"]
    assert read(made) == {**before, "k000": {**before["k000"], "a": "new.a", "ts": 6}, "k010": rows[2]}
    assert not blocks(made)


def test_a_deleted_key_gets_no_update(path: Path) -> None:
    """Hudi's readers fail on an update of some columns without a row below it: the row is left out, or whole."""
    keys = table_of([row(n, 5, "") for n in (0, 1)])
    writer(keys).delete(str(path))
    before = read(path)
    source = table_of([row(n, 7, "again") for n in (0, 1, 2)])
    writer(source.slice(0, 2)).merge_into(str(path), update=["a", "ts"])
    assert read(path) == before
    assert not any(block.is_partial for block in blocks(path))
    writer(source).merge_into(str(path), update=["a", "ts"], insert=True)
    assert read(path) == {
        **before,
        "k000": row(0, 7, "again"),
        "k001": row(1, 7, "again"),
        "k002": {**before["k002"], "a": "again.a", "ts": 7},
    }


@pytest.mark.parametrize("buckets", [None, 1], ids=["keys", "bucket"])
def test_a_key_deleted_after_the_look_up_is_a_conflict(
    buckets: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its update would stand in the log without a row below it."""
    made, staged = tmp_path / "table", rows_module.stage_rows
    rows = table_of([row(n, 5, "base") for n in (0, 2)])
    trips(rows, buckets=buckets).upsert(str(made))

    def deleted_behind_it(*given: Any) -> Any:
        monkeypatch.setattr(write_module, "stage_rows", staged)
        done = staged(*given)
        trips(rows.slice(0, 1), buckets=buckets, lazy_rollback=True).delete(str(made))
        return done

    monkeypatch.setattr(write_module, "stage_rows", deleted_behind_it)
    merging = trips(table_of([row(0, 6, "new")]), buckets=buckets, lazy_rollback=True)
    with pytest.raises(ConflictError, match="file group"):
        merging.merge_into(str(made), update=["a", "ts"])
    merging.merge_into(str(made), update=["a", "ts"])  # the key is gone: nothing to update
    assert read(made) == {"k002": row(2, 5, "base")}
    assert not any(block.is_partial for block in blocks(made))


def test_beyond_the_memory_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are spilled before they are looked up, part by part."""
    monkeypatch.setattr(SliceRules, "fold_bytes", 100.0)
    before = read(path)
    for number in range(2):
        source = table_of([row(n, 6 + number, f"w{number}") for n in (0, 2, 3, 8, 10, 11)])
        source = source.append_column("gone", pa.array([n == 2 for n in range(6)]))
        writer(source).merge_into(str(path), update=["a", "ts"], insert=number == 1, delete="gone")
    changed = {f"k{n:03d}": {**before[f"k{n:03d}"], "a": "w1.a", "ts": 7} for n in (0, 2)}
    new = {f"k{n:03d}": row(n, 7, "w1") for n in (8, 10, 11)}
    del before["k003"]
    assert read(path) == before | changed | new


def test_what_came_is_what_is_read(path: Path) -> None:
    """Incremental reads give the rows that readers put together; the change feed replays what happened."""
    for number in range(2):
        rows = table_of([row(n, 6 + number, f"w{number}") for n in (1, 2, 8)])
        source = rows.append_column("gone", pa.array([False, number == 1, False]))
        merging = writer(source).option(small_file_bytes=0)
        merging.merge_into(str(path), update=["a", "ts"], insert=True, delete="gone")
    table, now = Table.open(str(path)), read(path)
    moments = moments_of(table)
    came = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=moments[-2]))
    assert {one["id"]: one for one in came.select(SCHEMA.names).to_pylist()} == {k: now[k] for k in ("k001", "k008")}
    states = {moment: state(table, moment) for moment in moments}
    for begin, end in [*pairwise(moments), (moments[0], moments[-1])]:
        check_window(table, begin, end, states)


@pytest.mark.parametrize("buckets", [None, 1], ids=["keys", "bucket"])
def test_by_commit_time_no_row_comes_behind_a_delete(buckets: int | None, tmp_path: Path) -> None:
    """Hudi 1.2 cannot read it where updates of some columns are in the log before it; after a compaction it can."""
    made = tmp_path / "table"
    trips(table_of([row(n, 5, "base") for n in (0, 2, 4)]), mode="commit", buckets=buckets).upsert(str(made))
    merged = {"update": ["a"], "insert": True}

    def merge(mark: str, *numbers: int) -> None:
        rows = table_of([row(n, 6, mark) for n in numbers])
        trips(rows, mode="commit", buckets=buckets, small_file_bytes=0).merge_into(str(made), **merged)  # type: ignore

    def delete(number: int) -> None:
        trips(table_of([row(number, 6, "")]), mode="commit", buckets=buckets).delete(str(made))

    delete(0)
    merge("x", 0, 2)  # the row comes before the update
    delete(4)
    with pytest.raises(UnsupportedError, match="rows of deleted keys"):
        merge("y", 4, 6)
    merge("y", 6)
    compact(made)
    merge("z", 4, 6)
    base = row(2, 5, "base")
    assert read(made) == {
        "k000": row(0, 6, "x"),
        "k002": {**base, "a": "x.a"},
        "k004": row(4, 6, "z"),
        "k006": {**row(6, 6, "y"), "a": "z.a"},
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "sets some columns"),
    "twice": ({"update": ["a", "ts"], "set": {"a": "b"}}, "each once"),
    "text": ({"update": "a"}, "not a list of columns"),
    "key": ({"update": ["id", "ts"]}, "cannot set these columns"),
    "partition": ({"update": ["day", "ts"]}, "cannot set these columns"),
    "on": ({"on": ["id", "day"], "update": ["a", "ts"]}, "record key only"),
    "unknown": ({"update": ["color", "ts"]}, "no such columns"),
    "source": ({"set": {"a": "color", "ts": "ts"}}, "source lacks columns"),
    "delete": ({"update": ["a", "ts"], "delete": "gone"}, "source lacks columns"),
    "ordering": ({"update": ["a"]}, "new ordering values"),
    "type": ({"set": {"n": "a", "ts": "ts"}}, "type of a column does not fit"),
    "boolean": ({"update": ["a", "ts"], "delete": "n"}, "type of a column does not fit"),
    "again": ({"update": ["a", "ts"]}, "several rows of the source"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_without_a_trace(name: str, path: Path) -> None:
    """Nothing is written."""
    given, error = REFUSED[name]
    rows = [row(n, 6, "new") for n in (1, 2, 1 if name == "again" else 3)]
    before = sorted(path.rglob("*"))
    with pytest.raises(PhantombaseError, match=error):
        writer(table_of(rows)).merge_into(str(path), **given)
    assert sorted(path.rglob("*")) == before


def test_refused_tables(tmp_path: Path) -> None:
    """Those of version 6, with rules of their own for missing values, with marks of deletion, and none at all."""
    rows = table_of([row(n, 5, "base") for n in range(6)])
    old, own, none = (tmp_path / name for name in ("old", "own", "none"))
    trips(rows, version=6).upsert(str(old))
    with pytest.raises(PhantombaseError, match="this table version does not have"):
        writer(rows).merge_into(str(old), update=["a", "ts"])
    trips(rows).upsert(str(own))
    with (own / ".hoodie" / "hoodie.properties").open("a") as file:
        file.write("hoodie.table.partial.update.mode=IGNORE_DEFAULTS\n")
    with pytest.raises(PhantombaseError, match="rules of its own"):
        writer(rows).merge_into(str(own), update=["a", "ts"])
    trips(rows).upsert(str(tmp_path / "global"))
    with pytest.raises(PhantombaseError, match="unique over all partitions"):
        writer(rows).global_keys().merge_into(str(tmp_path / "global"), update=["a", "ts"])
    marked = tmp_path / "marked"
    trips(rows.append_column("_hoodie_is_deleted", pa.array([False] * 6))).upsert(str(marked))
    with pytest.raises(PhantombaseError, match="loses the rows, or cannot read"):
        writer(rows).merge_into(str(marked), update=["a", "ts"])
    with pytest.raises(NotATableError):
        writer(rows).table("trips").key("id").merge_into(str(none), update=["a"])
    assert not none.exists()


@dataclass
class Model:
    """What the table must read; `last`: the newest ordering value of each key; `logged`: keys with entries in logs.
    `late`: keys with a late update in the logs. It gives columns to a later update of some columns, as in Hudi, which
    is right by no order of the updates: such keys are left alone until a compaction."""

    live: dict[str, Row] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    logged: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)

    def rows(self, random: Random, mark: str, *, late: bool) -> list[Row]:
        """Rows for some keys; late ones of keys without log entries only."""
        made = []
        for number in random.sample(sorted(set(range(KEYS)) - self.late), 20):
            ts = self.last.get(number, 0) + random.randrange(2)
            if late and number not in self.logged and f"k{number:03d}" in self.live and random.random() < 0.2:
                ts = -1
                self.late.add(number)
            made.append(row(number, ts, mark))
        return made

    def seen(self, rows: list[Row]) -> None:
        """The rows are written."""
        for one in rows:
            number = int(one["id"][1:])
            self.last[number] = max(self.last.get(number, 0), one["ts"])
            self.logged.add(number)

    def upsert(self, rows: list[Row]) -> None:
        """Whole rows."""
        self.seen(rows)
        self.live |= {one["id"]: one for one in rows}

    def merge(self, rows: list[Row], columns: list[str], gone: list[bool], *, insert: bool, event: bool) -> None:
        """An update of some columns."""
        for one, deletes in zip(rows, gone, strict=True):
            old = self.live.get(one["id"])
            if event and old is not None and one["ts"] < old["ts"]:
                continue
            if deletes:
                self.live.pop(one["id"], None)
            elif old is not None:
                self.live[one["id"]] = old | {name: one[name] for name in columns}
            elif insert:
                self.live[one["id"]] = one
        self.seen(rows)


CASES = [
    (9, "event", None, LogFormat.AVRO),
    (9, "commit", 2, LogFormat.PARQUET),
    deep((8, "event", 2, LogFormat.AVRO)),
    deep((8, "commit", None, LogFormat.PARQUET)),
    deep((9, "event", 2, LogFormat.PARQUET)),
    deep((9, "commit", None, LogFormat.AVRO)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"v{c[0]}-{c[1]}-{c[2] or 'key'}-{c[3].value}")
def test_a_random_history(case: tuple[int, str, int | None, LogFormat], tmp_path: Path) -> None:
    """Writes of every kind, compactions and log compactions between them: the table reads as the model says."""
    version, mode, buckets, log_format = case
    random, model, made = Random(f"{SEED} {case}"), Model(), tmp_path / "table"
    options: dict[str, Any] = {"version": version, "mode": mode, "buckets": buckets, "log_format": log_format}
    for step in range(14 if ALL else 9):
        kind = random.choice(("upsert", "merge", "merge", "merge", "delete", "compact", "logs")) if step else "upsert"
        rows = model.rows(random, f"w{step}", late=kind == "merge" and mode == "event")
        small = random.choice((0, 100 << 20))
        writing = trips(table_of(rows), **options, small_file_bytes=small)
        if kind == "upsert":
            writing.upsert(str(made))
            model.upsert(rows)
        elif kind == "delete":
            trips(table_of(rows[:5]), **options).delete(str(made))
            model.seen(rows[:5])
            for one in rows[:5]:
                model.live.pop(one["id"], None)
        elif kind == "merge":
            columns = random.choice((["a"], ["b", "n"], ["a", "b"])) + ["ts"] * (mode == "event")
            gone, insert = [random.random() < 0.2 for _ in rows], random.random() < 0.5
            source = table_of(rows).append_column("gone", pa.array(gone))
            merging = trips(source, **options, small_file_bytes=small)
            try:
                merging.merge_into(str(made), update=columns, insert=insert, delete="gone")
            except UnsupportedError:
                assert (mode, insert) == ("commit", True)
                assert read(made) == model.live
                compact(made)
                merging.merge_into(str(made), update=columns, insert=insert, delete="gone")
            model.merge(rows, columns, gone, insert=insert, event=mode == "event")
        elif kind == "compact":
            compact(made)
            model.logged.clear()
            model.late.clear()
        else:
            compact_logs(made)
        assert read(made) == model.live, f"step {step}: {kind}"
    before = read_table(Table.open(str(made)))
    compact_logs(made)
    assert_same_rows(read_table(Table.open(str(made))), before)
    compact(made)
    assert_same_rows(read_table(Table.open(str(made))), before)
