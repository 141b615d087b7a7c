"""The change feed: replayed over the state at its begin it gives the state at its end, write after write."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase import compact, schedule, writer
from phantombase.api import read
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.merge import rule
from phantombase.timeline.merge.rule import NO_HASHES, Changes
from phantombase.timeline.read.changes import plan, plan_changes
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import Writer
from tests.support.archived_tables import active, archive, long_table, one_row, upsert
from tests.support.change_feeds import check_window, feed, moments_of, state
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import GOLDEN, one_of, unzip_golden
from tests.support.selection import deep

USUAL = {"v6_replaced", "v8_log_compacted", "v9_clustered", "v9_event_time", "v9_log_only"}
NAMES = [name if name in USUAL else deep(name) for name in GOLDEN if "virtual_keys" not in name]


@pytest.mark.parametrize("name", NAMES)
def test_a_feed_replays_what_happened(name: str, tmp_path: Path) -> None:
    """Write by write, at once, and net."""
    table = open_table(unzip_golden(name, tmp_path))
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    for begin, end in pairwise(moments):
        check_window(table, begin, end, states)
    check_window(table, moments[0], moments[-1], states)


def test_services_are_no_changes(tmp_path: Path) -> None:
    """A clustering replaces file groups and changes no row; a log compaction restamps rows and changes none."""
    for name, operation in (("v9_clustered", "CLUSTER"), ("v9_log_compacted", "LOG_COMPACT")):
        table = open_table(unzip_golden(name, tmp_path))
        timeline = table.load_timeline()
        pairs = [p for p in pairwise(timeline.completed) if table.commit_metadata(p[1]).operation_type == operation]
        assert pairs
        for before, service in pairs:
            end = timeline.moment_of(service)
            assert feed(table, timeline.moment_of(before), end) == []
            assert feed(table, timeline.moment_of(before), end, net=True) == []


def test_overwritten_rows_are_deleted_and_inserted(tmp_path: Path) -> None:
    """As in Hudi, an insert_overwrite deletes every row of the partition before it inserts."""
    table = open_table(unzip_golden("v9_replaced", tmp_path))
    timeline = table.load_timeline()
    writes = timeline.completed
    at = next(i for i, w in enumerate(writes) if table.commit_metadata(w).operation_type == "INSERT_OVERWRITE")
    begin, end = (timeline.moment_of(writes[i]) for i in (at - 1, at))
    changes = feed(table, begin, end)
    assert {c["op"] for c in changes} == {"d", "i"}
    assert {c["instant"] for c in changes} == {writes[at].requested_time}
    dropped = feed(table, timeline.moment_of(writes[-2]), timeline.moment_of(writes[-1]))
    assert {c["op"] for c in dropped} == {"d"}
    assert table.commit_metadata(writes[-1]).operation_type == "DELETE_PARTITION"


def test_an_overwritten_key_is_deleted_and_inserted(tmp_path: Path) -> None:
    """A row that an overwrite puts in the place of one with its key is no update, but for the net change."""
    path = str(tmp_path / "t")
    described = writer(pa.table({"id": ["a"], "ts": [1]})).table("t").key("id").ordering("ts")
    described.upsert(path)
    described.insert_overwrite(path)
    table = Table.open(path)
    begin, end = moments_of(table)[-2:]
    assert [c["op"] for c in feed(table, begin, end)] == ["d", "i"]
    assert [c["op"] for c in feed(table, begin, end, net=True)] == ["u"]


@one_of("version", 9, 6)
def test_a_net_feed_has_a_key_once_that_changed_its_file_group(version: int, tmp_path: Path) -> None:
    """Deleted, compacted away, and inserted into another file group of the partition."""
    path = str(tmp_path / "t")

    def trips(*keys: str, ts: int = 1) -> Writer:
        rows = pa.table({"id": list(keys), "ts": [ts] * len(keys)})
        return writer(rows).table("t", version=version).key("id").ordering("ts").option(small_file_bytes=0)

    trips("k", "l").upsert(path)
    (begin,) = moments_of(Table.open(path))[1:]
    trips("k").delete(path)
    schedule(path, sole_writer=True)
    compact(path)
    trips("l", ts=2).upsert(path)
    trips("k", ts=3).upsert(path)
    found = [(c["op"], c["after"]["id"]) for c in feed(Table.open(path), begin, net=True)]
    assert sorted(found) == [("u", "k"), ("u", "l")]


def test_a_feed_of_partial_updates_goes_on_where_all_rows_are_deleted(tmp_path: Path) -> None:
    """Nothing is left that the old rows could be compared with."""
    path = str(tmp_path / "t")
    rows = pa.table({"id": ["k"], "ts": [1], "a": ["old"]})
    writer(rows).table("t").key("id").ordering("ts").upsert(path)
    writer(rows).merge_into(path, update=["a", "ts"])
    writer(rows).delete(path)
    table = Table.open(path)
    assert [c["op"] for c in feed(table, "earliest")] == ["i", "u", "d"]
    assert [c["op"] for c in feed(table, moments_of(table)[2], net=True)] == ["d"]


def test_a_late_row_that_loses_is_no_change(tmp_path: Path) -> None:
    """Under event time a write of old values changes nothing: what changes has the commit time of its write."""
    table = open_table(unzip_golden("v9_event_time", tmp_path))
    timeline = table.load_timeline()
    for change in feed(table, "earliest"):
        if change["op"] == "u":
            assert change["after"]["_hoodie_commit_time"] == change["instant"]
    assert {c["instant"] for c in feed(table, "earliest")} <= {w.requested_time for w in timeline.completed}


def test_what_archived_writes_of_version_6_did_is_not_put_down_to_another(tmp_path: Path) -> None:
    """They come together with the first active write, each row under its own commit time; deletes under none."""
    path = tmp_path / "t"
    long_table(path, 6, commits=2, compact_at=None)
    gone = pa.table({"id": ["k1"], "day": ["a"], "ts": [9], "fare": [0.0]})
    writer(gone).delete(str(path))
    for ts in (10, 11, 12):
        upsert(path, one_row("k2", ts))
    writes = open_table(path).load_timeline().completed
    archive(path)
    assert active(path) == [w.requested_time for w in writes[-2:]]
    first = feed(open_table(path), "earliest", writes[-2].requested_time)
    assert {(c["op"], c["instant"]) for c in first} == {("i", w.requested_time) for w in (writes[0], writes[-2])}
    later = feed(open_table(path), writes[1].requested_time)
    assert sorted((c["op"], c["instant"]) for c in later) == [
        ("d", None),
        ("i", writes[-2].requested_time),
        ("u", writes[-1].requested_time),
    ]


def test_a_window_of_archived_writes_alone(tmp_path: Path) -> None:
    """Version 6 lists none of its writes any more."""
    path = tmp_path / "t"
    long_table(path, 6, compact_at=None)
    table = open_table(path)
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    archive(path)
    assert moments[3] < min(active(path))
    for begin, end in [*pairwise(moments[:4]), (moments[0], moments[3])]:
        check_window(open_table(path), begin, end, states)


def test_columns_partition_and_limit(tmp_path: Path) -> None:
    """They are those of other reads."""
    path = unzip_golden("v9_plain", tmp_path)
    table = open_table(path)
    everything = feed(table, "earliest", columns=("id", "fare", "p"))
    assert set(everything[0]["after"]) == {"id", "fare", "p"}
    north = feed(table, "earliest", columns=("id", "p"), partition="north")
    assert 0 < len(north) == sum((c["after"] or c["before"])["p"] == "north" for c in everything)
    assert len(feed(table, "earliest", limit=7)) == 7
    assert all(
        b.num_rows <= 5 for b in plan(table, ReadOptions(query=Query.CHANGES, begin="000", batch_rows=5)).batches()
    )
    rows = read(path, query="changes", begin="earliest")
    assert pa.table(rows).num_rows == len(everything)
    assert rows.end == max(table.load_timeline().moment_of(w) for w in table.load_timeline().completed)
    assert pa.table(read(path, query="changes", begin=rows.end)).num_rows == 0


def test_what_is_refused(tmp_path: Path) -> None:
    """A cleaned begin, with the one that works; a filter; a table without meta columns; a feed as rows."""
    table = open_table(unzip_golden("v9_compacted_cleaned", tmp_path))
    with pytest.raises(UsageError, match="at the begin of the window have been cleaned") as caught:
        feed(table, "earliest")
    feed(table, str(caught.value.expected).split()[3])
    with pytest.raises(UsageError, match="neither a filter"):
        plan_changes(table, ReadOptions(query=Query.CHANGES, begin="000", filter="fare > 1"))
    with pytest.raises(UsageError, match="not read as rows"):
        plan_read(table, ReadOptions(query=Query.CHANGES, begin="000"))
    with pytest.raises(UsageError, match="no such column"):
        feed(table, str(caught.value.expected).split()[3], columns=("nope",))
    with pytest.raises(UnsupportedError, match="no meta columns"):
        feed(open_table(unzip_golden("v9_virtual_keys", tmp_path)), "earliest")


# `Changes.apply`: new rows are copied as a whole beside the batch, or taken before, and the batch is taken row by row
# or copied in runs; all give the same rows.


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
