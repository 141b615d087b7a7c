"""The metadata table is built for a table that has none, and built again, while others write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archived_files import Archive, remove_instants
from phantombase.compactor_daemon.metadata_services import runs
from phantombase.compactor_daemon.metadata_services.build import MetadataBuilt, build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.errors import (
    ConflictError,
    LockError,
    MissingFileError,
    PhantombaseError,
    TableChangedError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.instants.instant_files import load_state_files, of_instants
from phantombase.timeline.locks.heartbeat import BEAT_S, heartbeat
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock
from phantombase.timeline.metadata_table import index_logs
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import BUILDS, METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.in_progress import exclusive
from phantombase.timeline.table.table import Snapshot, Table, open_metadata_table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.write.write import Written, write
from tests.support.compaction_steps import open_table, run_all
from tests.support.evolved_tables import alter, columns_of
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import Faults, LockLostBehind, make_old, pending_write
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.metadata_tables import AT_ONCE, entries, files_of, rows, serve
from tests.support.record_indexes import check_index
from tests.support.selection import ALL, deep

LOCK = ProcessLock("x")
NO_WAIT = BuildOptions(pending_wait_s=0)
ALL_OF = {
    "v6": ("files", "column_stats", "bloom_filters"),
    "v8": ("files", "column_stats", "partition_stats", "bloom_filters"),
    "v9": ("files", "column_stats", "partition_stats", "bloom_filters"),
}


def without(version: str, into: Path, case: str = "with_metadata_table") -> Path:
    path = unzip_golden(f"{version}_{case}", into)
    drop_metadata_table(open_table(path), LOCK)
    return path


@pytest.fixture(params=["v9", "v6", deep("v8")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table of real Hudi without a metadata table."""
    return without(request.param, tmp_path)


def build(path: Path, options: BuildOptions = NO_WAIT, *, again: bool = False, hook: object = None) -> MetadataBuilt:
    storage: Storage = LocalStorage(str(path))
    table = open_table(path, storage if hook is None else HookedStorage(storage, hook))  # type: ignore[arg-type]
    return build_metadata(table, options, LOCK, again=again)


def check(path: Path, *partitions: str) -> Table:
    table = open_table(path)
    assert set(table.config.metadata_partitions) >= set(partitions)
    assert validate(table).differences == ()
    assert not list((path / BUILDS).glob("*"))
    return table


@pytest.mark.parametrize("version", ["v9", "v6", deep("v8")])
def test_it_says_what_hudi_said(version: str, tmp_path: Path) -> None:
    path = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    table = open_table(path)
    said = {name: dict(read_entries(table, name)) for name in table.config.built_metadata_partitions}
    drop_metadata_table(table, LOCK)
    assert set(build(path, BuildOptions(indexes=(",".join(said),), pending_wait_s=0)).built) == set(said)
    for name in said:
        found = dict(read_entries(check(path, *said), name))
        if name == "partition_stats":  # bounds are widened from now on
            assert {r["ColumnStatsMetadata"].pop("isTightBound") for r in found.values()} == {False}
            assert {r["ColumnStatsMetadata"].pop("isTightBound") for r in said[name].values()} == {True}
        assert found == said[name]


@pytest.mark.parametrize("case", ["plain", "replaced", "rolled_back", "archived", "two_pending", "bucket_nonpart"])
@pytest.mark.parametrize("version", ["v9", "v6"])
def test_tables_of_hudi(version: str, case: str, tmp_path: Path) -> None:
    """Before and after a write and a compaction of the metadata table."""
    path = without(version, tmp_path, case)
    check(path, *build(path).built)
    if case == "plain":
        writer(rows(range(3), 10**7)).upsert(str(path))
        assert len(serve(check(path), AT_ONCE).compactions) == 1
        check(path)


def test_what_completes_meanwhile_is_added(path: Path) -> None:
    """A write that begins and completes while files are staged, and one that began before and completes after."""
    done = False

    def upsert(call: Call) -> object:
        nonlocal done
        if call.name == "open_output" and BUILDS in call.path and not done:
            done = True
            writer(rows(range(6), 10**7)).upsert(str(path))
        return call.do()

    names = ALL_OF["v9" if open_table(path).layout.has_completion_times else "v6"]
    assert build(path, BuildOptions(indexes=names, pending_wait_s=0), hook=upsert).rounds == 1
    check(path, *names)
    built = build_in_a_write(path)
    assert built.rounds == 0
    check(path, *names)


def test_what_completes_right_before_the_lock_is_added(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last look at the timeline without it."""
    done = list[Written]()

    @contextmanager
    def later(table: Table, lock: TableLock, why: str, *given: Any, **more: Any) -> Iterator[Snapshot]:
        if why == "make the metadata table visible" and not done:
            done.append(writer(rows(range(6), 10**7)).upsert(str(path)))
        with exclusive(table, lock, why, *given, **more) as held:
            yield held

    monkeypatch.setattr("phantombase.compactor_daemon.metadata_services.build.exclusive", later)
    check(path, *build(path).built)
    assert done


def build_in_a_write(path: Path) -> MetadataBuilt:
    """Everything is built again after a write began, before it completes."""
    done = list[MetadataBuilt]()

    def hook(call: Call) -> object:
        if call.name == "place" and not done:
            done.append(build(path, again=True))
        return call.do()

    storage = HookedStorage(LocalStorage(str(path)), hook)
    options = Write(operation=Operation.UPSERT, options=WriteOptions())
    write(open_table(path, storage), LocalEngine(rows(range(6), 10**8), slots=1), options)
    return done[0]


def test_a_pending_write_of_hudi_is_waited_for(path: Path) -> None:
    """One of phantombase is not: it asks in the lock; nor is a savepoint. Nothing is visible where the wait ends; the
    next run tidies."""
    version = open_table(path).config.version
    inflight = pending_write(path, version, "20270101000000000")
    with pytest.raises(ConflictError, match="actions of other programs are pending") as error:
        build(path)
    assert error.value.instant == "20270101000000000"
    assert not open_table(path).config.metadata_partitions
    assert not (path / METADATA_FOLDER).exists()
    with heartbeat(LocalStorage(str(path)), "20270101000000000", BEAT_S):
        check(path, *build(path).built)
    drop_metadata_table(open_table(path), LOCK)
    inflight.unlink()
    inflight.with_suffix(".requested").unlink()
    inflight.with_name(f"{open_table(path).load_timeline().latest_completed}.savepoint.inflight").touch()
    check(path, *build(path).built)


def test_partitions_are_added_to_one_that_is_there(tmp_path: Path) -> None:
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    said = entries(open_table(path))
    assert build(path, BuildOptions(indexes=("bloom_filters",))).built == ("bloom_filters",)
    found = entries(check(path, "bloom_filters"))
    assert {name: found[name] for name in said} == said
    assert len(found["bloom_filters"]) == 2
    assert build(path).why == "the table has these partitions already"


def test_one_partition_is_built_again(tmp_path: Path) -> None:
    """Its HFiles are gone; the others stay as they are."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    writer(rows(range(6), 10**7)).upsert(str(path))
    serve(open_table(path))
    said, others = entries(open_table(path)), files_of(path / METADATA_FOLDER / "files")
    for file in (path / METADATA_FOLDER / "column_stats").glob("*.hfile"):
        file.unlink()
    with pytest.raises(PhantombaseError):
        entries(open_table(path))
    assert build(path, BuildOptions(indexes=("column_stats",)), again=True).built == ("column_stats",)
    found = entries(check(path, "column_stats"))
    newest = set(said["column_stats"])
    assert {name: found[name] for name in ("files", "partition_stats")} == {n: said[n] for n in found if n[0] in "fp"}
    assert set(found["column_stats"]) == newest
    assert others <= files_of(path / METADATA_FOLDER / "files")
    writer(rows(range(6), 10**8)).upsert(str(path))
    assert len(serve(open_table(path)).compactions) == 1
    check(path, "column_stats")


def test_only_hudi_builds_what_is_left_out(tmp_path: Path) -> None:
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("=column_stats,files", "=column_stats,files,expr_index_x"))
    done = build(path, again=True)
    assert done.dropped == ("expr_index_x",)
    assert set(check(path).config.metadata_partitions) == set(done.built)


def test_a_dry_run_changes_nothing(path: Path) -> None:
    before = files_of(path)
    planned = build_metadata(open_table(path), NO_WAIT, LOCK, dry_run=True)
    assert files_of(path) == before
    done = build(path)
    assert (planned.built, planned.files, planned.partitions) == (done.built, done.files, done.partitions)
    assert planned.bytes > 0


@pytest.mark.parametrize(
    ("version", "names", "what"),
    [
        ("v6", "partition_stats", "Hudi 0.15 does not know it"),
        ("v9", "secondary", "does not build this index"),
        ("v9", "files,expression", "does not build this index"),
    ],
)
def test_refused_by_name(version: str, names: str, what: str, tmp_path: Path) -> None:
    path = without(version, tmp_path)
    before = files_of(path)
    with pytest.raises(UnsupportedError, match=what):
        build(path, BuildOptions(indexes=(names,)))
    assert files_of(path) == before


def refused(path: Path, what: str, options: BuildOptions) -> None:
    """Also before a partition is taken out."""
    before = files_of(path)
    for dry_run in (True, False):
        with pytest.raises(UnsupportedError, match=what):
            build_metadata(open_table(path), options, LOCK, again=True, dry_run=dry_run)
    assert files_of(path) == before


def test_columns_that_cannot_be_measured(tmp_path: Path) -> None:
    evolved = unzip_golden("v9_with_metadata_table", tmp_path)
    alter(open_table(evolved), columns_of(open_table(evolved)))
    refused(evolved, "schema evolution on read", NO_WAIT)
    empty = tmp_path / "empty"
    empty.mkdir()
    create_table(LocalStorage(str(empty)), NewTable(name="t", version=9, key_fields=("id",), partition_fields=("p",)))
    refused(empty, "without a completed write", BuildOptions(indexes=("column_stats",)))
    assert build(empty).built == ("files",)
    check(empty, "files")


def test_another_process_has_made_it_meanwhile(path: Path) -> None:
    done = list[MetadataBuilt]()

    def other(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path and not done:
            done.append(build(path))
        return call.do()

    with pytest.raises(ConflictError, match="another process changed the metadata table"):
        build(path, hook=other)
    assert validate(open_table(path)).differences == ()


def test_a_lost_base_file_is_noticed(path: Path) -> None:
    """Before and after a write that adds a log file to it."""
    build(path)
    for number in range(2):
        (base,) = (path / METADATA_FOLDER / "files").glob("*.hfile")
        moved = base.rename(path / "moved")
        with pytest.raises(PhantombaseError, match="metadata TABLE --rebuild"):
            validate(open_table(path))
        moved.rename(base)
        check(path, "files")
        writer(rows(range(6), 10**7 + number)).upsert(str(path))


def test_an_archiver_may_take_the_delta_commit_that_filled_it(path: Path) -> None:
    """Hudi's does so by its time alone, before a compaction has merged anything."""

    def upsert(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path and not done:
            done.append(writer(rows(range(6), 10**7)).upsert(str(path)))
        return call.do()

    done = list[object]()
    assert build(path, OF_KEYS, hook=upsert).rounds == 1
    writer(rows(range(3), 10**8)).upsert(str(path))
    table = open_table(path)
    metadata, said = open_metadata_table(table), entries(table)
    files = load_state_files(metadata.storage, metadata.config)
    fills = tuple(i for i in metadata.timeline.completed if i.requested_time.startswith(ARTIFICIAL))
    assert len(fills) == 1
    Archive(storage=metadata.storage, config=metadata.config, moment=table.times.moment).write(
        fills, metadata.timeline, files
    )
    remove_instants(metadata.storage, of_instants(files, fills))
    assert entries(open_table(path)) == said
    check(path, "files", "record_index")
    check_index(path)


def test_a_rollback_of_an_earlier_write_drops_it(path: Path) -> None:
    """The files of the write are in what was built, and no delta commit of it could be removed."""
    writer(rows(range(100, 106), 10**7)).upsert(str(path))
    build(path)
    assert roll_back_newest(open_table(path), LOCK, newest_write(path)).metadata_dropped
    assert not open_table(path).config.metadata_partitions
    build(path)
    writer(rows(range(100, 106), 10**8)).upsert(str(path))
    assert not roll_back_newest(open_table(path), LOCK, newest_write(path)).metadata_dropped
    check(path, "files")


def newest_write(path: Path) -> str:
    return max(open_table(path).load_timeline().completed_writes)


def test_no_upgrade_meanwhile(tmp_path: Path) -> None:
    """What is staged has the shape of the version that the table had."""
    path = without("v8", tmp_path)
    properties = path / ".hoodie/hoodie.properties"

    def upgrade(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path:
            properties.write_text(properties.read_text().replace("table.version=8", "table.version=9"))
        return call.do()

    with pytest.raises(TableChangedError, match="upgraded"):
        build(path, hook=upgrade)
    assert not open_table(path).config.metadata_partitions


def test_a_metadata_table_without_files_is_an_error(tmp_path: Path) -> None:
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("column_stats,files,", "column_stats,"))
    with pytest.raises(UsageError, match="has no partition files"):
        build(path)
    check(path, *build(path, again=True).built)


def later(path: Path) -> None:
    """The heartbeats of dead runs are stale."""
    make_old(set((path / BUILDS).glob("*/*")), 3600)


def goes_on(path: Path, *, again: bool) -> None:
    """After a death: readers are right at once, a write too, and a further run, dead at its end, dead no more."""
    table = open_table(path)
    if table.config.metadata_partitions:
        assert validate(table).differences == ()
    if not ALL:
        later(path)
        build(path, again=again)
        check(path, "files")
        return
    writer(rows(range(6), 10**7)).upsert(str(path))
    if open_table(path).config.metadata_partitions:
        assert validate(open_table(path)).differences == ()
        serve(open_table(path))
    with pytest.raises(ProcessDied):
        build(path, again=True, hook=die_at_nth(1, "overwrite", "hoodie.properties"))
    later(path)
    done = build(path, again=again)
    if not done.built:
        build(path, again=True)
    check(path, "files")


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_death_at_a_storage_call(path: Path) -> None:
    for _, copy in Faults.of(path, lambda storage: build_metadata(open_table(path, storage), NO_WAIT, LOCK)).deaths():
        goes_on(copy, again=False)


def test_a_run_continues_where_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that dies, and of one that fails, what was measured and read is not again; but if it cannot be read."""
    path = without("v9", tmp_path)
    monkeypatch.setattr(runs, "FILES_AT_ONCE", 1)
    monkeypatch.setattr("phantombase.compactor_daemon.metadata_services.build._SAVING", 0)
    names = ("files,column_stats,record_index",)
    options = BuildOptions(indexes=names, record_index_groups=2, pending_wait_s=0)

    def opened(hook: Callable[[Call], object] = lambda call: call.do(), path: Path = path) -> int:
        count = 0

        def counting(call: Call) -> object:
            nonlocal count
            count += call.name == "open_input" and BUILDS not in call.path and METADATA_FOLDER not in call.path
            return hook(call)

        with suppress(ProcessDied, ConflictError):
            build(path, options, hook=counting)
        later(path)
        return count

    assert opened(die_at_nth(2, "overwrite", "staged")) > 0
    torn, whole, changed = (shutil.copytree(path, path.with_name(name)) for name in ("torn", "whole", "set"))
    (staged,) = (torn / BUILDS).glob("*/staged")
    staged.write_bytes(staged.read_bytes()[:-9])
    shutil.rmtree(whole / BUILDS)
    assert opened(path=torn) == (all_of_it := opened(path=whole))
    with (changed / ".hoodie/hoodie.properties").open("a") as settings:
        settings.write("hoodie.write.record.merge.mode=COMMIT_TIME_ORDERING\n")
    assert opened(path=changed) == all_of_it

    writer(rows(range(1), 10**7)).upsert(str(path))
    write = pending_write(path, open_table(path).config.version, "20270101000000000")
    assert 0 < opened() < all_of_it
    assert opened() == 0, "all was staged when it was given up"
    write.unlink()
    write.with_suffix(".requested").unlink()
    assert opened() == 0
    check(path, "files", "column_stats", "record_index")
    assert check_index(path)


@pytest.mark.parametrize("left", [0, -8, -200, None])
@pytest.mark.parametrize("kind", ["column_stats", "record_index"])
def test_a_staged_file_that_is_torn_is_made_again(kind: str, left: int | None, tmp_path: Path) -> None:
    """As a disk leaves it whose machine lost its power; also one that is gone. Nothing is missing then."""
    path = without("v9", tmp_path)
    options = BuildOptions(indexes=(f"files,{kind}",), record_index_groups=2, pending_wait_s=0)
    write = pending_write(path, open_table(path).config.version, "20270101000000000")
    with pytest.raises(ConflictError):
        build(path, options)
    write.unlink()
    write.with_suffix(".requested").unlink()
    later(path)
    (staged,) = (path / BUILDS).glob("*/staged")
    fields = json.loads(staged.read_bytes())
    for one in fields["logs"] if kind == "column_stats" else (keys for _, keys in fields["keys"]):
        file = path / one["path"]
        file.unlink() if left is None else file.write_bytes(file.read_bytes()[: left or 0])
    build(path, options)
    check(path, "files", kind)
    assert kind == "column_stats" or check_index(path)


@one_of("version", "v6", "v9", "v8")
def test_a_death_while_it_is_built_again(version: str, tmp_path: Path) -> None:
    """All of it, or a partition. What was taken out is built by a further run that names nothing."""
    origin = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    names = open_table(origin).config.built_metadata_partitions

    def work(which: tuple[str, ...]) -> Callable[[Storage], object]:
        options = BuildOptions(indexes=which, pending_wait_s=0)
        return lambda storage: build_metadata(open_table(origin, storage), options, LOCK, again=True)

    for which in ((), names[:1]) if ALL else (names[:1],):
        for _, copy in Faults.of(origin, work(which)).deaths():
            built = set(open_table(copy).config.metadata_partitions)
            if built != set(names):
                assert not built & set(which)
            between = shutil.copytree(copy, tmp_path / "between")
            goes_on(between, again=True)
            shutil.rmtree(between)
            later(copy)
            build(copy, again=True)
            check(copy, *names)


@pytest.mark.parametrize("dies", [False, True])
@one_of("path", "v9", "v6", indirect=True)
def test_a_lock_that_is_lost_before_it_is_visible(path: Path, dies: bool) -> None:
    """What others wrote meanwhile has no entry: it is taken out again, and a run after a death builds it again."""
    done = list[object]()

    def stalls(call: Call) -> object:
        if done and dies and call.name == "delete":
            raise ProcessDied(call.path)
        if call.name == "overwrite" and call.path.endswith("/hoodie.properties") and not done:
            done.append(writer(rows(range(6), 10**7)).upsert(str(path)))
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), stalls))
    with pytest.raises(ProcessDied if dies else LockError):
        build_metadata(table, NO_WAIT, LockLostBehind(() if dies else done))
    left = open_table(path).config.metadata_partitions
    assert bool(left) == dies
    later(path)
    built = build(path, replace(NO_WAIT, indexes=("bloom_filters",))).built
    assert set(built) >= {*left, "bloom_filters"}
    check(path, *built)


@one_of("version", "v9", "v6")
def test_what_completes_without_the_lock_behind_a_build(version: str, tmp_path: Path) -> None:
    """Its process slept right before the completed file: what was built meanwhile lacks its files, and is dropped."""
    path = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    done = list[object]()

    def sleeps(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith("deltacommit") and METADATA_FOLDER not in call.path:
            done.append(build(path, again=True))
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), sleeps))
    upsert = Write(operation=Operation.UPSERT, options=WriteOptions(slots=1), lock=LockLostBehind(done))
    write(table, LocalEngine(rows(range(6), 10**7), slots=1), upsert)
    assert len(done) == 1
    assert not open_table(path).config.metadata_partitions
    check(path, *build(path).built)


def test_services_remove_what_a_dead_run_left_on_the_timeline(tmp_path: Path) -> None:
    """A delta commit that would fill a partition is pending: compactions would wait for it for ever."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    dies = die_at_nth(1, "put_if_absent", ".deltacommit.inflight")
    with pytest.raises(ProcessDied):
        build(path, BuildOptions(indexes=("bloom_filters",)), hook=dies)

    def pending() -> list[str]:
        timeline = open_metadata_table(open_table(path)).timeline
        return [i.requested_time for i in timeline.pending("deltacommit")]

    (filling,) = pending()
    assert filling.startswith(ARTIFICIAL)
    assert serve(open_table(path)).forgotten == ()  # it may be alive, or be Hudi's
    make_old(set((path / BUILDS).glob("*/*")), 3600)
    assert serve(open_table(path)).forgotten == (filling,)
    assert not pending()


OF_KEYS = BuildOptions(indexes=("files,record_index",), record_index_groups=3, pending_wait_s=0)


def test_the_record_index_says_where_every_key_is(path: Path) -> None:
    """Also of keys that were added, deleted and rewritten while it was built; a later write keeps it."""
    writes = iter(range(3))

    def meanwhile(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path and (number := next(writes, None)) is not None:
            changed = rows(range(2 + number, 6 + number), 10**7 + number)
            if number == 1:
                writer(changed).delete(str(path))
            else:
                writer(changed).upsert(str(path))
        return call.do()

    assert build(path, OF_KEYS, hook=meanwhile).rounds >= 1
    assert check_index(path)
    writer(rows(range(3, 8), 10**8)).upsert(str(path))
    check_index(path)
    run_all(open_table(path))
    assert len(serve(check(path, "record_index"), AT_ONCE).compactions) == 1
    check_index(path)
    assert build(path, again=True).built[-1] == "record_index"
    check_index(path)


def test_a_look_that_failed_leaves_no_keys(path: Path) -> None:
    """A file group that was read goes, and the file of the next one with it: all is read again."""
    steps = iter([None, None, "replaced"])

    def gone(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path and next(steps, None):
            first = writer(rows(range(20), 10**7)).insert_overwrite_table(str(path))
            raise MissingFileError("no such file", path=str(first))
        return call.do()

    build(path, OF_KEYS, hook=gone)
    assert next(steps, None) is None
    assert len(check_index(path)) == 20


def test_base_files_of_the_record_index_have_a_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of less than 2 GiB, as all that is taken from an Arrow array. In several passes the keys are the same ones."""
    monkeypatch.setattr(index_logs, "_CONTENT_BYTES", 500)
    with_passes = mock.Mock(wraps=index_logs._portions)
    monkeypatch.setattr(index_logs, "_portions", with_passes)
    with pytest.raises(UnsupportedError, match=r"too large.*--record-index-groups"):
        build(path, OF_KEYS)
    with_passes.reset_mock()
    build(path, replace(OF_KEYS, record_index_groups=200))
    assert check_index(path)
    assert with_passes.call_count > 1


def test_no_record_index_of_a_key_with_two_rows(path: Path) -> None:
    both = rows(range(2), 10**7)
    writer(both.set_column(1, "p", [["south", "south"]])).upsert(str(path))
    writer(both).upsert(str(path))
    with pytest.raises(UnsupportedError, match="keys are in two file groups"):
        build(path, OF_KEYS)
    assert not open_table(path).config.metadata_partitions


def test_the_record_index_waits_for_every_pending_write(path: Path) -> None:
    """A write that began before it does not know its keys."""
    pending_write(path, open_table(path).config.version, "20270101000000000")
    with heartbeat(LocalStorage(str(path)), "20270101000000000", BEAT_S):
        with pytest.raises(ConflictError, match="pending"):
            build(path, OF_KEYS)
        check(path, *build(path, BuildOptions(indexes=("files",), pending_wait_s=0)).built)
