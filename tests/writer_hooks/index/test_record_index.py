"""Writes of phantombase keep Hudi's record index: after each the index says where every key is, and nothing else.

`tests/golden/more/v*_record_index.zip` (0.15.0 and 1.2.0, RECORD_INDEX, two file groups): upserts of keys 0 to 14, a
delete of 1 and 2, an upsert of 1, which Hudi puts into a new base file: the old one, below a delete, has it too."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import Writer, writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.cli.main import app as compactor_app
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.log_block import scan_blocks
from phantombase.timeline.format.table_config import save_table_config
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock, StorageLock
from phantombase.timeline.metadata_table import index_logs
from phantombase.timeline.metadata_table.record_index import has_one_record_index, missing_entries
from phantombase.timeline.metadata_table.records.entries import block_entries
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import BUILD_AGAIN, Table
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.index import lookup_step
from tests.hudi.cases.rows import partition
from tests.support.archived_tables import cluster, request
from tests.support.compaction_steps import run_one
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.places import SEED
from tests.support.record_indexes import check_index, indexed_places, keys, rows, true_places
from tests.support.selection import ALL, deep
from tests.support.written_tables import check_nothing_left


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table of Hudi's with the index."""
    return unzip_golden(f"more/{request.param}_record_index", tmp_path)


def wrote(numbers: object, ts: int, **columns: object) -> Writer:
    return writer(rows(numbers, ts, **columns))


def test_every_write_of_rows_keeps_it(path: Path) -> None:
    """New keys go to new files, to small ones that are written anew, and behind others; a key that is deleted is gone
    from it, and may come again."""
    name, start = str(path), set(check_index(path))
    assert start == keys(0, *range(3, 15), 1)
    wrote(range(10, 20), 10).upsert(name)
    assert set(check_index(path)) == start | keys(*range(15, 20))
    wrote((4, 5, 6, 99), 11).delete(name)
    assert set(check_index(path)) == (start | keys(*range(15, 20))) - keys(4, 5, 6)
    before = check_index(path)
    wrote((5, 7), 12).upsert(name)  # 5 comes alive again where it was
    assert set(check_index(path)) == set(before) | keys(5)
    wrote(range(30, 35), 13).insert(name)
    wrote(range(40, 45), 13).bulk_insert(name)
    wrote(range(50, 55), 13).option(small_file_bytes=0).upsert(name)
    assert set(check_index(path)) == set(before) | keys(5, *range(30, 35), *range(40, 45), *range(50, 55))
    wrote(range(60), 14).upsert(name)
    assert set(check_index(path)) == keys(*range(60))
    check_nothing_left(path)


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_an_update_changes_nothing_in_it(path: Path) -> None:
    """No log file comes to the index."""
    wrote((7, 8, 9), 10).upsert(str(path))  # in a base file without logs, or with logs that delete nothing
    before = sorted(p.name for p in (path / ".hoodie/metadata/record_index").iterdir())
    places = check_index(path)
    groups = {places[key] for key in keys(7, 8, 9)}
    deleting = {place for place in groups if any(_deletes(path, place))}
    quiet = [n for n in (7, 8, 9, 10, 11, 12, 13) if places[f"{n:05d}"] not in deleting]
    wrote(quiet, 11).upsert(str(path))
    after = sorted(p.name for p in (path / ".hoodie/metadata/record_index").iterdir())
    assert after == before or deleting
    assert check_index(path) == places


def _deletes(path: Path, place: tuple[str, str]) -> list[Path]:
    folder, file_id = path / place[0], place[1]
    logs = [
        p for p in folder.iterdir() if (n := parse_data_file(p.name)) and n.file_id == file_id and ".log." in p.name
    ]
    return [p for p in logs if b"#HUDI#" in p.read_bytes()]


def test_a_key_that_two_base_files_hold_is_not_doubled(path: Path) -> None:
    """Hudi has put 1 into another base file than that which holds it below a delete."""
    places = true_places(path)
    files = (path / partition(1)).glob("*.parquet")
    assert len({p.name.split("_")[0] for p in files}) > 1
    done = wrote((1, 3), 20).upsert(str(path))
    assert done.updates == 2
    assert check_index(path) == places
    wrote((1,), 21).delete(str(path))
    assert "00001" not in check_index(path)
    wrote((1,), 22).upsert(str(path))
    assert "00001" in check_index(path)
    rows_now = read_table(Table.open(str(path)))
    assert rows_now["id"].to_pylist().count("00001") == 1


def test_compactions_and_services_leave_it_true(path: Path) -> None:
    """Of the table, with a key whose delete the plan holds; and of the metadata table."""
    wrote((3, 4), 10).delete(str(path))
    table = Table.open(str(path))
    schedule_compaction(table, ProcessLock("x"))
    wrote((3, 5, 20), 11).upsert(str(path))
    check_index(path)
    for instant in pending_instants(table):
        run_one(table.snapshot(cached=False), instant)
    check_index(path)
    for ts in range(12, 24):
        wrote((ts, ts + 20), ts).upsert(str(path))
    serve_metadata(Table.open(str(path)), MetadataOptions(), ProcessLock(str(path)))
    assert any(p.suffix == ".hfile" for p in (path / ".hoodie/metadata/record_index").iterdir())
    check_index(path)
    wrote(range(0, 40, 3), 30).delete(str(path))
    check_index(path)


@one_of("path", "v6", "v9", "v8", indirect=True)
@pytest.mark.parametrize("seed", range(SEED, SEED + (2 if ALL else 1)))
def test_random_writes(path: Path, seed: int) -> None:
    """In any order, with plans and compactions between them."""
    pick = random.Random(seed)
    for ts in range(10, 18):
        some = sorted(pick.sample(range(40), pick.choice((1, 5, 20))))
        what = pick.choice(("upsert", "upsert", "delete", "insert", "plan", "compact"))
        if what == "plan":
            schedule_compaction(Table.open(str(path)), ProcessLock("x"))
        elif what == "compact":
            for instant in pending_instants(Table.open(str(path))):
                run_one(Table.open(str(path)), instant)
        else:
            there = set(true_places(path))
            some = [n for n in some if what != "insert" or f"{n:05d}" not in there]
            small = pick.choice((0, 100 << 20))
            if some:
                getattr(wrote(some, ts).option(small_file_bytes=small), what)(str(path))
        assert indexed_places(path) == true_places(path), f"seed {seed}: {what} {some}"
    check_index(path)


def test_many_portions_and_passes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some keys at a time, and some file groups of the index at a time."""
    monkeypatch.setattr(index_logs, "_PORTION_ROWS", 3)
    monkeypatch.setattr(index_logs, "_FILES_MAX", 1)
    wrote(range(20, 60), 10).upsert(str(path))
    wrote(range(0, 60, 2), 11).delete(str(path))
    check_index(path)


def test_a_key_twice_in_a_batch_is_at_its_last_place(path: Path) -> None:
    """An insert keeps both rows: one of them is found by the index, as with Hudi. No block has a key twice."""
    folder = path / ".hoodie/metadata/record_index"
    before = set(folder.iterdir())
    wrote((70, 71, 70), 10).insert(str(path))
    assert keys(70, 71) <= indexed_places(path).keys()
    found = list[str]()
    for log in set(folder.iterdir()) - before:
        with pa.OSFile(str(log)) as source:
            for block in scan_blocks(source, str(log)):
                found += [key for key, _ in block_entries(block, source)]
    assert sorted(found) == sorted(keys(70, 71))


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_keys_that_move_are_found_where_they_are(path: Path) -> None:
    """To a partition that has others, back onto the delete in the first one, and to a new one."""

    def moved(place: str, ts: int, *numbers: int) -> None:
        batch = rows(numbers, ts).set_column(1, "p", pa.array([place] * len(numbers)))
        writer(batch).global_keys().upsert(str(path))
        places = check_index(path)
        assert {places[key][0] for key in keys(*numbers)} == {place}

    other = partition(4)
    assert other != partition(3)
    moved(other, 10, 3, 6, 80)
    moved(partition(3), 11, 3)
    moved("new", 12, 3, 4, 6, 80)
    moved("new", 13, 3, 81)
    writer(rows((3, 81), 14)).global_keys().delete(str(path))
    assert not keys(3, 81) & set(check_index(path))


@pytest.mark.parametrize("place", ["a", "z"])
def test_a_key_that_leaves_a_base_file_which_takes_new_keys_is_found_where_it_arrives(path: Path, place: str) -> None:
    """Whichever of the two partitions comes first in the index's log."""
    wrote((90, 91), 10).option(small_file_bytes=0).upsert(str(path))  # a base file without logs
    batch = rows((90, *range(100, 140)), 11)
    where = pa.array([place, *batch["p"].to_pylist()[1:]])
    writer(batch.set_column(1, "p", where)).global_keys().upsert(str(path))
    assert check_index(path)["00090"][0] == place


def test_a_key_in_two_partitions_that_moves_into_one_of_them_is_found_there(path: Path) -> None:
    """A bulk insert has doubled it, so the index has the partition that it leaves. It stays in a base file that is
    written anew, or below a log."""
    here, there = partition(3), partition(4)
    for ts, small in ((10, 100 << 20), (20, 0)):
        for place in (there, here):
            writer(rows((3, 4), ts).set_column(1, "p", pa.array([place] * 2))).bulk_insert(str(path))
        assert {indexed_places(path)[key][0] for key in keys(3, 4)} == {here}
        batch = rows((3, 4, 80), ts + 5).set_column(1, "p", pa.array([there] * 3))
        writer(batch).global_keys().option(small_file_bytes=small).upsert(str(path))
        places = read_table(Table.open(str(path))).select(["id", "_hoodie_partition_path"]).to_pylist()
        assert {row["_hoodie_partition_path"] for row in places if row["id"] in keys(3, 4)} == {there}
        assert {indexed_places(path)[key][0] for key in keys(3, 4)} == {there}


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_keys_that_stay_are_found_where_they_were(path: Path) -> None:
    before = check_index(path)
    batch = rows((3, 4, 80), 10).set_column(1, "p", pa.array(["new"] * 3))
    writer(batch).global_keys(move=False).upsert(str(path))
    places = check_index(path)
    assert before.items() <= places.items()
    assert places["00080"][0] == "new"


@pytest.mark.parametrize("path", ["v9", deep("v8")], indirect=True)
def test_merge_into_keeps_it(path: Path) -> None:
    """Rows that update, insert, delete; a key whose delete is in a log comes alive as a whole row."""
    wrote((4,), 10).delete(str(path))
    source = rows((4, 5, 6, 70), 20, gone=[False, False, True, False])
    before = set(check_index(path))
    writer(source).merge_into(str(path), update=["ts"], insert=True, delete="gone")
    assert is_kept(path)
    assert set(check_index(path)) == (before | keys(4, 70)) - keys(6)


@one_of("portion", 3, 1 << 19)
def test_overwrites_keep_it(path: Path, portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of replaced file groups are gone from it, but for those that are written again."""
    monkeypatch.setattr(index_logs, "_PORTION_ROWS", portion)
    name = str(path)
    wrote((6, 8), 10).delete(name)  # 8 stays deleted below a log
    wrote((6, *range(20, 30)), 11).upsert(name)
    places = check_index(path)
    there = [int(key) for key, (place, _) in places.items() if place == partition(3)]
    batch = rows((*there[::2], 73), 12).set_column(1, "p", pa.array([partition(3)] * (len(there[::2]) + 1)))
    writer(batch).insert_overwrite(name)
    kept = {key for key, (place, _) in places.items() if place != partition(3)}
    assert set(check_index(path)) == kept | keys(*there[::2], 73)
    writer().delete_partition(name, [partition(4)])
    kept = {key for key, (place, _) in check_index(path).items() if place != partition(4)}
    assert set(check_index(path)) == kept
    wrote(range(0, 40, 3), 13).upsert(name)
    serve_metadata(Table.open(name), MetadataOptions(max_delta_commits=1), ProcessLock(name))
    check_index(path)
    wrote((5, 6, 7), 14).insert_overwrite_table(name)
    assert set(check_index(path)) == keys(5, 6, 7)
    wrote((), 15).insert_overwrite_table(name)
    assert not check_index(path)
    check_nothing_left(path)


def test_a_key_that_has_left_a_replaced_partition_is_found_where_it_is(path: Path) -> None:
    """Its old base file has it below a delete."""
    batch = rows((3, 6), 10).set_column(1, "p", pa.array(["new"] * 2))
    writer(batch).global_keys().upsert(str(path))
    writer().delete_partition(str(path), [partition(3), partition(6)])
    assert check_index(path)["00003"][0] == check_index(path)["00006"][0] == "new"


# --- where it is taken out -----------------------------------------------------------------------------------------


def is_kept(path: Path) -> bool:
    return "record_index" in Table.open(str(path)).config.metadata_partitions


@one_of("path", "v6", "v9", "v8", indirect=True)
@pytest.mark.parametrize(
    ("name", "stand_in", "why"),
    [
        ("may_delete_by_value", lambda *_: True, "ordering values"),  # a compaction may show a key that no reader sees
        ("_ABin", lambda _: lambda *_: iter(()), "are not known"),  # Spark has no task for an input without parts
    ],
)
def test_overwrites_that_cannot_know_what_they_replace_take_it_out(
    path: Path, name: str, stand_in: object, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookup_step, name, stand_in)
    wrote((3,), 10).insert_overwrite(str(path))
    assert not is_kept(path)
    assert any("indexes_dropped" in line and why in line for line in caplog.messages)


@pytest.mark.parametrize("path", ["v9", "v6", deep("v8")], indirect=True)
def test_rows_that_are_marked_deleted_by_event_time_take_it_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether they win is known when the slice is merged."""
    wrote((70,), 10, _hoodie_is_deleted=[False]).upsert(str(path))
    if Table.open(str(path)).config.version > 6 or is_kept(path):
        wrote((3, 71), 0, _hoodie_is_deleted=[True, False]).upsert(str(path))
    assert not is_kept(path)
    assert any("ordering values" in line for line in caplog.messages)


@pytest.mark.parametrize("key", ["😀", "x" * (1 << 15)])
def test_a_key_that_hudi_would_not_find_takes_it_out(path: Path, key: str) -> None:
    batch = rows((3, 70), 10)
    writer(batch.set_column(0, "id", pa.array(["ü\uffff", "00070"]))).upsert(str(path))
    assert check_index(path)["ü\uffff"][0] == partition(3)
    writer(batch.set_column(0, "id", pa.array([key, "00071"]))).upsert(str(path))
    assert not is_kept(path)


def test_another_write_meanwhile_takes_it_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have inserted a key that this one deletes; which of them the index shows would be chance."""
    first = [True]

    def placed(*args: object) -> object:
        if first:
            first.clear()
            wrote((75,), 11).bulk_insert(str(path))
        return place_all(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", placed)
    wrote((3, 4), 10).delete(str(path))
    assert not is_kept(path)
    assert any("completed since then" in line for line in caplog.messages)
    assert keys(75) <= true_places(path).keys()


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_clustering_meanwhile_leaves_it_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves other keys than an insert has."""
    first = [True]

    def placed(*args: object) -> object:
        if first:
            first.clear()
            (path / heartbeat_path(plan)).unlink()
            assert [one.instant for one in cluster(path).finished] == [plan]
        return place_all(*args)  # type: ignore[arg-type]

    wrote(range(20, 40), 10).option(small_file_bytes=0).upsert(str(path))
    plan = request(path)
    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", placed)
    wrote(range(80, 90), 11).option(small_file_bytes=0).insert(str(path))
    assert not first
    assert keys(*range(80, 90)) <= check_index(path).keys()


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_an_index_that_hudi_builds_during_a_write_is_taken_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hudi 1.2 builds it while writes are pending, without their rows; this one has noted no keys."""
    table, whole = Table.open(str(path)), (path / ".hoodie/hoodie.properties").read_bytes()
    save_table_config(table.storage, table.config.without_metadata_partitions(("record_index",)))

    def placed(*args: object) -> object:
        (path / ".hoodie/hoodie.properties").write_bytes(whole)
        return place_all(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("phantombase.writer_hooks.write.write.place_all", placed)
    wrote((75,), 10).upsert(str(path))
    assert not is_kept(path)
    assert any("when the write began" in line for line in caplog.messages)


def test_an_index_for_each_partition_is_known_by_its_file_groups(path: Path) -> None:
    """Whatever its definition says."""
    folder = path / ".hoodie/metadata/record_index"
    table = Table.open(str(path))
    assert has_one_record_index(table)
    (folder / ".record-index-a-0000-0_20260101000000000.log.1_0-0-0").write_bytes(b"")
    assert not has_one_record_index(table)


# --- where entries are missing -------------------------------------------------------------------------------------


INDEX, METADATA = ".hoodie/metadata/record_index", ".hoodie/metadata/.hoodie"


def _halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _losses(path: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Every loss of one file, half a file or an instant of the index, and of all files, with the name of each."""

    def without(*names: Path) -> Callable[[Path], None]:
        def lose(copy: Path) -> None:
            for name in names:
                (copy / name).unlink()

        return lose

    files = sorted(p.relative_to(path) for p in (path / INDEX).iterdir() if not p.name.startswith(".hoodie"))
    yield from ((f"no {name}", without(name)) for name in files)
    yield from ((f"half of {name}", lambda copy, name=name: _halved(copy / name)) for name in files)
    yield "no files", without(*files)
    yield "no folder", lambda copy: shutil.rmtree(copy / INDEX)
    for done in sorted((path / METADATA).rglob("*.deltacommit")):
        every = done.parent.glob(f"{done.name.split('_')[0].split('.')[0]}*")
        yield f"no completed file {done.name}", without(done.relative_to(path))
        yield f"no instant {done.name}", without(*(p.relative_to(path) for p in every))


def test_an_index_that_has_lost_anything_is_not_kept(path: Path, tmp_path: Path) -> None:
    """Or it has lost nothing that counts, as files without entries. On version 6 nothing shows that the first delta
    commit is lost: the table may be older than its metadata table."""
    writer(rows(range(20, 30), 9)).upsert(str(path))
    assert missing_entries(Table.open(str(path))) == ""
    first = min(p.name for p in (path / METADATA).rglob("2*.deltacommit"))
    lost = 0
    for number, (name, lose) in enumerate(_losses(path)):
        copy = shutil.copytree(path, tmp_path / str(number))
        lose(copy)
        table = Table.open(str(copy))
        if not missing_entries(table) and name != f"no instant {first}":
            assert has_one_record_index(table), name
            assert indexed_places(copy) == true_places(path), name
        lost += not has_one_record_index(table)
        shutil.rmtree(copy)
    assert lost > 20


WRITES: dict[str, Callable[[str], object]] = {
    "upsert": lambda name: wrote((3, 4, 70), 20).upsert(name),
    "delete": lambda name: wrote((3, 99), 20).delete(name),
    "insert": lambda name: wrote((70, 71), 20).insert(name),
    "overwrite": lambda name: wrote((3, 73), 20).insert_overwrite(name),
    "merge": lambda name: wrote((3, 70), 20).merge_into(name, update=["ts"], insert=True),
    "move": lambda name: writer(_in_new()).global_keys().upsert(name),
}


@pytest.mark.parametrize(
    ("loss", "write"),
    [(-1, write) if number % 2 else (5, write) for number, write in enumerate(WRITES)]
    + [deep(5, write) if number % 2 else deep(-1, write) for number, write in enumerate(WRITES)],
)
def test_a_write_on_an_index_that_lacks_entries_takes_it_out(
    loss: int, write: str, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It finds the rows in the files: the same table as without the loss. Of all files of the index, or of one."""
    if write == "merge" and Table.open(path).config.version == 6:
        with pytest.raises(UnsupportedError, match="expected version 8 or newer"):
            WRITES[write](str(path))
        return
    whole = shutil.copytree(path, tmp_path / "whole")
    WRITES[write](str(whole))
    files = sorted(p for p in (path / INDEX).iterdir() if not p.name.startswith(".hoodie"))
    for file in files if loss < 0 else files[loss : loss + 1]:
        file.unlink()
    WRITES[write](str(path))
    assert not is_kept(path)
    assert any("lacks entries of rows" in line for line in caplog.messages)
    assert {key: place for key, (place, _) in true_places(path).items()} == {
        key: place for key, (place, _) in true_places(whole).items()
    }


@one_of("write", *WRITES)
def test_an_index_that_a_restore_of_hudi_has_emptied_is_taken_out(write: str, tmp_path: Path) -> None:
    """Its keys stay in one partition: the table is still one of a global index."""
    path = unzip_golden("more/v9_restored_index", tmp_path)
    assert (set(indexed_places(path)), set(true_places(path))) == (set(), keys(*range(8)))
    with pytest.raises(UnsupportedError, match="lacks entries of rows"):
        cluster(path)
    WRITES[write](str(path))
    assert not is_kept(path)
    assert write == "overwrite" or true_places(path).keys() >= keys(0, 1, 2, 4, 5, 6, 7)
    with pytest.raises(UnsupportedError, match="global record index"):
        writer(rows((5,), 30).set_column(1, "p", pa.array(["other"]))).upsert(str(path))


def test_an_index_that_hudi_has_built_again_is_kept(tmp_path: Path) -> None:
    """With partition statistics that it has built again, too: files that were removed for that are not missed."""
    path = unzip_golden("more/v9_refilled_index", tmp_path)
    before = set(check_index(path))
    assert missing_entries(Table.open(str(path))) == ""
    wrote((1, 2, 21), 40).upsert(str(path))
    assert set(check_index(path)) == before | keys(21)
    newest = max((path / INDEX).iterdir(), key=lambda p: p.name)
    newest.unlink()
    assert missing_entries(Table.open(str(path)))


def test_what_shows_that_entries_are_missing_and_what_ends_it(path: Path) -> None:
    """A compaction leaves the index; a clustering is refused; the metadata table is turned off as they say."""
    max((path / INDEX).glob(".record-index-0000-0_*"), key=lambda p: p.stat().st_size).unlink()
    places = true_places(path)
    with pytest.raises(UnsupportedError, match="lacks entries of rows") as refused:
        cluster(path)
    assert refused.value.todo == BUILD_AGAIN
    shown = CliRunner().invoke(timeline_app, ["validate", str(path)])
    assert (shown.exit_code, "lacks entries of rows" in " ".join(shown.output.split())) == (1, True)
    schedule_compaction(Table.open(str(path)), ProcessLock("x"))
    for instant in pending_instants(Table.open(str(path))):
        run_one(Table.open(str(path)), instant)
    assert true_places(path).keys() == places.keys()
    assert is_kept(path)
    assert CliRunner().invoke(compactor_app, ["compact", str(path), "--drop-metadata-table"]).exit_code == 0
    assert cluster(path).done is not None
    assert CliRunner().invoke(timeline_app, ["validate", str(path)]).exit_code == 0
    wrote((3, 4, 70), 20).upsert(str(path))
    assert true_places(path).keys() == places.keys() | keys(70)


def _moved(name: str) -> None:
    writer(_in_new()).global_keys().upsert(name)


def _overwritten(name: str) -> None:
    writer(_in_new()).insert_overwrite(name)


def _in_new() -> pa.Table:
    """Key 3 in another partition."""
    return rows((3,), 10).set_column(1, "p", pa.array(["new"]))


@pytest.mark.parametrize("outer", [_moved, _overwritten, lambda name: writer(_in_new()).insert(name)])
@pytest.mark.parametrize("inner", ["delete_partition", "delete"])
def test_a_later_write_that_completes_first_takes_no_key_out_of_it(
    inner: str, outer: Callable[[str], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the begin of the other one and its look at the timeline. The logs of the index go by instants."""
    name, hold, begun = str(path), StorageLock.hold, list[str]()

    @contextmanager
    def holding(self: StorageLock, purpose: str) -> Iterator[Section]:
        with hold(self, purpose) as section:
            yield section
        if purpose.startswith("begin a") and not begun:
            begun.append(purpose)
            writer().delete_partition(name, [partition(3)]) if inner != "delete" else wrote((3,), 9).delete(name)

    monkeypatch.setattr(StorageLock, "hold", holding)
    with suppress(ConflictError):
        outer(name)
    assert begun
    assert not is_kept(path) or indexed_places(path) == true_places(path)
