"""Which files are clustered."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.clustering import order as curves
from phantombase.compactor_daemon.clustering import sorting
from phantombase.compactor_daemon.clustering.choice import ClusterChoice, FilesFor, choose_windows
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.group_facts import GroupFacts, _lacks_filter, rewrite_reasons, selected
from phantombase.compactor_daemon.clustering.options import (
    ClusterOptions,
    Copy,
    Grouping,
    PartitionSelection,
    Rewrite,
    SortOrder,
)
from phantombase.compactor_daemon.clustering.order import _hilbert, _interleaved
from phantombase.compactor_daemon.clustering.result import ClusterResult
from phantombase.compactor_daemon.clustering.rows_in import KeyTally
from phantombase.compactor_daemon.clustering.sorting import Sorting, ordered
from phantombase.timeline.codec.bloom import ALWAYS_TRUE, SATURATED_KEYS
from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.codec.parquet_write import write_base_file
from phantombase.timeline.errors import MalformedError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.format.record_key import plain_file_id
from phantombase.timeline.format.replace_request import (
    ClusterGroup,
    ClusterPlan,
    PlannedSlice,
    decode_cluster_plan,
    encode_cluster_plan,
    encode_replace_request,
)
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.merge.spilled_merge import SpillFile
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice, GroupKey, TableView, ViewFacts
from tests.support.archived_tables import cluster, living, request, small_files, upsert
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.places import SEED
from tests.support.selection import deep
from tests.support.servers.zookeeper_server import wait_until
from tests.support.written_tables import read_rows

TEN = ClusterOptions(target_size=10, small_size=5, min_files=3)


def group(number: int, size: int, *, partition: str = "a", logs: int = 0, bucket: bool = False) -> FileGroup:
    """A file group that came as the `number`-th one."""
    instant = f"2026010100000{number:04d}"
    file_id = f"{number:08d}-0000-4000-8000-000000000000-0" if bucket else f"f{number:07d}{plain_file_id()[8:]}"
    base = DataFile(partition=partition, name=BaseFileName(file_id=file_id, token="0-0-0", instant=instant), size=size)
    log = [LogFileName(file_id=file_id, instant=instant, version=n + 1, token="0-0-0") for n in range(logs)]
    slice_ = FileSlice(
        partition=partition,
        file_id=file_id,
        base_instant=instant,
        base=base,
        logs=tuple(DataFile(partition=partition, name=name, size=1) for name in log),
    )
    return FileGroup(partition=partition, file_id=file_id, slices=(slice_,))


def choose(
    groups: list[FileGroup],
    options: ClusterOptions = TEN,
    busy: dict[GroupKey, str] | None = None,
    sorted_: Collection[GroupKey] = (),
    reasons: Sequence[frozenset[Rewrite]] = (),
) -> ClusterChoice:
    facts = ViewFacts(pending_plans={}, replaced={}, compacted={})
    view = TableView(timeline=Timeline(layout=LAYOUT_2, instants=()), facts=facts, groups=tuple(groups))
    why = dict(zip((one.key for one in groups), reasons, strict=False))
    return choose_windows(view, GroupFacts(busy=busy or {}, sorted=sorted_, reasons=why), options, "table")


def sizes(choice: ClusterChoice) -> list[list[int]]:
    return [[one.base_bytes for one in window.slices] for window in choice.windows]


def test_windows_of_small_files_in_a_row() -> None:
    """A window ends at the target size, and at a large file; fewer than the least number stay."""
    found = choose([group(n, size) for n, size in enumerate([4, 4, 4, 4, 4, 9, 1, 1, 1, 9, 1, 1])])
    assert sizes(found) == [[4, 4, 4], [1, 1, 1]]
    assert (found.small, found.left) == (10, 0)


def test_they_are_in_the_order_of_their_writes() -> None:
    groups = [group(n, 1) for n in range(4)]
    found = choose([groups[2], groups[0], groups[3], groups[1]])
    assert [s.file_id for s in found.windows[0].slices] == [g.file_id for g in groups]


def test_partitions_stay_apart() -> None:
    found = choose([group(n, 1, partition="ab"[n % 2]) for n in range(5)])
    assert [(w.partition, len(w.slices)) for w in found.windows] == [("a", 3)]


def test_what_cannot_be_clustered_ends_a_row() -> None:
    groups = [group(n, 1, logs=int(n == 3)) for n in range(7)]
    found = choose(groups, replace(TEN, logs=False), busy={groups[6].key: "in a pending clustering"})
    assert sizes(found) == [[1, 1, 1]]
    assert found.kept == {"it has log files": 1, "in a pending clustering": 1}


def test_a_full_run_takes_large_files_among_many_small_ones() -> None:
    options = ClusterOptions(target_size=10, small_size=5, full=True)
    assert sizes(choose([group(n, s) for n, s in enumerate([9, 9, 1, 9, 1, 1])], options)) == [[1, 9], [1, 1]]
    assert sizes(choose([group(n, s) for n, s in enumerate([1, 9, 9, 9])], options)) == []
    assert sizes(choose([group(n, s) for n, s in enumerate([9, 1, 1])], options)) == [[1, 1]]


def test_the_bytes_of_a_run_are_bounded() -> None:
    found = choose(
        [group(n, 4) for n in range(9)], ClusterOptions(target_size=10, small_size=5, max_bytes=20, min_files=3)
    )
    assert (len(found.windows), found.left) == (1, 2)
    assert (
        len(choose([group(n, 4) for n in range(9)], ClusterOptions(target_size=10, max_bytes=1, min_files=3)).windows)
        == 1
    )


SIZED = ClusterOptions(grouping=Grouping.SIZE, target_size=10, max_group_bytes=30)
SORTED = replace(SIZED, sort_by=("x",))


def test_groups_by_size() -> None:
    """Files of all sizes where they are sorted, in the order of their writes; each group becomes several files."""
    groups = [group(n, size) for n, size in enumerate([4, 25, 4, 4, 90, 1, 1])]
    found = choose(groups, SORTED)
    assert sizes(found) == [[4, 25], [4, 4], [90], [1, 1]]
    assert [w.outputs for w in found.windows] == [3, 1, 9, 1]
    assert sizes(choose(groups, SIZED)) == [[4, 4, 4, 1, 1]]
    assert sizes(choose(groups, replace(SORTED, max_groups=2))) == [[4, 25], [4, 4]]
    assert choose(groups, replace(SORTED, max_groups=2)).left == 2
    assert sizes(choose(groups, replace(SORTED, single_group=False))) == [[4, 25], [4, 4], [1, 1]]
    assert sizes(choose(groups, replace(SORTED, small_size=5))) == [[4, 4, 4, 1, 1]]
    assert sizes(choose([group(0, 4)], SIZED)) == []
    assert sizes(choose([group(0, 4, logs=1)], SIZED)) == [[4]]
    assert sizes(choose([group(0, 4), group(1, 4, partition="b")], SIZED)) == []


def test_what_is_sorted_is_not_sorted_again() -> None:
    groups = [group(n, size) for n, size in enumerate([9, 9, 2, 9, 30])]
    keys = [one.key for one in groups]
    found = choose(groups, SORTED, sorted_=keys[:3])
    assert (sizes(found), found.sorted) == ([[2, 9], [30]], 2)
    assert sizes(choose(groups[:3], SORTED, sorted_=keys)) == []
    assert choose(groups[:3], SORTED, sorted_=keys).why == "what is chosen is sorted already"
    assert sizes(choose([groups[4]], SORTED, sorted_=keys)) == [[30]]
    with_logs = replace(groups[0], slices=(replace(groups[0].slices[0], logs=group(0, 1, logs=1).slices[0].logs),))
    assert sizes(choose([with_logs], SORTED, sorted_=keys)) == [[9]]


def test_it_comes_to_an_end_by_size() -> None:
    random = np.random.default_rng(SEED)
    for options in (SIZED, SORTED):
        groups = [group(n, int(size)) for n, size in enumerate(random.integers(1, 30, 60))]
        done = set[GroupKey]()
        for number in range(9):
            found = choose(groups, options, sorted_=done)
            if not found.windows:
                break
            gone = {s.file_id for w in found.windows for s in w.slices}
            groups = [g for g in groups if g.file_id not in gone]
            for window in found.windows:
                for size in np.array_split(np.ones(window.bytes, int), window.outputs):
                    groups.append(group(1000 * number + len(groups), len(size)))
                    done.add(groups[-1].key)
        assert not found.windows
        assert all(g.slices[0].base_bytes <= 10 for g in groups) is bool(options.sort_by)


def names_of_days(options: ClusterOptions, hour: int = 0) -> list[str]:
    days = [f"2026/01/{day:02d}" for day in range(1, 31)]
    return [name.rpartition("/")[2] for name in selected(days, options, datetime(2026, 1, 1, hour))]


def test_the_partitions_of_a_selection() -> None:
    def of(**options: Any) -> list[str]:
        return names_of_days(ClusterOptions(**options))

    recent, chosen = PartitionSelection.RECENT_DAYS, PartitionSelection.SELECTED_PARTITIONS
    assert len(of()) == 30
    assert of(partition_filter=recent) == ["30", "29"]
    assert of(partition_filter=recent, lookback_partitions=3, skip_newest_partitions=1) == ["29", "28", "27"]
    assert len(of(partition_filter=recent, lookback_partitions=0)) == 30
    assert of(partition_filter=chosen, begin_partition="2026/01/03", end_partition="2026/01/05") == ["03", "04", "05"]
    assert of(partition_regex=r"2026/01/\d1") == ["01", "11", "21"]
    assert of(partition_regex="2026/01/0") == []
    assert of(partitions=("2026/01/07", "gone")) == ["07"]
    assert of(partition_regex=r".*/1\d", partition_filter=recent) == ["19", "18"]
    assert names_of_days(ClusterOptions(partition_filter=PartitionSelection.DAY_ROLLING), 3) == ["04", "28"]


def test_options_that_contradict() -> None:
    contradicting: list[dict[str, Any]] = [
        {"lookback_partitions": 3},
        {"begin_partition": "a"},
        {"partitions": ("a",), "partition_regex": "b"},
        {"partition_regex": "("},
        {"where": "a ="},
        {"max_group_bytes": 5},
        {"grouping": Grouping.SIZE, "min_files": 3},
        {"grouping": Grouping.SIZE, "target_size": 5, "small_size": 6},
        {"rewrite": ("",)},
        {"rewrite": ("codec,size",)},
        {"rewrite": ("sort-order",)},
        {"rewrite": ("all",), "copy": Copy.TRY},
        {"rewrite": ("all",), "grouping": Grouping.SIZE},
    ]
    for options in contradicting:
        with pytest.raises(UsageError):
            ClusterOptions(**options)


def test_files_with_a_reason_are_rewritten_each_by_itself() -> None:
    """Into as many as its size asks for; whatever is in a plan or has logs that are left alone stays."""
    groups = [group(n, size, logs=n == 3) for n, size in enumerate((1, 25, 4, 2, 1))]
    codec, both = frozenset({Rewrite.CODEC}), frozenset({Rewrite.CODEC, Rewrite.ROW_GROUPS})
    options = ClusterOptions(target_size=10, rewrite=("codec,row-groups",), logs=False, max_bytes=25)
    found = choose(groups, options, {groups[4].key: "in a plan"}, reasons=(frozenset(), both, codec, both, both))
    assert [(one.outputs, one.slices) for one in found.windows] == [(3, groups[1].slices)]
    assert (found.left, found.kept) == (1, {"it has log files": 1, "in a plan": 1})
    assert found.reasons == {"codec": FilesFor(files=2, bytes=29), "row-groups": FilesFor(files=1, bytes=25)}
    assert ClusterOptions(rewrite=("all",)).reasons == set(Rewrite) - {Rewrite.SORT_ORDER}
    assert ClusterOptions(rewrite=("all",), sort_by=("a",)).reasons == set(Rewrite)


def test_buckets_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="bucket"):
        choose([group(n, 1, bucket=True) for n in range(3)])
    assert choose([group(n, 1, bucket=n == 0) for n in range(9)]).windows  # one of many looks so by chance


def test_impossible_options() -> None:
    with pytest.raises(UsageError, match="small-size"):
        ClusterOptions(target_size=10, small_size=11)
    with pytest.raises(UsageError, match="min-files"):
        ClusterOptions(min_files=1)


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(2, 6), st.booleans())
def test_every_file_is_clustered_once_at_most(given_sizes: list[int], least: int, full: bool) -> None:
    options = ClusterOptions(target_size=10, small_size=5, min_files=least, full=full)
    groups = [group(n, size) for n, size in enumerate(given_sizes)]
    found = choose(groups, options)
    taken = [s.file_id for w in found.windows for s in w.slices]
    assert len(taken) == len(set(taken))
    order = [g.file_id for g in groups]
    for window in found.windows:
        first = order.index(window.slices[0].file_id)
        assert [s.file_id for s in window.slices] == order[first : first + len(window.slices)]
        assert len(window.slices) >= (2 if full else least)
    # Again and again it comes to an end: what was clustered is a file of the sum, at the place of the newest.
    for _ in range(50):
        if not found.windows:
            break
        gone = {s.file_id for w in found.windows for s in w.slices}
        made = [group(1000 + n, w.bytes) for n, w in enumerate(found.windows)]
        groups = [*(g for g in groups if g.file_id not in gone), *made]
        groups = [group(n, g.slices[0].base_bytes) for n, g in enumerate(groups)]
        found = choose(groups, options)
    assert not found.windows


def test_the_plan_comes_back() -> None:
    groups = (
        ClusterGroup(
            partition="a/b",
            file_id="new-0",
            slices=(
                PlannedSlice(file_id="f1", base="f1_0-0-0_1.parquet", logs=(".f1_1.log.1_0-0-0",)),
                PlannedSlice(file_id="f2", base="", logs=(".f2_1.log.1_0-0-0", ".f2_1.log.2_0-0-0")),
            ),
            outputs=3,
        ),
        ClusterGroup(partition="", file_id="other-0", slices=(PlannedSlice(file_id="f3", base="f3_0-0-0_1.parquet"),)),
    )
    found = decode_cluster_plan(
        encode_cluster_plan(ClusterPlan(groups=groups, sort_by=("x", "y"), sort_order="zorder"), "/data/table"), "where"
    )
    assert found is not None
    assert found.groups == groups
    assert [g.file_ids for g in groups] == [("new-0", "new-1", "new-2"), ("other-0",)]
    assert (found.sort_by, found.sort_order) == (("x", "y"), "zorder")
    assert decode_cluster_plan(b"", "where") is None
    assert decode_cluster_plan(encode_replace_request("INSERT_OVERWRITE", names_deletes=True), "where") is None
    with pytest.raises(MalformedError):
        decode_cluster_plan(b"no plan", "where")
    outside = ClusterGroup(
        partition="../b", file_id="new", slices=(PlannedSlice(file_id="f1", base="f1_0-0-0_1.parquet"),)
    )
    data = encode_cluster_plan(ClusterPlan(groups=(outside,)), "/data/table")
    with pytest.raises(MalformedError, match="partition"):
        decode_cluster_plan(data, "where")


@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_plan_of_hudi(version: int, tmp_path: Path) -> None:
    """Its new file ids are the same each time; a class that is not known is refused by its name."""
    path = unzip_golden(f"v{version}_clustered", tmp_path)
    (file,) = (p for p in path.rglob("*.requested") if "clustering" in p.name or "replacecommit" in p.name)
    plan = decode_cluster_plan(file.read_bytes(), file.name)
    assert plan is not None
    assert (plan.is_own, plan.sort_by, [group.outputs for group in plan.groups]) == (False, (), [1, 1])
    assert [[bool(one.logs) for one in group.slices] for group in plan.groups] == [[True, False]] * 2
    ids = [file_id for group in plan.groups for file_id in group.file_ids]
    assert ids == [i for g in (decode_cluster_plan(file.read_bytes(), "") or plan).groups for i in g.file_ids]
    assert len({*ids, *(one.file_id for group in plan.groups for one in group.slices)}) == 6
    plan.check_known(file.name)
    for strategy in ("org.apache.hudi.client.clustering.run.strategy.SparkConsistentBucketExecutionStrategy", "x.Mine"):
        with pytest.raises(UnsupportedError, match=strategy):
            replace(plan, strategy=strategy).check_known(file.name)
    with pytest.raises(UnsupportedError, match="bootstrapped"):
        replace(plan, has_bootstrap=True).check_known(file.name)
    assert not plan.spans_partitions


# Sorted clusterings: the order of rows, and that they are the same rows.


@pytest.mark.parametrize(("axes", "bits"), [(2, 4), (3, 3), (4, 2), (5, 2)])
def test_a_hilbert_curve_goes_from_neighbour_to_neighbour(axes: int, bits: int) -> None:
    """Through all places, each once."""
    places = np.indices((1 << bits,) * axes).reshape(axes, -1).astype(np.uint64)
    found = _hilbert(list(places), bits)
    assert sorted(found.tolist()) == list(range(len(found)))
    way = places[:, np.argsort(found)].astype(int)
    assert (np.abs(np.diff(way, axis=1)).sum(axis=0) == 1).all()


def test_a_z_curve_takes_bits_in_turn() -> None:
    found = _interleaved([np.array([0b10], np.uint64), np.array([0b11], np.uint64)], 2)
    assert found.tolist() == [0b1101]


def sorted_rows(
    rows: pa.Table, columns: Sequence[str], order: SortOrder, memory: int = 1 << 30, batch_rows: int = 7
) -> pa.Table:
    how = Sorting(columns=tuple(columns), order=order, memory=memory, folder=None, batch_rows=batch_rows)
    with ordered(rows.to_batches(max_chunksize=batch_rows), how) as found:
        assert found.rows == rows.num_rows
        return pa.Table.from_batches(found.next_rows(found.rows, batch_rows), rows.schema)


@pytest.mark.parametrize(
    ("columns", "order"),
    [
        (("c", "b"), SortOrder.ORDER),
        (("b", "a", "c"), SortOrder.HILBERT),
        ((), SortOrder.ORDER),
        deep(("a",), SortOrder.ORDER),
        deep(("b", "a", "c"), SortOrder.ORDER),
        *(deep(columns, SortOrder.ZORDER) for columns in (("a",), ("c", "b"), ("b", "a", "c"))),
        *(deep(columns, SortOrder.HILBERT) for columns in (("a",), ("c", "b"))),
    ],
)
@pytest.mark.parametrize("runs_max", [3, deep(64)])
def test_a_sort_on_disk_is_the_sort_in_memory(
    columns: Sequence[str], order: SortOrder, runs_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stable: equal rows keep their order. Also where inputs are sorted already, and where one value has most rows."""
    monkeypatch.setattr(sorting, "_RUNS_MAX", runs_max)
    monkeypatch.setattr(curves, "_SAMPLE_ROWS", 1000)
    random, count = np.random.default_rng(SEED), 5000
    rows = pa.table(
        {
            "a": pa.array(random.integers(0, 9, count), mask=random.random(count) < 0.1),
            "b": pa.array([f"s{n}" for n in random.integers(0, 70, count) // 40 * 3]),
            "c": pa.array(np.where(random.random(count) < 0.1, np.nan, random.random(count).round(2))),
            "n": np.arange(count),
            "__place": np.arange(count),
        }
    )
    for table in (rows, rows.sort_by([("c", "ascending")]).combine_chunks()):
        found = [sorted_rows(table, columns, order, memory, 100)["n"].to_pylist() for memory in (1 << 30, 300_000)]
        assert found[0] == found[1] == sorted_rows(table, columns, order, 1 << 30, 77)["n"].to_pylist()
        assert sorted(found[0]) == list(range(count))
        if order is SortOrder.ORDER or len(columns) < 2:
            keys = [(name, "ascending") for name in columns]
            expected = table.take(pc.sort_indices(table, sort_keys=keys)) if columns else table
            assert found[0] == expected["n"].to_pylist()


def test_large_rows_of_one_value_are_merged_within_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all of them are next to each other in a sorted run. No run is longer than a column of text may be."""
    memory, most = 4 << 20, list[int]()
    taken = sorting._MergeOfRuns._taken

    def noted(self: Any, *how: Any) -> pa.Table:
        most.append(sum(head.nbytes for head in self._heads))
        return taken(self, *how)

    monkeypatch.setattr(sorting._MergeOfRuns, "_taken", noted)
    is_large = np.arange(18_000) % 180 == 0
    text = ["x" * 90_000 if flag else "y" for flag in is_large]
    rows = pa.table({"a": is_large, "text": text, "n": np.arange(len(is_large))})
    found = sorted_rows(rows, ["a"], SortOrder.ORDER, memory, 90)
    assert found["n"].to_pylist() == [*np.flatnonzero(~is_large), *np.flatnonzero(is_large)]
    assert most
    assert max(most) < memory
    how = Sorting(columns=("a",), order=SortOrder.ORDER, memory=1 << 40, folder=None, batch_rows=1)
    assert how.held_bytes < 1 << 31


def test_rows_on_disk_are_all_there_and_leave_with_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter file is refused, or has all rows: only its end is missing. The runs of a merge are removed when
    they are read."""
    path, rows = tmp_path / "rows", pa.table({"a": range(6)})
    for read, length in product((SpillFile.read, SpillFile.read_once), range(0, 1200, 8)):
        file = SpillFile(str(path), rows.schema)
        file.append(rows.slice(0, 3))
        file.append(rows.slice(3))
        file.end()
        os.truncate(path, min(length, path.stat().st_size))
        with suppress(StorageError):
            assert pa.concat_tables(read(file)) == rows
    path.unlink(missing_ok=True)
    monkeypatch.setattr(sorting, "_RUNS_MAX", 3)
    how = Sorting(columns=("a",), order=SortOrder.ORDER, memory=1000, folder=str(tmp_path), batch_rows=10)
    rows = pa.table({"a": range(200)})
    with ordered(rows.to_batches(max_chunksize=10), how) as found:
        assert list(tmp_path.glob("*/*"))
        assert pa.Table.from_batches(found.next_rows(200, 10)) == rows
        wait_until(lambda: not list(tmp_path.glob("*/*")))
    assert not list(tmp_path.iterdir())


@given(st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.text("ab", max_size=2) | st.none()), max_size=30))
def test_the_rows_are_the_same(given_rows: list[tuple[int | None, str | None]]) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = pa.Table.from_pylist([{"a": a, "b": b} for a, b in given_rows], schema)
    for order in SortOrder:
        found = sorted_rows(rows, ["a", "b"], order)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))
    last = (float("inf"), "~")
    plain = [(last[0] if a is None else a, last[1] if b is None else b) for a, b in given_rows]
    linear = sorted_rows(rows, ["a", "b"], SortOrder.ORDER).to_pylist()
    assert [(last[0] if r["a"] is None else r["a"], last[1] if r["b"] is None else r["b"]) for r in linear] == sorted(
        plain
    )


def test_repeated_keys_are_counted_on_disk_too(tmp_path: Path) -> None:
    hashes = np.random.default_rng(SEED).integers(0, 1 << 64, 3000, np.uint64, endpoint=False)
    for limit in (None, 1000):
        with ExitStack() as stack:
            tally = KeyTally(stack, limit, str(tmp_path))
            for part in (*np.split(hashes, 6), hashes[:17], hashes[:3], np.array([0, 2**64 - 1] * 2, np.uint64)):
                tally.add(part)
            assert tally.repeated() == 22
            assert len(list(tmp_path.iterdir())) == (limit is not None)


def trips(ids: list[str], times: list[int], fares: list[float]) -> pa.Table:
    """A batch of one day."""
    return pa.table({"id": ids, "day": ["a"] * len(ids), "ts": times, "fare": fares})


@pytest.mark.parametrize(
    ("order", "dead"),
    [(order, number > 0) for number, order in enumerate(SortOrder)]
    + [deep(order, number == 0) for number, order in enumerate(SortOrder)],
)
def test_a_clustered_file_is_sorted(order: SortOrder, dead: bool, tmp_path: Path) -> None:
    """By the process that planned it, and by the one that finishes it."""
    path = tmp_path / "trips"
    rows = small_files(path, 9, 6)
    upsert(path, trips([f"x{n}" for n in range(9)], [9 - n for n in range(9)], [float(n % 3) for n in range(9)]))
    rows = read_rows(path)
    options = ClusterOptions(min_files=2, wait_s=0, sort_by=("fare", "ts"), sort_order=order)
    if dead:
        request(path, alive=False, options=options)
        assert cluster(path).finished
    else:
        assert cluster(path, options=options).done is not None
    assert read_rows(path) == rows
    (file_id,) = living(path)
    (file,) = path.glob(f"*/{file_id}*")
    made = pq.read_table(file, partitioning=None)
    expected = sorted_rows(made, ["fare", "ts"], order)
    assert made.select(["fare", "ts"]) == expected.select(["fare", "ts"])
    assert made["ts"].to_pylist() != sorted(made["ts"].to_pylist())


def test_what_cannot_be_sorted(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    before = sorted(p.name for p in path.rglob("*"))
    for names in (("nothing",), ("fare", "fare"), ("_hoodie_file_name",)):
        with pytest.raises(UsageError, match="sort by"):
            cluster(path, options=ClusterOptions(min_files=2, sort_by=names))
    assert sorted(p.name for p in path.rglob("*")) == before
    count = 300_000
    upsert(path, trips([f"x{n}" for n in range(count)], [1] * count, [0.5] * count))
    cluster_table(open_table(path), ClusterOptions(min_files=2, sort_by=("ts",)), LOCK,
                 output=OutputOptions(memory_limit=32 << 20))  # fmt: skip
    assert len(read_rows(path)) == len(rows) + count


_META = [pa.field(f"_hoodie_{name}", pa.string()) for name in ("commit_time", "record_key", "file_name")]
_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "text": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(3), "date": pa.date32(), "price": pa.decimal128(9, 2),
    "ms": pa.timestamp("ms", "UTC"), "us": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"),
    "time_ms": pa.time32("ms"), "time_us": pa.time64("us"), "list": pa.list_(pa.int32()),
    "map": pa.map_(pa.string(), pa.float32()), "record": pa.struct([("a", pa.int32()), ("b", pa.list_(pa.date32()))]),
}  # fmt: skip
_SCHEMA = pa.schema([*_META, *_TYPES.items()])


def reasons_of(schema: pa.Schema, rows: int, written: OutputOptions, wanted: OutputOptions, now: pa.Schema) -> set[str]:
    """Of a file of rows of nulls, written with some options, of a table with another schema `now`."""
    keys = pa.array([f"k{number}" for number in range(rows)])
    columns = [keys if field in _META else pa.nulls(rows, field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    out = io.BytesIO()
    key = "_hoodie_record_key"
    batches = [batch.slice(at, 1000) for at in range(0, rows, 1000)]
    write_base_file(out, batches, name="f", schema=schema, schema_text="", key_column=key, output=written)
    file = pq.ParquetFile(io.BytesIO(out.getvalue()))
    return {one.value for one in rewrite_reasons(file.metadata, file.schema_arrow, now, wanted)}


def test_a_file_as_it_is_written_has_no_reason_to_be_rewritten() -> None:
    """Else a rewriting would never end."""
    for codec, bloom, (rows, size) in product(Codec, Bloom, ((0, 10), (1, 10), (10, 1), (25, 10), (10, 10))):
        output = OutputOptions(codec=codec, bloom=bloom, row_group_rows=size)
        assert reasons_of(_SCHEMA, rows, output, output, _SCHEMA) == set()


_NOW = OutputOptions(row_group_rows=10)


def test_reasons_to_rewrite_a_file() -> None:
    cases: list[tuple[OutputOptions, pa.Schema, set[str]]] = [
        (replace(_NOW, codec=Codec.GZIP), _SCHEMA, {"codec"}),
        (replace(_NOW, bloom=Bloom.OFF), _SCHEMA, {"bloom-filters"}),
        (replace(_NOW, row_group_rows=21), _SCHEMA, {"row-groups"}),
        (replace(_NOW, row_group_rows=4), _SCHEMA, {"row-groups"}),
        (replace(_NOW, row_group_rows=5), _SCHEMA, set()),
        (_NOW, _SCHEMA.remove(5), {"dropped-columns"}),
        (_NOW, _SCHEMA.set(20, pa.field("record", pa.struct([("a", pa.int32())]))), {"dropped-columns"}),
        (_NOW, _SCHEMA.set(4, pa.field("int", pa.int64())), {"widened-types"}),
        (_NOW, _SCHEMA.set(12, pa.field("price", pa.decimal128(18, 2))), {"widened-types"}),
        (_NOW, _SCHEMA.set(18, pa.field("list", pa.list_(pa.int64()))), {"widened-types"}),
        (_NOW, _SCHEMA.set(19, pa.field("map", pa.map_(pa.string(), pa.float64()))), {"widened-types"}),
        (_NOW, _SCHEMA.append(pa.field("new", pa.string())), set()),
    ]
    for written, schema, expected in cases:
        assert reasons_of(_SCHEMA, 40, written, _NOW, schema) == expected, (written, schema)


def test_a_filter_of_too_many_keys_is_no_reason() -> None:
    """The writer would write the same one."""
    maybe = ALWAYS_TRUE.text.encode()
    assert not _lacks_filter(maybe, SATURATED_KEYS + 1, Bloom.ON)
    assert _lacks_filter(maybe, SATURATED_KEYS, Bloom.ON)
    assert not _lacks_filter(maybe, 1, Bloom.OFF)
    assert _lacks_filter(None, 1, Bloom.OFF)


def test_row_groups_that_memory_cuts_are_no_reason() -> None:
    """Until there is more memory."""
    small, large = (OutputOptions(memory_limit=limit) for limit in (32 << 20, 1 << 30))
    schema = pa.schema([*_META, ("text", pa.binary(2000))])
    assert reasons_of(schema, 20_000, small, small, schema) == set()
    assert reasons_of(schema, 20_000, small, large, schema) == {"row-groups"}


INT = pa.int32()


def drop_column(path: Path) -> None:
    """In the newest commit, as Hudi lets columns be dropped."""
    upsert(path, trips(["k9"], [9], [9.0]))
    commit = max(path.glob(".hoodie/*commit"))
    metadata = json.loads(commit.read_text())
    schema = json.loads(metadata["extraMetadata"]["schema"])
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "tip"]
    metadata["extraMetadata"]["schema"] = json.dumps(schema)
    commit.write_text(json.dumps(metadata))


def with_tip(path: Path, kind: pa.DataType = INT) -> None:
    upsert(path, trips(["k8"], [8], [8.0]).append_column("tip", pa.array([8], kind)))


GZIP = OutputOptions(codec=Codec.GZIP, row_group_rows=3)


def rewrite(path: Path, reason: str, output: OutputOptions = GZIP, *, dry_run: bool = False) -> ClusterResult:
    options = ClusterOptions(rewrite=(reason,), sort_by=("ts",), wait_s=0)
    return cluster_table(open_table(path), options, LOCK, output=output, dry_run=dry_run)


REWRITES: dict[str, tuple[list[Callable[[Path], object]], int]] = {
    "codec": ([], 4),
    "row-groups": ([lambda path: upsert(path, trips([f"x{n}" for n in range(9)], [1] * 9, [1.0] * 9))], 1),
    "dropped-columns": ([with_tip, drop_column], 2),
    "widened-types": ([with_tip, partial(with_tip, kind=pa.int64())], 1),
    "bloom-filters": ([partial(rewrite, reason="codec", output=replace(GZIP, bloom=Bloom.OFF))], 4),
    "sort-order": ([], 4),
}
"""What a table needs for a reason, and the number of files that have it then."""


def test_a_rewritten_file_is_not_rewritten_again(tmp_path: Path) -> None:
    for reason in Rewrite:
        check_rewritten_once(reason, tmp_path / reason.value)


def check_rewritten_once(reason: Rewrite, path: Path) -> None:
    """No row changes, and no read of the past."""
    small_files(path, 6)
    prepare, files = REWRITES[reason.value]
    for do in prepare:
        do(path)
    rows, times = read_rows(path), [i.requested_time for i in open_table(path).load_timeline().completed]

    def past() -> list[pa.Table]:
        return [read_table(open_table(path), ReadOptions(as_of=time)) for time in times]

    before = past()
    would, done = rewrite(path, reason.value, dry_run=True), rewrite(path, reason.value).done
    assert would.reasons[reason.value].files == files
    assert done is not None
    assert (done.files, done.made) == (files, files)
    assert read_rows(path) == rows
    again = rewrite(path, reason.value)
    assert (again.done, again.why, again.reasons) == (None, "no file has a reason to be rewritten", {})
    assert past() == before
