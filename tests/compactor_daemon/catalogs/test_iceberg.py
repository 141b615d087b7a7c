"""Publishing to Iceberg: its readers have the rows of the read-optimized query, after each step of a history."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.manifest import ManifestFile
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.catalogs import iceberg, iceberg_snapshot
from phantombase.compactor_daemon.catalogs.iceberg_files import NAME_MAPPING, changed_columns, iceberg_columns
from phantombase.compactor_daemon.catalogs.iceberg_snapshot import WantedPaths, range_name
from phantombase.compactor_daemon.catalogs.iceberg_state import StateMark, writes_since
from phantombase.compactor_daemon.catalogs.options import SyncOptions
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import ConflictError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import TableSchema
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.read.pins import all_pins
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Snapshot
from tests.support.archived_tables import archive
from tests.support.builders import timeline_of
from tests.support.compaction_steps import open_table
from tests.support.duckdb_iceberg import duckdb_reader
from tests.support.golden_tables import unzip_golden
from tests.support.iceberg_tables import Lake, history


@pytest.mark.parametrize(
    ("version", "seed", "steps"),
    [
        (9, 2, 12),
        pytest.param(6, 4, 12, marks=pytest.mark.deep),
        *(pytest.param(v, s, 30, marks=pytest.mark.deep) for v in (6, 8, 9) for s in range(10, 18)),
    ],
)
def test_readers_have_the_rows_after_each_step(
    version: int, seed: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And until the next step is published, whatever it removes; and of all older snapshots that are there. The table
    has many manifests, as one of many files has, and each process reads those that it needs."""
    monkeypatch.setattr(iceberg_snapshot, "_LEAST", 2)
    lake, done = Lake(tmp_path, version=version), list[str]()
    lake.put("a1", "a2", "b1", "c1")
    lake.sync()
    for name, step in history(lake, seed, steps):
        done.append(name)
        try:
            step()
            if name not in ("undo", "restore"):
                lake.check_readable()
            iceberg_snapshot._seen.clear()
            lake.sync()
            lake.check()
            lake.check_readable()
        except BaseException as error:
            error.add_note(f"steps: {done}")
            raise


@pytest.mark.parametrize(
    ("version", "seed"),
    [(9, 45), *(pytest.param(v, s, marks=pytest.mark.deep) for v in (6, 8, 9) for s in range(40, 45))],
)
def test_writes_that_were_archived_since(
    version: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the archive has all of them, only their file groups are compared."""
    monkeypatch.setattr(iceberg_snapshot, "_LEAST", 2)
    lake, found, archived = Lake(tmp_path, version=version), list[list[Instant] | None](), 0

    def since(*given: Any) -> list[Instant] | None:
        found.append(writes_since(*given))
        return found[-1]

    monkeypatch.setattr(iceberg, "writes_since", since)
    lake.put("a1", "a2", "b1", "c1")
    lake.sync()
    steps = history(lake, seed, 25)
    for at in range(0, len(steps), 5):
        for _, step in steps[at : at + 5]:
            step()
        archive(lake.path)
        iceberg_snapshot._seen.clear()
        lake.sync()
        lake.check()
        lake.check_readable()
        archived += len(set(found[-1] or ()) - set(open_table(lake.path).load_timeline().completed))
    assert archived > 2 or seed != 45


GOLDEN = sorted(path.stem for path in (Path(__file__).parents[2] / "golden").glob("v[689]_*.zip"))
USUAL = ("v6_types", "v9_virtual_keys", "v9_two_pending")


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.deep) for name in GOLDEN]
)
def test_tables_of_hudi(name: str, tmp_path: Path) -> None:
    """Of all types, and with the lists and timestamps of Hudi's Parquet writer."""
    unzip_golden(name, tmp_path)
    (tmp_path / name.partition("_")[2]).rename(tmp_path / "t")
    lake = Lake(tmp_path)
    lake.name = lake.sync().tables[0].name
    wanted = lake.wanted()
    assert "tags" not in wanted.column_names or '["element","array"]' in lake.published.properties[NAME_MAPPING]
    lake.check(lake.published.scan().to_arrow().select(wanted.column_names).cast(wanted.schema))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A published table with three partitions."""
    found = Lake(tmp_path)
    found.put("a1", "b1", "c1")
    found.sync()
    return found


def recorded(method: Callable[..., Any], asked: list[Any], at: int = 1) -> Callable[..., Any]:
    """A method that adds one of what it is given to a list."""

    def asks(*given: Any, **how: Any) -> Any:
        asked.append(given[at])
        return method(*given, **how)

    return asks


def test_a_sync_that_finds_nothing_new_changes_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a write of log files. Names and one request to the catalog are enough, whatever the commits say, and
    the cleans that were there."""
    for _ in range(2):
        lake.put("a1", "b1")
        lake.compact()
    lake.unpinned()
    assert lake.clean()
    lake.sync()
    before, pins = lake.published.metadata_location, all_pins(open_table(lake.path).storage)
    asked = list[Any]()
    with monkeypatch.context() as patched:
        for of, name in ((LocalStorage, "read"), (ManifestFile, "fetch_manifest_entry"), (SqlCatalog, "load_table")):
            patched.setattr(of, name, recorded(getattr(of, name), asked))
        lake.sync()
    assert asked.count(("default", "t")) == 1
    assert {one for one in asked if "/pins/" not in one} == {".hoodie/hoodie.properties", ("default", "t")}
    lake.put("a1", operation="delete")
    (done,) = lake.sync().tables
    assert not done.changed
    assert lake.published.metadata_location == before
    assert all_pins(open_table(lake.path).storage) == pins


def test_only_changed_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no manifest without one of them; two are small, and joined."""
    monkeypatch.setattr(iceberg_snapshot, "_LEAST", 2)
    lake = Lake(tmp_path)
    lake.put(*(f"{part}{n}" for part in "abcdefgh" for n in range(1)))
    lake.sync()
    iceberg_snapshot._seen.clear()
    opened, manifests = [], list[Any]()
    real = LocalStorage.open_input

    def open_input(storage: LocalStorage, path: str, **how: bool) -> pa.NativeFile:
        opened.append(path)
        return real(storage, path, **how)

    lake.put("b0")
    lake.compact()
    monkeypatch.setattr(LocalStorage, "open_input", open_input)
    monkeypatch.setattr(
        ManifestFile, "fetch_manifest_entry", recorded(ManifestFile.fetch_manifest_entry, manifests, at=0)
    )
    (done,) = lake.sync().tables
    assert (done.added, done.dropped) == (1, 1)
    assert len(set(manifests)) == 1 < len(lake.published.current_snapshot().manifests(lake.published.io))
    assert [path.partition("/")[0] for path in opened if path.endswith(".parquet")] == ["b"]
    assert (
        lake.published.current_snapshot().summary["hudi.instant"]
        == open_table(lake.path).load_timeline().latest_completed
    )
    lake.check()


@pytest.mark.parametrize("lands", [False, True])
def test_a_death_at_the_commit_is_made_good(lands: bool, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, whether the catalog has the commit or not; the next process publishes what is missing, once."""
    lake.check_deaths(SqlCatalog, lake.sync, monkeypatch, lands=lands)


def test_the_newest_snapshot_is_held_again_after_a_release(lake: Lake) -> None:
    lake.unpinned()
    assert not lake.sync().changed
    (pin,) = all_pins(open_table(lake.path).storage)
    lake.put("a1")
    lake.compact()
    lake.clean()
    lake.check_readable()
    assert pin.for_s > 86_400


def test_a_table_that_cannot_be_made_holds_back_no_clean_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try leaves a pin, since the commit may have taken effect; the first that succeeds holds for long."""
    lake = Lake(tmp_path)
    lake.put("a1")
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lambda *given: 1 / 0)
        for _ in range(2):
            with pytest.raises(StorageError):
                lake.sync()
    assert [pin.for_s for pin in all_pins(open_table(lake.path).storage)] == [7200, 7200]
    lake.sync()
    assert sorted(pin.for_s for pin in all_pins(open_table(lake.path).storage)) == [7200, 7200, 30 * 86_400]
    assert not lake.sync().changed


def test_a_commit_that_took_effect_twice_keeps_its_pin(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that repeats a request after a lost answer says that another process was first."""
    real = SqlCatalog.commit_table

    def commit_table(*given: Any) -> Any:
        real(*given)
        raise CommitFailedException("requirement failed")

    lake.put("a1", "b1")
    lake.compact()
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit_table)
        assert not lake.sync().changed
    lake.put("a1", "b1")
    lake.compact()
    lake.clean()
    lake.check_readable()


def test_a_table_that_is_dropped_before_the_commit_is_made_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the catalog says then; the pin of what was not published ends."""
    real, drops = SqlCatalog.commit_table, [1]

    def commit_table(*given: Any) -> Any:
        if drops and drops.pop():
            lake.catalog.drop_table(("default", "t"))
            raise RESTError("NoSuchTableException: gone")
        return real(*given)

    lake.put("a1", "b1")
    lake.compact()
    before = all_pins(open_table(lake.path).storage)
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    (done,) = lake.sync().tables
    assert done.created
    lake.check()
    assert len(all_pins(open_table(lake.path).storage)) == len(before) + 1


def test_files_of_a_place_have_one_name(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with s3:// and s3a://."""
    monkeypatch.setattr("phantombase.compactor_daemon.catalogs.catalog._place", lambda path: path.replace("/../t", ""))
    lake.put("a1")
    lake.compact()
    (done,) = lake.sync(LocalStorage(f"{lake.path}/../t")).tables
    assert (done.added, done.dropped) == (1, 1)
    lake.check()


def test_what_others_did_to_the_table_is_undone(lake: Lake) -> None:
    """A snapshot of theirs, a rollback to one of ours, other columns or partitions, and an end of older snapshots."""

    def delete() -> None:
        lake.published.delete("id == 'a1'")

    def go_back() -> None:
        now = lake.published
        now.manage_snapshots().set_current_snapshot(now.snapshots()[-2].snapshot_id).commit()

    def add() -> None:
        with lake.published.update_schema() as update:
            update.add_column("theirs", StringType())

    def divide() -> None:
        with lake.published.update_spec() as update:
            update.add_field("id", BucketTransform(4), "theirs")

    def expire() -> None:
        now = lake.published
        now.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in now.snapshots()[:-1]]).commit()

    for act in (delete, go_back, add, divide, expire):
        lake.put("a1", "d1")
        lake.compact()
        lake.sync()
        act()
        lake.sync()
        lake.check()
        assert not lake.sync().changed
        lake.put("b1")
        lake.compact()
        lake.sync()
        lake.check()


def test_manifests_that_may_have_a_file_are_known_by_name() -> None:
    """All that have one, and few others."""
    by_chance, read = random.Random(1), 0
    folders = [f"s3://b/t/{''.join(by_chance.choices('ab/é', k=by_chance.randrange(9)))}/" for _ in range(60)]
    groups = [(by_chance.choice(folders), f"{by_chance.getrandbits(64):016x}") for _ in range(400)]
    paths = sorted((f"{folder}{name}_0-1-1_2.parquet", (folder, name)) for folder, name in groups)
    manifests = [paths[at : at + 8] for at in range(0, len(paths), 8)]
    names = [f"u-m{n}{range_name(one[0][0], one[-1][0])}.avro" for n, one in enumerate(manifests)]
    for few in range(200):
        some = set(by_chance.sample(groups, 1 + few % 3))
        wanted = WantedPaths((folder, f"{name}_") for folder, name in some)
        found = {name for name in names if wanted.may_be_in(name)}
        assert {names[n] for n, one in enumerate(manifests) if some & {group for _, group in one}} <= found
        read += len(found)
    assert read < 450
    assert wanted.may_be_in("of-another-program.avro")


def test_of_two_processes_the_later_looks_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an older state replaces no newer one."""
    real, others = SqlCatalog.commit_table, [1]

    def commit_table(*given: Any) -> Any:
        if others and others.pop():
            lake.put("b1", "c2")
            lake.compact()
            assert lake.sync().changed
        return real(*given)

    lake.put("a1", "c1")
    lake.compact()
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    assert not lake.sync().changed
    lake.check()
    assert [s.parent_snapshot_id for s in lake.published.snapshots()][1:] == [lake.published.snapshots()[0].snapshot_id]


def test_both_make_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, others = Lake(tmp_path), [1]
    lake.put("a1")
    real = SqlCatalog.commit_table

    def commit_table(*given: Any) -> Any:
        if others and others.pop():
            lake.put("b1")
            lake.sync()
        return real(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    lake.sync()
    lake.check()


def test_cleans_end_old_snapshots_and_never_the_newest(lake: Lake) -> None:
    for _ in range(3):
        lake.put("a1", "b1")
        lake.compact()
        lake.sync()
    lake.put("a1", "b1")
    lake.compact()
    lake.clean()
    lake.check_readable()
    lake.unpinned()
    lake.sync()
    assert lake.clean() > 0
    lake.sync()
    lake.check_readable()
    (only,) = lake.published.snapshots()
    named = {only.manifest_list.rpartition("/")[2]} | {
        m.manifest_path.rpartition("/")[2] for m in only.manifests(lake.published.io)
    }
    assert {path.name for path in lake.folder.glob("iceberg/default/t/metadata/*.avro")} == named


def test_columns_come_widen_and_go_or_are_refused(lake: Lake) -> None:
    lake.columns = {"n": pa.scalar(1, pa.int32()), "s": "x"}
    lake.put("a2", "d1")
    (done,) = lake.sync().tables
    assert done.columns == ("n", "s")
    lake.check()
    lake.columns["n"] = pa.scalar(1 << 40, pa.int64())
    lake.put("d1", "e1")
    lake.compact()
    (done,) = lake.sync().tables
    assert done.columns == ("n",)
    lake.check()
    narrow = pa.schema([("n", pa.string())])
    with pytest.raises(UnsupportedError, match=r"Iceberg cannot give .* at here\.n; expected long; found string"):
        changed_columns(lake.published.schema(), narrow, "here")


@pytest.fixture
def plain(tmp_path: Path) -> Lake:
    """A table of version 6, whose commits are text, with a struct and no Iceberg table."""
    found = Lake(tmp_path, version=6)
    found.columns = {"s": pa.scalar({"x": 1, "y": "m"})}
    found.put("a1", "b1")
    found.compact()
    return found


def test_bounds_of_some_row_groups_are_none_of_the_file(tmp_path: Path) -> None:
    """Writers leave out those of long values."""
    lake = Lake(tmp_path, columns={"s": "z" * 5000})
    lake.put("a1")
    lake.columns["s"] = "m"
    lake.put("a2")
    lake.compact()
    path = max(lake.path.glob("a/*.parquet"), key=lambda one: one.name[-25:])
    pq.write_table(pq.ParquetFile(path).read(), path, row_group_size=1)
    lake.sync()
    assert lake.published.scan(row_filter=f"s == '{'z' * 5000}'").to_arrow()["id"].to_pylist() == ["a1"]


def _edit_schema(lake: Lake, old: str, new: str) -> None:
    """In the commits of a table, as another writer could have made it."""
    for path in lake.path.glob(".hoodie/*commit*"):
        text = path.read_text()
        path.write_text(text.replace(old.replace('"', r"\""), new.replace('"', r"\"")))


def test_a_part_that_files_have_and_the_table_lacks_is_read_over(plain: Lake) -> None:
    _edit_schema(plain, ',{"name":"y","type":["null","string"],"default":null}', "")
    plain.sync()
    plain.check()
    assert plain.wanted()["s"].type == pa.struct([("x", pa.int64())])


def test_a_new_column_with_a_default_is_refused_for_files_that_lack_it(plain: Lake) -> None:
    """Also for those that were published before."""
    plain.sync()
    plain.columns["n"] = 7
    plain.put("b1")
    plain.compact()
    _edit_schema(plain, '{"name":"n","type":["null","long"],"default":null}', '{"name":"n","type":"long","default":5}')
    assert plain.wanted()["n"].to_pylist() == [5, 7]
    with pytest.raises(UnsupportedError, match="n is missing and has a default"):
        plain.sync()


def test_a_type_that_iceberg_lacks_is_refused_before_the_first_snapshot() -> None:
    """The columns are asked before anything is made in the catalog."""
    fields = [{"name": "at", "type": {"type": "int", "logicalType": "time-millis"}}]
    schema = TableSchema.of(json.dumps({"type": "record", "name": "t", "fields": fields}), populate_meta_fields=True)
    with pytest.raises(UnsupportedError, match=r"Iceberg has no such type; at here\.at; .*time32\[ms\]"):
        iceberg_columns(schema, "here", meta_columns=True)


def test_writes_since_a_mark() -> None:
    """Found whatever their clock says; unknown where one was undone, or may have been archived unseen."""

    def at(*names: str) -> Timeline:
        return timeline_of(
            LAYOUT_2, *(re.sub(r"(?<!\d)\d\d(?!\d)", lambda two: f"202601{two[0]}" + "0" * 9, n) for n in names)
        )

    def since(*names: str, archived: Sequence[str] = ()) -> list[str] | None:
        timeline, whole = at(*names), replace(at(*names), archived=at(*archived).instants)
        table = SimpleNamespace(timeline=timeline, with_archive=lambda _: whole)
        found = writes_since(cast(Snapshot, table), mark)
        return None if found is None else sorted(one.requested_time[6:8] for one in found)

    first = ("12_13.deltacommit", "14_15.deltacommit", "16.deltacommit.inflight")
    seen = cast(Snapshot, SimpleNamespace(timeline=at(*first)))
    mark = StateMark.at(seen, None, snapshot=1, holds="", held_ms=0, columns="")
    assert since(*first) == []
    assert since("11_17.deltacommit", *first[:2], "16_18.deltacommit") == ["11", "16"]
    assert since("12_13.deltacommit", "16_18.deltacommit") is None
    assert since("12_13.deltacommit", "14_19.deltacommit", "16_18.deltacommit") is None
    assert since("14_15.deltacommit", "16_18.deltacommit", "20_21.deltacommit") == ["16", "20"]
    assert since("20_21.deltacommit") is None
    old, then = ["10_11.deltacommit", *first[:2]], ["16_18.deltacommit", "19_20.deltacommit"]
    assert since("21_22.deltacommit", archived=[*old, *then]) == ["16", "19", "21"]
    slow = "13_14.deltacommit"  # its clock is: it began, and completed, after the mark
    assert since("21_22.deltacommit", archived=[*old, slow, *then]) == ["13", "16", "19", "21"]
    assert since("21_22.deltacommit", archived=[*old[:2], *then]) is None


def test_files_with_several_values_of_a_partition_column_are_in_no_partition(lake: Lake) -> None:
    assert [one.name for one in lake.published.spec().fields] == ["p"]
    for value in (None, ""):
        writer(lake.rows("x1" if value is None else "x2").set_column(1, "p", pa.array([value], pa.string()))).write(
            str(lake.path)
        )
    lake.put("a1")
    lake.compact()
    lake.sync()
    lake.check()
    assert not lake.published.spec().fields


def test_a_base_file_without_rows_is_not_published(lake: Lake) -> None:
    lake.put("a1", "b1", "c1", operation="delete")
    lake.compact()
    lake.sync()
    lake.check()
    assert lake.published.scan().to_arrow().num_rows == 0
    assert lake.published.current_snapshot().summary["total-data-files"] == "0"


def test_another_table_of_that_name_is_left_alone(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is refused before the commit leaves no pin."""
    lake.put("a1")
    lake.compact()
    pins = all_pins(open_table(lake.path).storage)
    with monkeypatch.context() as patched:
        patched.setattr("phantombase.compactor_daemon.catalogs.iceberg_files.misfit", lambda *_: "so")
        patched.setattr("phantombase.compactor_daemon.catalogs.iceberg_state.changed_columns", lambda *_: ())
        with pytest.raises(UnsupportedError, match="a base file cannot be published to Iceberg"):
            lake.sync()
    assert all_pins(open_table(lake.path).storage) == pins
    lake.catalog.create_table(("default", "other"), pa.schema([("id", pa.string())]))
    with pytest.raises(ConflictError, match=r"is another one; .*found a table that phantombase did not make"):
        lake.sync(name="other")
    moved = Lake(tmp_path / "moved")
    moved.folder.mkdir()
    moved.put("a1")
    with pytest.raises(
        ConflictError, match=f"is another one; .*expected file://{moved.path}; found file://{lake.path}"
    ):
        sync_table(open_table(moved.path), SyncOptions(to=lake.to))


@pytest.mark.parametrize(
    ("to", "options", "words"),
    [
        ("iceberg:nowhere", {}, "no such Iceberg catalog, .*; at iceberg:nowhere"),
        (None, {"ro_suffix": False}, "options that mean nothing for Iceberg; .*found ro-suffix"),
        (None, {"table_properties": ("gc.enabled=true",)}, "phantombase sets itself; found gc.enabled"),
        ("Iceberg:lake", {}, "unknown kind of catalog; expected .*iceberg:NAME"),
    ],
)
def test_a_mistake_is_one_error(to: str | None, options: dict[str, Any], words: str, lake: Lake) -> None:
    with pytest.raises(UsageError, match=words):
        sync_table(open_table(lake.path), SyncOptions(to=to or lake.to, **options))


def test_the_command_and_a_writer(lake: Lake) -> None:
    done = writer(lake.rows("d1")).sync(lake.to).upsert(str(lake.path))
    assert (done.after.error, done.after.synced) == (None, 1)
    lake.check()
    lake.put("e1")
    tried = CliRunner().invoke(app, ["sync", str(lake.path), "--to", lake.to, "--dry-run"])
    assert "files added" in tried.output
    assert "catalog.db" not in tried.output
    assert CliRunner().invoke(app, ["sync", str(lake.path), "--to", lake.to]).exit_code == 0
    lake.check()
    done = writer(lake.rows("f1")).sync("iceberg:lake?type=sql&uri=sqlite:////nowhere/c.db").upsert(str(lake.path))
    assert "the Iceberg catalog did not answer" in str(done.after.error)


@pytest.mark.deep
@pytest.mark.parametrize(("version", "seed"), [(version, seed) for version in (6, 8, 9) for seed in range(20, 24)])
def test_duckdb_has_the_rows_after_each_step(version: int, seed: int, tmp_path: Path) -> None:
    lake = Lake(tmp_path, version=version)
    lake.put("a1", "a2", "b1", "c1")
    with duckdb_reader() as reader:
        for name, step in [("compact", lake.compact), *history(lake, seed, 25)]:
            step()
            lake.sync()
            try:
                lake.check(reader.rows(lake.published.metadata_location))
            except BaseException as error:
                error.add_note(f"after {name}")
                raise


@pytest.mark.deep
@pytest.mark.parametrize("name", GOLDEN)
def test_duckdb_reads_tables_of_hudi(name: str, tmp_path: Path) -> None:
    unzip_golden(name, tmp_path)
    (tmp_path / name.partition("_")[2]).rename(tmp_path / "t")
    lake = Lake(tmp_path)
    lake.name = lake.sync().tables[0].name
    wanted = lake.wanted()
    with duckdb_reader() as reader:
        lake.check(reader.rows(lake.published.metadata_location).select(wanted.column_names).cast(wanted.schema))
