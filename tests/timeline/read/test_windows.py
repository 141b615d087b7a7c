"""Windows on a timeline, and the earliest state that a clean has left whole; instants by the names of their files."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase import read, schedule
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.filter.possible import bound, matching
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.export import read_any
from phantombase.timeline.read.incremental import WindowWrites, wanted_rows
from phantombase.timeline.read.table_read import Fallback, Query, ReadOptions, plan_read, read_table
from phantombase.timeline.read.windows import EARLIEST, Window, earliest_state, fix_window
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.transaction import Transaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import clean
from tests.support.builders import timeline_of
from tests.support.change_feeds import COMMIT_TIME, KEY, check, moments_of, restamped_by_clustering, services_of
from tests.support.change_feeds import window as window_of_versions
from tests.support.compaction_steps import open_table, run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, Answer, incremental_answers, one_of, unzip_golden
from tests.support.places import capture_logs
from tests.support.selection import deep
from tests.support.written_tables import as_rows, written_table

V8 = "10_12.deltacommit 20_40.deltacommit 25_30.deltacommit 50.deltacommit.inflight"
V6 = "10.deltacommit 20.deltacommit 30.deltacommit.requested 40.deltacommit"


def v8(instants: str = V8) -> Timeline:
    return timeline_of(LAYOUT_2, *instants.split())


def v6(instants: str = V6) -> Timeline:
    return timeline_of(LAYOUT_1, *instants.split())


@pytest.mark.parametrize(("begin", "end", "fixed"), [("12", None, "40"), ("12", "35", "35"), ("12", "99", "40")])
def test_an_end_is_never_in_the_future(begin: str, end: str | None, fixed: str) -> None:
    """What completes after this read belongs to the next window, whatever end was asked for."""
    assert fix_window(v8(), begin, end) == Window(begin=begin, end=fixed)


def test_nothing_new() -> None:
    """A begin at or behind the newest write gives an empty window that begins and ends there."""
    assert fix_window(v8(), "40", None) == Window(begin="40", end="40")
    assert fix_window(v8(), "60", None) == Window(begin="60", end="60")
    assert fix_window(v8("50.deltacommit.inflight"), EARLIEST, None) == Window(begin="", end="")


def test_an_end_before_its_begin_is_refused() -> None:
    with pytest.raises(UsageError, match="before it begins"):
        fix_window(v8(), "30", "12")
    assert fix_window(v8(), "30", "30").end == "30"


def test_a_requested_time_as_begin_is_noticed() -> None:
    """20 is the requested time of a write and no completion time: probably a mistake. 15 is neither."""
    assert fix_window(v8(), "20", None).begin_requested
    assert not fix_window(v8(), "15", None).begin_requested
    assert not fix_window(v8("10_12.deltacommit 12_14.deltacommit"), "12", None).begin_requested


def test_v6_stops_before_the_first_pending_write() -> None:
    """t30 pends and t40 is completed: 40 belongs to no window yet, since rows of 30 may still appear before it."""
    assert fix_window(v6(), "10", None) == Window(begin="10", end="20", blocked_by="30")
    assert fix_window(v6(), "10", "40") == Window(begin="10", end="20", blocked_by="30")
    assert fix_window(v6(), "10", "29") == Window(begin="10", end="29")
    assert fix_window(v6(), "35", None) == Window(begin="35", end="35", blocked_by="30")


def test_v6_pending_compactions_block_nothing() -> None:
    """They change no row."""
    assert fix_window(v6("10.deltacommit 20.compaction.requested 30.deltacommit"), "10", None).end == "30"


def test_states_before_the_retained_write_are_cleaned() -> None:
    """A clean that retains 25 keeps the state just before it: on version 6 that of 20."""
    assert earliest_state(v6("10.deltacommit 20.deltacommit 25.deltacommit"), "25") == "20"
    assert earliest_state(v8("10_12.deltacommit 20_22.deltacommit 25_27.deltacommit"), "25") == "22"
    assert earliest_state(v8("10_12.deltacommit"), "10") == ""


def test_a_write_requested_before_the_retained_one_and_completed_later() -> None:
    """The cleaner may have seen t20's base file: the states before its completion at 40 are not whole."""
    assert earliest_state(v8(), "25") == "40"


def test_a_compaction_is_read_from_its_requested_time_on() -> None:
    """What t20 merged may be gone, its base file is not: the states from 20 on are whole."""
    assert earliest_state(v8("10_12.deltacommit 20_40.commit 25_30.deltacommit"), "25") == "20"


# The filter of a window's rows, on a column of commit times.


def rows(timeline: Timeline, window: Window, writes: str, times: str) -> str:
    none: frozenset[str] = frozenset()
    found = WindowWrites(
        writes=frozenset(writes.split()),
        groups=None,
        replaced=frozenset(),
        stamps=none,
        log_compactions=none,
        compacted_logs={},
        clusterings=none,
        unlisted=False,
        left_out=none,
    )
    table = pa.table({"_hoodie_commit_time": times.split()})
    node = bound(wanted_rows(timeline, window, found), table.schema)
    return " ".join(matching(node, table).column(0).to_pylist())


def test_the_rows_of_the_writes() -> None:
    """t20 was requested before t25 and lies in the window, t25 does not."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20_40.deltacommit", "25_30.deltacommit")
    assert rows(timeline, Window(begin="30", end="40"), "20", "10 20 25") == "20"
    assert rows(timeline, Window(begin="40", end="40"), "", "10 20 25") == ""


def test_rows_of_writes_that_the_archive_has_lost() -> None:
    """t05 and t07 are known to no timeline; t07 was requested after the begin, so it completed after it too."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20_40.deltacommit")
    assert rows(timeline, Window(begin="06", end="12"), "10", "05 07 10 20") == "07 10"
    assert rows(timeline, Window(begin="11", end="12"), "10", "05 07 10 20") == "10"


def test_v6_compares_requested_times() -> None:
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.deltacommit", "30.deltacommit")
    assert rows(timeline, Window(begin="10", end="20"), "20", "05 10 15 20 30") == "15 20"


# Incremental reads: overlapping writers, refusals, warnings, cleaned windows, and what is read at all.


OPTIONS = WriteOptions(buckets=1)


def trips(*ids: str, day: str, ts: int) -> pa.Table:
    return pa.table({"id": [*ids], "day": [day] * len(ids), "ts": [ts] * len(ids), "fare": [float(ts)] * len(ids)})


def window(path: Path, begin: str, end: str | None = None, **more: Any) -> pa.Table:
    return read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end, **more))


def overlapping_writers(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a` in east; then one writer updates `a` and, before it completes, another writes `b` in west."""
    written_table(path, version, trips("a", day="east", ts=1), OPTIONS)
    complete, inner = Transaction.complete, [trips("b", day="west", ts=2)]

    def late(self: Transaction, *args: Any, **more: Any) -> Any:
        if inner:
            upsert(path, inner.pop())
        return complete(self, *args, **more)

    monkeypatch.setattr(Transaction, "complete", late)
    upsert(path, trips("a", day="east", ts=3))


def upsert(path: Path, batch: pa.Table) -> None:
    write(open_table(path), LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=OPTIONS))


@pytest.mark.parametrize("version", [deep(8), 9])
def test_a_writer_that_completes_late_is_in_the_later_window(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requested first, completed last: a reader that went by requested times would never get its row."""
    overlapping_writers(tmp_path / "t", version, monkeypatch)
    writes = open_table(tmp_path / "t").load_timeline().completed
    first, slow, quick = (str(w.completion_time) for w in writes)
    assert first < quick < slow
    assert as_rows(window(tmp_path / "t", "earliest", first)) == {"a": (1, 1.0)}
    assert as_rows(window(tmp_path / "t", first, quick)) == {"b": (2, 2.0)}
    options = ReadOptions(query=Query.INCREMENTAL, begin=first, end=quick)
    assert {s.partition for s in plan_read(open_table(tmp_path / "t"), options).slices} == {"west"}
    assert as_rows(window(tmp_path / "t", quick, slow)) == {"a": (3, 3.0)}
    assert as_rows(window(tmp_path / "t", "earliest", quick)) == {"a": (1, 1.0), "b": (2, 2.0)}
    assert window(tmp_path / "t", slow).num_rows == 0


@one_of("name", "v9_plain", "v6_plain")
def test_only_file_groups_of_the_window_are_read(name: str, tmp_path: Path) -> None:
    """And only the columns that were asked for come out."""
    path = unzip_golden(name, tmp_path)
    timeline = open_table(path).load_timeline()
    newest = timeline.completed[-1]
    before = max(timeline.moment_of(w) for w in timeline.completed[:-1])
    options = ReadOptions(query=Query.INCREMENTAL, begin=before, columns=("fare", "id"))
    scan = plan_read(open_table(path), options)
    stats = open_table(path).commit_metadata(newest).partition_to_write_stats
    assert {s.key for s in scan.slices} == {(p, str(s.file_id)) for p, group in stats.items() for s in group}
    whole = window(path, before)
    assert set(pc.unique(whole.column("_hoodie_commit_time")).to_pylist()) == {newest.requested_time}
    assert_same_rows(scan.to_table(), whole.select(scan.schema.names))
    assert set(scan.schema.names) == {"fare", "id"}


def test_v6_ends_before_a_pending_write(tmp_path: Path) -> None:
    """The scan carries the end that was reached, a warning names the write that pends."""
    path = unzip_golden("v6_plain", tmp_path)
    times = [w.requested_time for w in open_table(path).load_timeline().completed]
    pending = str(int(times[-1]) - 1)
    (path / ".hoodie" / f"{pending}.deltacommit.requested").touch()
    with capture_logs() as logs:
        scan = plan_read(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin="earliest"))
    assert scan.window is not None
    assert scan.window.end == times[-2]
    assert [e["pending"] for e in logs if e["event"] == "window_ends_before_a_pending_write"] == [pending]
    assert times[-1] not in scan.to_table().column("_hoodie_commit_time").to_pylist()


def test_a_requested_time_as_begin_is_warned_of(tmp_path: Path) -> None:
    """It gives a write too many on versions 8 and 9."""
    path = unzip_golden("v9_plain", tmp_path)
    newest = open_table(path).load_timeline().completed[-1]
    with capture_logs() as logs:
        window(path, newest.requested_time)
        assert [e["begin"] for e in logs if e["event"] == "begin_is_a_requested_time"] == [newest.requested_time]
        window(path, str(newest.completion_time))
    assert len(logs) == 1


def test_begins_in_every_form(tmp_path: Path) -> None:
    """Dates, `earliest` in any case, zeros; everything and nothing."""
    path = unzip_golden("v9_plain", tmp_path)
    everything = read_table(open_table(path))
    for begin in ("earliest", "EARLIEST", "000", "2020-01-01", "2020-01-01T00:00:00", "1577836800"):
        assert_same_rows(window(path, begin), everything)
    assert window(path, "2999-01-01 00:00:00").num_rows == 0


REFUSED = [
    ({"query": Query.INCREMENTAL}, "needs its begin"),
    ({"query": Query.INCREMENTAL, "begin": "soon"}, "not a point in time"),
    ({"query": Query.INCREMENTAL, "begin": ""}, "empty point"),
    ({"query": Query.INCREMENTAL, "begin": "2026-02-02", "end": "2026-02-01"}, "before it begins"),
    ({"query": Query.INCREMENTAL, "begin": "000", "as_of": "2026-02-01"}, "no as-of point"),
    ({"begin": "000"}, "belong to an incremental read"),
    ({"query": Query.READ_OPTIMIZED, "end": "000"}, "belong to an incremental read"),
    ({"fallback": Fallback.FULL_SCAN}, "a fallback belongs to an incremental read"),
    ({"query": Query.CHANGES, "begin": "000", "fallback": Fallback.FULL_SCAN}, "a fallback belongs"),
    ({"query": Query.INCREMENTAL, "begin": "000", "net": True}, "net changes belong to a change feed"),
    ({"net": True}, "net changes belong to a change feed"),
    ({"query": Query.INCREMENTAL, "begin": "000", "whole_window": True}, "needs the end"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_what_is_no_window_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Hudi answers most of these with nothing or with everything."""
    path = unzip_golden("v9_plain", tmp_path)
    with pytest.raises(UsageError, match=says):
        plan(open_table(path), ReadOptions(**options))


_ROWS, _WINDOWS = {Query.SNAPSHOT, Query.READ_OPTIMIZED}, {Query.INCREMENTAL, Query.CHANGES}
MEANT_IN: dict[str, tuple[dict[str, Any], set[Query]]] = {
    "as_of": ({"as_of": "2100-01-01"}, _ROWS),
    "begin": ({"begin": "earliest"}, _WINDOWS),
    "end": ({"end": "2100-01-01"}, _WINDOWS),
    "fallback": ({"fallback": Fallback.FULL_SCAN}, {Query.INCREMENTAL}),
    "whole_window": ({"whole_window": True, "end": "000"}, _WINDOWS),
    "newest_columns": ({"newest_columns": True}, _WINDOWS),
    "net": ({"net": True}, {Query.CHANGES}),
    "columns": ({"columns": ("_hoodie_record_key",)}, {*Query}),
    "filter": ({"filter": "_hoodie_record_key is null"}, {*Query} - {Query.CHANGES}),
    "limit": ({"limit": 1}, {*Query}),
    "partition": ({"partition": "north"}, {*Query}),
}
"""Each option of a read, a value of it, and the queries in which it means something."""
BOUNDS = {"query", "data_skipping", "threads", "batch_rows", "memory_limit", "spill_dir"}
"""How a read does its work: they change no row, and hold in each query."""


@pytest.mark.parametrize("query", list(Query))
def test_an_option_of_a_read_has_an_effect_or_is_refused(query: Query, tmp_path: Path) -> None:
    assert {one.name for one in fields(ReadOptions)} == MEANT_IN.keys() | BOUNDS
    path = unzip_golden("v9_plain", tmp_path)
    usual = ReadOptions(query=query, begin="000" if query in _WINDOWS else None)
    whole = read_any(open_table(path), usual)
    for name, (given, meant_in) in MEANT_IN.items():
        asked = replace(usual, **given)
        if query not in meant_in:
            with pytest.raises(UsageError, match=rf"as.of|begin|{name.split('_')[0]}"):
                read_any(open_table(path), asked)
        elif name in ("net", "columns", "filter", "limit", "partition"):
            assert read_any(open_table(path), asked) != whole, name
        else:
            assert read_any(open_table(path), asked).num_rows in (0, len(whole)), name


def test_how_long_a_pin_holds_belongs_to_a_pin(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pin_for belongs to a pin"):
        read(str(unzip_golden("v9_plain", tmp_path)), pin_for="3h")


def test_rows_without_commit_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no meta columns"):
        window(unzip_golden("v9_virtual_keys", tmp_path), "earliest")


@pytest.mark.parametrize("name", ["v6_compacted_cleaned", deep("v8_archived"), "v9_compacted_cleaned"])
def test_a_cleaned_window_names_the_end_that_works(name: str, tmp_path: Path) -> None:
    """With any begin; by option what is left is read: the rows of the window that nothing has overwritten."""
    path = unzip_golden(name, tmp_path)
    table = Table.open(str(path))
    timeline = table.load_timeline()
    first = timeline.completed[0]
    end = timeline.moment_of(first)
    with pytest.raises(UsageError, match="have been cleaned") as caught:
        window(path, "earliest", end)
    works = str(caught.value.expected).split()[3]
    assert end < works
    window(path, "earliest", works)
    with capture_logs() as logs:
        left = window(path, "earliest", end, fallback=Fallback.FULL_SCAN)
    assert [e["event"] for e in logs if e["event"] != "avro_decoder"] == ["window_is_cleaned"]
    snapshot = read_table(table)
    known = {w.requested_time for w in timeline.completed if timeline.moment_of(w) > end}
    times = snapshot.column("_hoodie_commit_time")
    assert_same_rows(left, snapshot.filter(pc.invert(pc.is_in(times, pa.array(sorted(known))))))


# Incremental reads of every golden table give what real Hudi gave; where it is wrong, the merged slice, filtered.


USUAL = {"v6_compacted_cleaned", "v6_event_time", "v8_log_compacted", "v9_archived", "v9_clustered", "v9_replaced"}
RESTAMPED = {"v8_log_compacted", "v9_log_compacted"}
"""Which rows ours are, `test_incremental_log_compaction` checks."""
STAMPS = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"]
NAMES = [name if name in USUAL else deep(name) for name in GOLDEN]


@pytest.mark.parametrize("name", NAMES)
def test_windows_as_hudi_gave_them(name: str, tmp_path: Path) -> None:
    """Each window: its rows in every column, or a refusal where Hudi refuses."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    for answer in incremental_answers(name):
        rows = read_or_refusal(table, answer)
        if not answer.judged:
            check_by_time_travel(table, answer, rows)
        elif answer.rows is None:
            assert rows is None, answer
        else:
            assert rows is not None, answer
            if name in RESTAMPED and answer.begin.strip("0"):
                check_restamped(table, rows, answer.rows)
            else:
                assert_same_rows(rows, answer.rows)


def check_restamped(table: Table, rows: pa.Table, theirs: pa.Table) -> None:
    """Hudi gives rows with the time of its log compaction again: those that ours lack."""
    here = pc.is_in(theirs.column("_hoodie_record_key"), rows.column("_hoodie_record_key"))
    again = theirs.filter(pc.invert(here)).column("_hoodie_commit_time").to_pylist()
    assert set(again) <= services_of(table)
    assert_same_rows(rows.drop_columns(STAMPS), theirs.filter(here).drop_columns(STAMPS))


def read_or_refusal(table: Table, answer: Answer) -> pa.Table | None:
    """The rows of a window with the columns of now, as Hudi gives them; None if it is refused."""
    window = ReadOptions(query=Query.INCREMENTAL, begin=answer.begin, end=answer.end, newest_columns=True)
    try:
        return read_table(table, window)
    except (UsageError, UnsupportedError):
        return None


def check_by_time_travel(table: Table, answer: Answer, rows: pa.Table | None) -> None:
    """Files of that time were cleaned: refused, or what Hudi gave, or what time travel still shows."""
    if rows is None or (answer.rows is not None and rows.num_rows == answer.rows.num_rows):
        return
    timeline = table.load_timeline(archived=True)
    inside = [w.requested_time for w in timeline.completed if answer.begin < timeline.moment_of(w) <= str(answer.end)]
    seen = read_table(table, ReadOptions(as_of=max(inside))) if inside else rows.slice(0, 0)
    assert_same_rows(rows, seen.filter(pc.is_in(seen.column("_hoodie_commit_time"), pa.array(inside, pa.string()))))


# Rows that a log compaction of Hudi 1.2 restamped are delivered by their writes, in every window around it.


TABLES = ["v9_log_compacted", deep("v8_log_compacted"), deep("v6_log_compacted")]


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_log_compaction_are_those_of_their_writes(name: str, tmp_path: Path) -> None:
    """Its originals are still in the slice."""
    table = open_table(unzip_golden(name, tmp_path))
    stamped = set(read_table(table).column(COMMIT_TIME).to_pylist()) & services_of(table)
    assert bool(stamped) == table.layout.has_completion_times
    check(table)


@pytest.mark.parametrize("name", TABLES)
def test_so_they_are_behind_a_compaction(name: str, tmp_path: Path) -> None:
    """The base file has the stamps; the slice before it tells the writes."""
    table = open_table(unzip_golden(name, tmp_path))
    schedule(table, sole_writer=True)
    run_all(table)
    check(table)


def test_rows_of_a_clustering_that_restamps_are_those_of_their_writes(tmp_path: Path) -> None:
    """The file groups that it replaced tell the writes."""
    check(restamped_by_clustering(tmp_path))


def compacted(tmp_path: Path) -> tuple[Table, str, set[str]]:
    """A table whose log compactions were compacted, the end of the first of two writes that one merged, their times."""
    table = open_table(unzip_golden("v9_log_compacted", tmp_path))
    timeline = table.load_timeline()
    begin = timeline.moment_of(timeline.completed[4])
    stamps = services_of(table)
    schedule(table, sole_writer=True)
    run_all(table)
    return table, begin, stamps


def test_a_filter_on_times_means_those_of_the_writes(tmp_path: Path) -> None:
    """The base file has only the stamps."""
    table, begin, stamps = compacted(tmp_path)
    last = moments_of(table)[-1]
    whole = window_of_versions(table, begin, last)
    for time in sorted({*whole.values()}):
        asked = window_of_versions(table, begin, last, filter=f"{COMMIT_TIME} = '{time}'")
        assert asked == {key: one for key, one in whole.items() if one == time}
    for stamp in stamps:
        assert not window_of_versions(table, begin, last, filter=f"{COMMIT_TIME} = '{stamp}'")
    fares = ReadOptions(query=Query.INCREMENTAL, begin=begin, columns=("fare",), filter="fare > 50")
    rows = read_table(table, fares)
    assert rows.column_names == ["fare"]
    assert 0 < rows.num_rows < len(whole)


@pytest.mark.parametrize("half", [False, True])
def test_rows_come_again_where_a_clean_took_what_went_into_the_log_compaction(half: bool, tmp_path: Path) -> None:
    """Nothing tells their writes then; none is missing. The same while a reader reads, and when half of it is there."""
    table, begin, stamps = compacted(tmp_path)
    path, end = Path(table.storage.base_path), moments_of(table)[-1]
    whole = window_of_versions(table, begin, end)
    scan = plan_read(table, ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
    shutil.copytree(path, tmp_path / "before")
    assert clean(path).files
    following = min(w for w in table.load_timeline().completed if table.load_timeline().moment_of(w) > begin)
    for file in (tmp_path / "before").glob("*/.*.log.*") if half else ():
        if following.requested_time not in file.name:
            shutil.copy(file, path / file.relative_to(tmp_path / "before"))
    late = scan.to_table()
    found = dict(zip(late.column(KEY).to_pylist(), late.column(COMMIT_TIME).to_pylist(), strict=True))
    assert found == window_of_versions(table, begin, end)
    assert whole.keys() < found.keys()
    assert all(time in stamps or whole[key] == time for key, time in found.items())
