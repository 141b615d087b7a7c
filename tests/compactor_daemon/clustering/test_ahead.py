"""Writes of file groups whose files a clustering is making: they go on, and only their groups are left out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.pending_clusterings import remove_dead_runs
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, Tasks, read_back
from phantombase.compactor_daemon.cleaning.choice import Policy
from phantombase.compactor_daemon.clustering import outputs, tasks
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.compactor_daemon.clustering.outputs import Made, OutputFileSpec, make
from phantombase.compactor_daemon.clustering.result import ClusterResult
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import LedgerError, StorageError
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import CLUSTERINGS
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import (
    OUTPUT,
    WRITES,
    clean,
    cluster,
    compact,
    forget_heartbeats,
    hidden,
    living,
    of_clustering,
    one_row,
    opens_attempt,
    overwrite,
    restore,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK, one_of
from tests.support.written_tables import Rows, check_nothing_left, impatient, read_rows

Do = Callable[[], object]
AT_ONCE = impatient(WRITES)


def pairs(path: Path) -> ClusterOptions:
    """Two files become one."""
    size = 3 * max(file.stat().st_size for file in path.glob("*/*.parquet")) // 2
    return ClusterOptions(min_files=2, target_size=size, small_size=size, wait_s=0)


def makes_a_file(call: Call) -> bool:
    return call.name == "open_output" and of_clustering(call.path)


def once(path: Path, at: Callable[[Call], bool], do: Do, made: list[str] | None = None) -> Storage:
    """A storage of a clustering during which something happens once, before a call. `made`: gets the staged files."""
    done: list[str] = []

    def hook(call: Call) -> object:
        if made is not None and makes_a_file(call):
            made.append(call.path)
        if at(call) and not done:
            done.append(call.path)
            do()
        return call.do()

    return HookedStorage(open_table(path).storage, hook)


def written_meanwhile(path: Path, do: Do) -> ClusterResult:
    return cluster(path, once(path, makes_a_file, do), pairs(path))


def delete(path: Path, key: str) -> None:
    what = Write(operation=Operation.DELETE, options=AT_ONCE)
    write(open_table(path), LocalEngine(one_row(key, 0), slots=1), what)


@one_of("version", 9, 6, 8)
@pytest.mark.parametrize("what", ["update", "delete"])
def test_a_group_that_is_written_to_is_left_out(version: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)

    def do() -> None:
        if what == "update":
            upsert(path, one_row("k0", 100), AT_ONCE)
        else:
            delete(path, "k0")

    result = written_meanwhile(path, do)
    assert result.done is not None
    assert (result.left_out, result.done.files, result.done.made) == (1, 2, 1)
    expected = {**rows, "k0": (100, 100.0)} if what == "update" else {k: r for k, r in rows.items() if k != "k0"}
    assert read_rows(path) == expected
    assert len(living(path)) == 3
    check_nothing_left(path)
    compact(path)
    assert read_rows(path) == expected
    assert cluster(path).done is not None
    assert read_rows(path) == expected


@one_of("version", 6, 9, 8)
def test_new_rows_leave_no_group_out(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    result = written_meanwhile(path, lambda: upsert(path, one_row("new", 7), AT_ONCE))
    assert result.done is not None
    assert (result.left_out, result.done.files) == (0, 4)
    assert read_rows(path) == {**rows, "new": (7, 7.0)}
    check_nothing_left(path)


def test_a_write_that_completes_after_its_log_was_read(tmp_path: Path) -> None:
    """On version 6 the slice has the same files before and after that: its rows were left out of the new file."""
    path = tmp_path / "trips"
    rows = small_files(path, 6)
    options, placed, go = pairs(path), threading.Event(), threading.Event()

    def pauses(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".deltacommit"):
            placed.set()
            assert go.wait(60)
        return call.do()

    def upserts() -> None:
        storage = HookedStorage(open_table(path).storage, pauses)
        what = Write(operation=Operation.UPSERT, options=AT_ONCE)
        write(open_table(path, storage), LocalEngine(one_row("k0", 100), slots=1), what)

    writes = threading.Thread(target=upserts)
    writes.start()
    assert placed.wait(60)

    def completes() -> None:
        go.set()
        writes.join()

    def is_made(call: Call) -> bool:
        return call.name == "put_if_absent" and call.path.endswith("/1.ok")

    result = cluster(path, once(path, is_made, completes), options)
    assert result.done is not None
    assert (result.left_out, result.done.files) == (1, 2)
    assert read_rows(path) == {**rows, "k0": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 6, 8)
def test_nothing_is_requested_where_all_groups_are_written_to(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    before = {i.requested_time for i in open_table(path).load_timeline().instants}

    def do() -> None:
        upsert(path, one_row("k0", 100), AT_ONCE)
        upsert(path, one_row("k3", 300), AT_ONCE)

    result = written_meanwhile(path, do)
    assert (result.done, result.left_out) == (None, 2)
    assert len({i.requested_time for i in open_table(path).load_timeline().instants} - before) == 2
    assert read_rows(path) == {**rows, "k0": (100, 100.0), "k3": (300, 300.0)}
    check_nothing_left(path)


def _compaction(path: Path) -> None:
    assert schedule_compaction(open_table(path), LOCK, PLAN_NOW).instant is not None


def _cleaned(path: Path) -> None:
    """The file that was read is gone when its task opens it."""
    _compaction(path)
    compact(path)
    assert clean(path, Policy.VERSIONS, 1).files


def _restored(path: Path) -> None:
    completed = sorted(open_table(path).load_timeline().completed_writes)
    restore(path, completed[-2])


def _column(path: Path) -> None:
    upsert(path, one_row("wide", 5).append_column("tip", pa.array([1.5])), AT_ONCE)


@one_of("version", 9, 6, 8)
@pytest.mark.parametrize(("do", "left"), [(_compaction, 1), (_cleaned, 1), (_restored, 1), (_column, 2), (cluster, 2)])
def test_what_others_change_meanwhile(version: int, do: Callable[[Path], object], left: int, tmp_path: Path) -> None:
    """A plan, files that go, a write that is undone, another schema, another clustering."""
    path = tmp_path / "trips"
    small_files(path, version)
    options = pairs(path)
    upsert(path, one_row("k0", 50))
    expected: Rows = {}

    def then() -> None:
        do(path)
        expected.update(read_rows(path))

    result = cluster(path, once(path, makes_a_file, then), options)
    assert (result.left_out, result.done is not None) == (left, left == 1)
    assert read_rows(path) == expected
    compact(path)
    check_nothing_left(path, served=True)
    assert read_rows(path) == expected


@one_of("version", 9, 6)
def test_a_partition_that_is_overwritten_meanwhile(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    result = written_meanwhile(path, lambda: overwrite(path, one_row("only", 7)))
    assert (result.done, result.left_out) == (None, 2)
    assert read_rows(path) == {"only": (7, 7.0)}
    check_nothing_left(path)


@one_of("version", 6, 9, 8)
def test_it_is_requested_again_without_what_a_write_changed_that_did_not_know_the_plan(
    version: int, tmp_path: Path
) -> None:
    """The staged files of the other groups are used; each was made once."""
    path = tmp_path / "trips"
    rows, made = small_files(path, version), list[str]()
    storage = once(path, opens_attempt, lambda: hidden(path, lambda: upsert(path, one_row("k0", 100), AT_ONCE)), made)
    result = cluster(path, storage, pairs(path))
    assert result.done is not None
    assert (result.left_out, result.done.files, len(made)) == (1, 2, 2)
    assert read_rows(path) == {**rows, "k0": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_staged_files_stay_while_their_process_lives(version: int, tmp_path: Path) -> None:
    """Those of a dead one go; if they go too early, they are made again."""
    path = tmp_path / "trips"
    rows, made = small_files(path, version), list[str]()

    def requests(call: Call) -> bool:
        return (
            call.path.endswith((".clustering.requested", ".replacecommit.requested")) and call.name == "put_if_absent"
        )

    cluster(path, once(path, requests, lambda: remove_dead_runs(open_table(path)), made), pairs(path))
    assert len(made) == 2
    assert read_rows(path) == rows
    check_nothing_left(path)
    made.clear()

    def gone() -> None:
        forget_heartbeats(path)
        remove_dead_runs(open_table(path))
        assert not list((path / CLUSTERINGS).glob("*"))

    assert cluster(path, once(path, requests, gone, made)).done is not None
    assert len(made) == 2
    assert read_rows(path) == rows
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_a_death_while_files_are_made_leaves_no_plan(version: int, tmp_path: Path) -> None:
    """A write of these files does not wait."""
    path = tmp_path / "trips"
    rows = small_files(path, version)

    def dies() -> None:
        raise ProcessDied("while it makes a file")

    with pytest.raises(ProcessDied):
        cluster(path, once(path, lambda call: call.name == "put_if_absent" and call.path.endswith(".ok"), dies))
    upsert(path, one_row("k1", 100), AT_ONCE)
    forget_heartbeats(path)
    assert cluster(path).done is not None
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_the_next_run_takes_over_what_a_dead_one_made(version: int, tmp_path: Path) -> None:
    """Of the groups that it chooses; one was written to since then."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 6)
    options, made = pairs(path), list[str]()

    def dies(call: Call) -> object:
        if len(made) == 3:
            raise ProcessDied(call.path)
        made.extend([call.path] if call.name == "put_if_absent" and call.path.endswith(".ok") else [])
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, dies), options)
    forget_heartbeats(path)
    upsert(path, one_row("k0", 100), AT_ONCE)
    made.clear()
    result = cluster(path, once(path, lambda call: False, lambda: None, made), options)
    assert result.done is not None
    assert (result.done.made, result.left_out) == (3, 0)
    assert len(made) == 1  # with the update; the two others were made
    assert read_rows(path) == {**rows, "k0": (100, 100.0)}
    check_nothing_left(path)


def dies_when_staged(path: Path, options: ClusterOptions, output: OutputOptions = OUTPUT) -> None:
    """A run that dies right before its request; its files are there."""

    dead: list[str] = []

    def hook(call: Call) -> object:
        if dead or (call.name == "put_if_absent" and call.path.endswith((".clustering.requested", "commit.requested"))):
            dead.append(call.path)
            raise ProcessDied(call.path)
        return call.do()

    storage = HookedStorage(open_table(path).storage, hook)
    with pytest.raises(ProcessDied):
        cluster_table(open_table(path, storage), options, LOCK, output=output)
    assert list((path / CLUSTERINGS).glob("*/*.ok"))
    forget_heartbeats(path)


@one_of("version", 9, 6)
def test_a_runner_gets_one_task_at_least(version: int, tmp_path: Path) -> None:
    """Spark runs no job without tasks: not where all is made, and not where all groups were written to."""
    path = tmp_path / "trips"
    rows, made = small_files(path, version), list[int]()
    options = pairs(path)

    def run(storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]:
        made.append(len(tasks))
        upsert(path, one_row("k0", 100), AT_ONCE)
        upsert(path, one_row("k3", 300), AT_ONCE)
        raise StorageError("a file that was read is gone")

    result = cluster_table(open_table(path), options, LOCK, output=OUTPUT, runner=run)
    assert (result.done, result.left_out, made) == (None, 2, [2])
    check_nothing_left(path)
    dies_when_staged(path, options)
    result = cluster_table(open_table(path), options, LOCK, output=OUTPUT, runner=run)
    assert result.done is not None
    assert (result.done.files, made) == (4, [2])
    assert read_rows(path) == {**rows, "k0": (100, 100.0), "k3": (300, 300.0)}
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_a_file_of_other_options_is_not_taken_over(version: int, tmp_path: Path) -> None:
    """A rewriting for the codec would write the old one, and say that it is done."""
    path = tmp_path / "trips"
    small_files(path, version)
    options = ClusterOptions(rewrite=("codec",), wait_s=0)
    gzip, snappy = replace(OUTPUT, codec=Codec.GZIP), replace(OUTPUT, codec=Codec.SNAPPY)
    dies_when_staged(path, options, gzip)
    assert cluster_table(open_table(path), options, LOCK, output=snappy).done is not None
    assert cluster_table(open_table(path), options, LOCK, output=snappy).done is None
    check_nothing_left(path)


@one_of("version", 9, 6)
def test_rows_name_their_file_group(version: int, tmp_path: Path) -> None:
    """The instant of the file is not known when it is made."""
    path = tmp_path / "trips"
    small_files(path, version)
    cluster(path)
    assert set(read_table(open_table(path))["_hoodie_file_name"].to_pylist()) == set(living(path))


def test_no_file_of_a_group_is_left_if_one_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is read back while the next one is written: that one is removed, too."""
    path, left = tmp_path / "trips", list[list[str]]()
    rows = small_files(path, 9, 6)
    size = max(file.stat().st_size for file in path.glob("*/*.parquet"))
    options = ClusterOptions(grouping=Grouping.SIZE, target_size=2 * size, sort_by=("id",), wait_s=0)

    def lost(storage: Storage, staged: str, rules: SliceRules) -> tuple[int, int, int]:
        count, hash_, size = read_back(storage, staged, rules)
        return count - 1, hash_, size

    def made(storage: Storage, recipe: OutputFileSpec, *how: Any) -> Made:
        try:
            return make(storage, recipe, *how)
        except LedgerError:
            left.append([entry.name for entry in storage.list(recipe.folder) if entry.name.endswith(".parquet")])
            raise

    monkeypatch.setattr(outputs, "read_back", lost)
    monkeypatch.setattr(tasks, "make", made)
    with pytest.raises(LedgerError, match="has other rows than were written"):
        cluster(path, options=options)
    assert left == [[]]
    check_nothing_left(path)
    monkeypatch.undo()
    done = cluster(path, options=options).done
    assert done is not None
    assert done.made == 3
    assert read_rows(path) == rows
