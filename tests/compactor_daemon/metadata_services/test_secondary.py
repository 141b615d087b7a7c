"""Secondary indexes are built as Hudi builds them, and what cannot be built is refused by name."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.metadata_services import content
from phantombase.compactor_daemon.metadata_services.build import MetadataBuilt, build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.compactor_daemon.metadata_services.serve import run_service
from phantombase.compactor_daemon.status.coexistence import coexistence, find_hudi_signs
from phantombase.compactor_daemon.unit_of_work import ServiceMeans
from phantombase.timeline.audit.validate import validated
from phantombase.timeline.errors import MalformedError, PhantombaseError, UnsupportedError
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table import update
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.index_definitions import (
    INDEX_DEFINITIONS,
    definitions_in,
    note_unbuildable,
    secondary_index_in,
    undefined_indexes,
)
from phantombase.timeline.metadata_table.records.entries import cannot_index, entry_keys, file_groups_of
from phantombase.timeline.metadata_table.records.keys import RowIndex, file_group_index
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import BUILDS, METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from phantombase.writer_hooks.write.writer import Writer
from tests.support.archived_tables import cluster
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import Faults, make_old
from tests.support.golden_tables import unzip_golden
from tests.support.metadata_tables import AT_ONCE, files_of, rows, serve
from tests.support.record_indexes import secondary_entries, true_secondary
from tests.support.selection import ALL, deep

LOCK = ProcessLock("x")
V9, V8 = "mor_avro_v9_txns_nonpart_meta", "mor_avro_v8_trips_8i3u1d"
GOLDEN = Path(__file__).parents[2] / "golden/hudi_rs"
INDEX = "secondary-index"
OF_CITY = "secondary_index_by_city:city"


def hudi_rs(name: str, into: Path) -> Path:
    """A table of real Hudi with secondary indexes."""
    zipfile.ZipFile(GOLDEN / f"{name}.zip").extractall(into)
    return into / name.removeprefix("mor_avro_")


def build(path: Path, *indexes: str, again: bool = False, hook: object = None, groups: int = 10) -> MetadataBuilt:
    storage = HookedStorage(LocalStorage(str(path)), hook) if hook else LocalStorage(str(path))  # type: ignore[arg-type]
    options = BuildOptions(indexes=indexes, record_index_groups=groups, pending_wait_s=0)
    return build_metadata(open_table(path, storage), options, LOCK, again=again)


def said(path: Path) -> dict[str, set[str]]:
    """The keys of the entries of all secondary indexes."""
    names = (n for n in Table.open(path, reading=True).config.built_metadata_partitions if n.startswith("secondary"))
    return {name: secondary_entries(path, name) for name in names}


def base_groups(path: Path, partition: str) -> set[str]:
    """The file groups that have a base file."""
    return {file.name.split("_")[0] for file in (path / METADATA_FOLDER / partition).glob("*.hfile")}


@pytest.mark.parametrize("name", [V9, V8])
def test_it_says_what_hudi_said(name: str, tmp_path: Path) -> None:
    """With dates and nulls; each entry is in the file group where Hudi looks for it."""
    path = hudi_rs(name, tmp_path)
    definitions, expected = json.loads((path / INDEX_DEFINITIONS).read_bytes()), said(path)
    groups = {partition: base_groups(path, partition) for partition in expected}
    assert set(build(path, "secondary", again=True).built) == set(expected)
    assert said(path) == expected
    if name == V9:  # the other one is of an older release, and was compacted
        assert json.loads((path / INDEX_DEFINITIONS).read_bytes()) == definitions
        assert {partition: base_groups(path, partition) for partition in expected} == groups
    assert validate(open_table(path)).differences == ()


def test_keys_of_entries() -> None:
    """With a backslash before each backslash, $ and NUL; a null is NUL alone, which no text is."""
    index = RowIndex(partition="secondary_index_x", column="x", by_value=True)
    values = pa.array(["a", "a$b", "\\", "", "\0", None, "ü\n"])
    keys = pa.array(["k", "k$", "\\k", "", "k", "k\0", "k"])
    found = entry_keys(index, keys, values)
    assert found.to_pylist() == ["a$k", "a\\$b$k\\$", "\\\\$\\\\k", "$", "\\\0$k", "\0$k\\\0", "ü\n$k"]
    upto = ["a$", "a\\$b$", "\\\\$", "$", "\\\0$", "\0$", "ü\n$"]
    assert file_groups_of(index, found, 7).tolist() == [file_group_index(one, 7) for one in upto]
    numbers = pa.array([-3, None], pa.int32())
    assert entry_keys(index, keys[:2], numbers).to_pylist() == ["-3$k", "\0$k\\$"]
    assert entry_keys(index, keys[:1], pa.array([-3], pa.date32())).to_pylist() == ["-3$k"]
    assert entry_keys(index, keys[:1], pa.array([-3], pa.timestamp("us", "UTC"))).to_pylist() == ["-3$k"]
    for type_, why in ((pa.float64(), "Java"), (pa.bool_(), "Hudi has none"), (pa.timestamp("ms"), "none")):
        assert why in cannot_index(type_)


@pytest.mark.parametrize("version", ["v9", deep("v8")])
def test_what_completes_meanwhile_is_in_it(version: str, tmp_path: Path) -> None:
    """Values that change, keys that are deleted; the record index, by which Hudi finds the rows, is built with it."""
    path = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    writes = iter(range(3))

    def meanwhile(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path and (number := next(writes, None)) is not None:
            changed = rows(range(2 + number, 6 + number), 10**7 + number)
            changed = changed.append_column("city", [[None if number else f"new${n}" for n in range(len(changed))]])
            writer(changed).delete(str(path)) if number == 1 else writer(changed).upsert(str(path))
        return call.do()

    built = build(path, OF_CITY, hook=meanwhile, groups=3)
    assert (built.built, built.rounds >= 1) == (("record_index", "secondary_index_by_city"), True)
    assert said(path) == {"secondary_index_by_city": true_secondary(path, "city")}
    assert any(entry.startswith("new\\$") for entry in true_secondary(path, "city"))
    assert len(serve(open_table(path), AT_ONCE).compactions) <= 1
    assert said(path) == {"secondary_index_by_city": true_secondary(path, "city")}
    assert build(path).why == "the table has these partitions already"


@pytest.mark.parametrize(
    ("case", "names", "what"),
    [
        ("v9_with_metadata_table", "secondary_index_none", "the table has no such column"),
        ("v6_with_metadata_table", OF_CITY, "Hudi 0.15 does not know it"),
        ("v9_bucket_nonpart", f"files,{OF_CITY}", "bucket-indexed table"),
        (V9, "secondary_index_merchant_idx:currency", "of this name on another column"),
        (V9, "secondary_index_amount", r"Hudi has none of a decimal128\(15, 2\)"),
    ],
)
def test_refused_by_name(case: str, names: str, what: str, tmp_path: Path) -> None:
    path = hudi_rs(case, tmp_path) if case == V9 else unzip_golden(case, tmp_path)
    before = {file for file in files_of(path) if BUILDS not in str(file)}
    with pytest.raises(PhantombaseError, match=what):
        build(path, names)
    assert {file for file in files_of(path) if BUILDS not in str(file)} == before


def test_one_that_cannot_be_built_is_left_to_hudi(tmp_path: Path) -> None:
    """Whatever else is built again."""
    path = hudi_rs(V9, tmp_path)
    definitions = path / INDEX_DEFINITIONS
    definitions.write_text(definitions.read_text().replace('"txn_date" ]', '"amount" ]'))
    with pytest.raises(UnsupportedError, match="decimal"):
        build(path, "secondary_index_txn_date_idx", again=True)
    done = build(path, again=True)
    assert done.dropped == ("secondary_index_txn_date_idx",)
    assert "secondary_index_merchant_idx" in done.built


@pytest.mark.parametrize("version", ["v8", deep("v9")])
def test_of_a_copy_on_write_table(version: str, tmp_path: Path) -> None:
    """Built by the command alone: other commands, and writes, refuse such a table."""
    name = {"v9": "v9_txns_simple_overwrite", "v8": "v8_nonpartitioned"}[version]
    zipfile.ZipFile(GOLDEN / f"cow_{name}.zip").extractall(tmp_path)
    path, column = tmp_path / name, {"v9": "merchant_name", "v8": "name"}[version]
    before = {file for file in files_of(path) if ".hoodie" not in str(file)}
    words = ["metadata", str(path), "--sole-writer"]
    for more in (["--rebuild"], ["--create", f"--indexes=record_index,secondary_index_x:{column}"], []):
        done = CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert said(path) == {"secondary_index_x": true_secondary(path, column)}
    assert validated(Table.open(path, reading=True)).good
    assert {file for file in files_of(path) if ".hoodie" not in str(file)} == before


def is_right(path: Path, column: str = "city") -> bool:
    """Whether an index is visible: Hudi's readers use what is defined. Then it must be true."""
    defined = [name for name in definitions_in((path / INDEX_DEFINITIONS).read_bytes()) if name.startswith("secondary")]
    for name in defined:
        assert said(path)[name] == true_secondary(path, column)
    return bool(defined)


def later(path: Path) -> None:
    """The heartbeats of dead runs are stale."""
    make_old(set((path / BUILDS).glob("*/*")), 3600)


@pytest.mark.parametrize("again", [deep(False), deep(True)])
def test_a_death_at_a_storage_call(again: bool, tmp_path: Path) -> None:
    """No reader looks up what is not true, also after a write; the next run, which names nothing, builds it."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    if again:
        build(path, OF_CITY, groups=1)
    options = BuildOptions(indexes=(OF_CITY,), record_index_groups=1, pending_wait_s=0)

    def work(storage: Storage) -> None:
        build_metadata(open_table(path, storage), options, LOCK, again=again)

    for _, copy in Faults.of(path, work).deaths():
        is_right(copy)
        writer(rows(range(3), 10**7)).upsert(str(copy))
        is_right(copy)
        later(copy)
        build(copy, *(() if again else (OF_CITY,)), groups=1)
        assert is_right(copy)
        assert undefined_indexes(open_table(copy)) == ()


@pytest.mark.parametrize("version", ["v9", deep("v8")])
def test_writes_keep_it_true(version: str, tmp_path: Path) -> None:
    """The old value's entry goes, the new one's comes: for each kind of write, also of keys that move."""
    path = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    build(path, OF_CITY, groups=3)
    times = iter(range(10**7, 2 * 10**7))

    def some(ids: range, city: str | None, partition: str = "north") -> Writer:
        count = len(ids)
        changed = rows(ids, next(times)).set_column(1, "p", [[partition] * count])
        return writer(changed.append_column("city", pa.array([city] * count, pa.string()))).global_keys(move=True)

    def kept(*done: object) -> None:
        assert is_right(path), done

    def noted(*given: Any) -> list[pa.StringArray] | None:
        parts[given[-1] is not None].add(given[-2][1])  # the keys of logs
        return entries(*given)

    entries, parts = update._entries, (set[int](), set[int]())
    kept(some(range(6), "a$b").upsert(str(path)))
    kept(some(range(3, 9), None).upsert(str(path)))
    kept(some(range(7), "Rome").upsert(str(path)), "the value of some stays")
    kept(some(range(5, 7), None).delete(str(path)))
    with mock.patch.object(update, "_SHARE", 10**6), mock.patch.object(update, "_entries", noted):
        kept(some(range(7), "in parts").upsert(str(path)))
    assert max(parts[True]) > 1
    with mock.patch.object(SliceRules, "fold_bytes", 150), mock.patch.object(update, "_entries", noted):
        kept(some(range(7), "as long as this is").upsert(str(path)))
    assert max(parts[False]) > 1, "parts that do not fit are halved"
    kept(some(range(2), "only").insert_overwrite(str(path)))
    if not ALL:
        return
    kept(some(range(9), "again").upsert(str(path)))
    kept(some(range(60, 64), "new").insert(str(path)))
    kept(some(range(62, 66), "moved", "south").upsert(str(path)))
    run_all(open_table(path))
    kept()
    kept(some(range(64, 70), "bulk", "south").key("id").bulk_insert(str(path)))
    kept(some(range(2), "only").insert_overwrite(str(path)))
    kept(serve(open_table(path), AT_ONCE).compactions)
    assert cluster(path).done
    kept()
    kept(some(range(4), "left", "east").upsert(str(path)), some(range(9), "all").insert_overwrite_table(str(path)))
    assert said(path)["secondary_index_by_city"] == {f"all$k{n:03d}" for n in range(9)}
    kept(some(range(20, 24), "east", "east").upsert(str(path)), writer().delete_partition(str(path), ["east"]))


def upsert(path: Path, storage: Storage, city: str = "new", partition: str = "north") -> None:
    changed = rows(range(6), 10**7).append_column("city", [[city] * 6]).set_column(1, "p", [[partition] * 6])
    options = Write(operation=Operation.UPSERT, options=WriteOptions(slots=1))
    write(open_table(path, storage), LocalEngine(changed, slots=1), options)


def test_its_entries_are_validated(tmp_path: Path) -> None:
    """And what an earlier release left: Hudi's queries use an index that is defined and that no write updates."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)

    def found() -> dict[str, str]:
        return dict(validated(open_table(path)).damaged_indexes)

    with mock.patch.object(content, "entry_keys", lambda index, keys, _: entry_keys(index, keys, keys)):
        build(path, OF_CITY, groups=1)
    assert "entries are not those of the" in found()["secondary_index_by_city"]
    build(path, "secondary_index_by_city", again=True)
    assert found() == {}
    properties, definitions = path / ".hoodie/hoodie.properties", path / INDEX_DEFINITIONS
    kept = properties.read_text(), definitions.read_text()
    properties.write_text(kept[0].replace(",secondary_index_by_city", ""))
    assert "Hudi's queries use it" in found()["secondary_index_by_city"]
    properties.write_text(kept[0])
    definitions.write_text(kept[1].replace('"secondary_index_by_city": {', '"secondary_index_other": {'))
    assert "does not define it" in found()["secondary_index_by_city"]
    assert build(path, OF_CITY).built == ("secondary_index_by_city",)
    assert "secondary_index_by_city" not in found()


@pytest.mark.parametrize("lost", ["-0001-0", deep("city")])
def test_a_write_takes_a_damaged_one_out(lost: str, tmp_path: Path) -> None:
    """Without a file group, or without files, entries would come to other places than where they are looked up."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    build(path, OF_CITY, groups=3)
    for file in (path / METADATA_FOLDER / "secondary_index_by_city").glob(f"*{lost}*"):
        file.unlink()
    upsert(path, LocalStorage(str(path)))
    assert not is_right(path)
    assert open_table(path).config.metadata_partitions[-1] == "record_index"
    assert build(path).built == ("secondary_index_by_city",)
    assert is_right(path)


def test_expression_indexes_are_taken_out_of_sight(tmp_path: Path) -> None:
    """Hudi's queries use these too as they are defined."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    definitions, properties = path / INDEX_DEFINITIONS, path / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("=column_stats,files", "=column_stats,expr_index_day,files"))
    defined = json.loads(definitions.read_text())
    defined["indexDefinitions"]["expr_index_day"] = {"indexName": "expr_index_day", "indexType": "column_stats"}
    definitions.write_text(json.dumps(defined))
    upsert(path, LocalStorage(str(path)))
    assert definitions_in(definitions.read_bytes()).keys() == {"column_stats"}
    assert "expr_index_day" not in open_table(path).config.metadata_partitions


def test_a_write_takes_it_out_of_sight(tmp_path: Path) -> None:
    """If it cannot hold a value. Hudi's readers look up what is defined, whether hoodie.properties names it or not."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    build(path, OF_CITY, groups=1)

    for _, copy in Faults.of(path, lambda storage: upsert(path, storage)).deaths() if ALL else ():
        is_right(copy)
    upsert(path, LocalStorage(str(path)), "\U0001f600")
    assert not is_right(path)
    (finding,) = [one for one in coexistence(find_hudi_signs(open_table(path).snapshot()), 0) if one.name == INDEX]
    assert (finding.found, "metadata TABLE --create" in finding.todo) == ("secondary_index_by_city", True)
    build(path, "record_index", again=True)
    upsert(path, LocalStorage(str(path)))
    assert build(path).built == ("secondary_index_by_city",)
    assert is_right(path)
    assert not (path / ".hoodie/.phantombase/secondary_indexes").exists()


def test_a_dropped_metadata_table_leaves_a_definition(tmp_path: Path) -> None:
    """Of an index that a write took out, for the next metadata table; but of none that nobody can build."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    build(path, OF_CITY, groups=1)
    upsert(path, LocalStorage(str(path)), "\U0001f600")
    other = shutil.copytree(path, tmp_path / "other")
    note_unbuildable(open_table(other), "secondary_index_by_city", "it is too long")

    def check(of: Path, *, is_defined: bool) -> None:
        drop_metadata_table(open_table(of), LOCK)
        assert ("secondary_index_by_city" in definitions_in((of / INDEX_DEFINITIONS).read_bytes())) == is_defined

    for _, copy in Faults.of(path, lambda storage: drop_metadata_table(open_table(path, storage), LOCK)).deaths():
        check(copy, is_defined=True)
    for of in (path, other):
        check(of, is_defined=of == path)
        assert not (of / METADATA_FOLDER).exists()


def test_the_service_builds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But while Hudi builds an index, and where Hudi has dropped one of that name. One that cannot be read, or is
    defined as it cannot be, does not keep the others."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    build(path, OF_CITY, groups=1)
    upsert(path, LocalStorage(str(path)), "\U0001f600")
    upsert(path, LocalStorage(str(path)))
    absent, properties = path / ".hoodie/.phantombase/secondary_indexes", path / ".hoodie/hoodie.properties"
    kept = json.loads(absent.read_text())["indexDefinitions"]["secondary_index_by_city"]
    folder, other = path / METADATA_FOLDER / "secondary_index_by_city", path / METADATA_FOLDER / "secondary_index_a"

    def served(*, dry_run: bool = False) -> str:
        return run_service(open_table(path).snapshot(), AT_ONCE, LOCK, ServiceMeans(dry_run=dry_run)).what

    folder.rename(tmp_path / "elsewhere")
    assert "secondary_index" not in served(dry_run=True) + served()
    assert build(path).why == "the table has these partitions already"
    (tmp_path / "elsewhere").rename(folder)

    shutil.copytree(folder, other)
    wrong: tuple[object, ...] = (["V2"], None, 5, "x", [], {"a": []}, True, [5])
    for field in kept:
        for junk in wrong if ALL else wrong[:1]:
            said = {"secondary_index_a": {**kept, field: junk}, "secondary_index_by_city": kept}
            absent.write_text(json.dumps({"indexDefinitions": said}))
            assert "secondary_index_by_city: would be built again" in served(dry_run=True), (field, junk)
    absent.write_text(json.dumps({"indexDefinitions": dict.fromkeys(said, kept)}))

    before = properties.read_text()
    properties.write_text(f"{before}\nhoodie.table.metadata.partitions.inflight=column_stats\n")
    assert "secondary_index_by_city: Hudi is building an index" in served()
    properties.write_text(before)

    def built(table: Table, options: BuildOptions, lock: TableLock) -> MetadataBuilt:
        if options.names == ("secondary_index_a",):
            raise MalformedError("it is damaged", path="a/b")
        return build_metadata(table, options, lock)

    monkeypatch.setattr("phantombase.compactor_daemon.metadata_services.serve.build_metadata", built)
    found = served()
    assert "secondary_index_a: it is damaged; at a/b, secondary_index_by_city: built again" in found
    assert is_right(path)


def test_definitions_of_another_kind() -> None:
    """One in a later version has entries that are not known here: no write may follow it. Damaged ones are named."""
    defined = {"indexFunction": "identity", "sourceFields": ["city"]}
    for version, found in (("V1", False), ("V2", True), ("V3", None), (["V2"], None)):
        index = secondary_index_in({"secondary_index_x": {**defined, "version": version}}, "secondary_index_x")
        assert (None if index is None else index.by_value) is found
    for damaged in (b"{", b"[" * 100_000, b"\xff", b'{"indexDefinitions": [1]}'):
        with pytest.raises(MalformedError, match="--rebuild"):
            definitions_in(damaged)
