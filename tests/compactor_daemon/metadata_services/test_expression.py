"""Expression indexes are kept exact, taken out where they cannot be, and built again if they are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.metadata_services.build import MetadataBuilt, build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.compactor_daemon.metadata_services.serve import run_service
from phantombase.compactor_daemon.status.check import check_table
from phantombase.compactor_daemon.status.coexistence import coexistence, find_hudi_signs
from phantombase.compactor_daemon.unit_of_work import ServiceMeans
from phantombase.timeline.audit.validate import validated
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.format.table_config import save_table_config
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.index_definitions import INDEX_DEFINITIONS, undefined_indexes
from phantombase.timeline.metadata_table.measure import index_records
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.metadata_table.records.entries import PARTITION_STATS
from phantombase.timeline.metadata_table.records.keys import column_stats_key, expression_stats_key
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import BUILDS, METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import cluster
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, Hook, HookedStorage
from tests.support.faults import Faults, make_old
from tests.support.golden_tables import unzip_golden
from tests.support.metadata_tables import AT_ONCE, rows
from tests.support.selection import deep

LOCK = ProcessLock("x")
LOWER, FILTER, SPLIT = "expr_index_lower", "expr_index_filter", "expr_index_split"
ABSENT = ".hoodie/.phantombase/secondary_indexes"


def definition(name: str, kind: str, function: str) -> dict[str, object]:
    named = {"indexName": name, "indexType": kind, "indexFunction": function, "sourceFields": ["city"]}
    return {**named, "indexOptions": {"expr": function}, "version": "V2"}


def table_with(tmp_path: Path, *names: str) -> Path:
    """A table of Hudi, and definitions of indexes that were taken out."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    upsert(path, "Rome")
    known = {
        LOWER: definition(LOWER, "column_stats", "lower"),
        FILTER: definition(FILTER, "bloom_filters", "lower"),
        SPLIT: definition(SPLIT, "column_stats", "split"),
    }
    take_out(path, **{name: known[name] for name in names})
    return path


def take_out(path: Path, **definitions: object) -> None:
    """As writes leave indexes that they take out."""
    (path / ABSENT).write_text(json.dumps({"indexDefinitions": definitions}))
    for name in definitions:
        (path / METADATA_FOLDER / name).mkdir(exist_ok=True)
        (path / METADATA_FOLDER / name / ".hoodie_partition_metadata").touch()


def upsert(path: Path, city: str, count: int = 6) -> None:
    writer(rows(range(count), 10**7).append_column("city", pa.array([city] * count))).upsert(str(path))


def build(path: Path, *names: str, again: bool = False, hook: Hook | None = None) -> MetadataBuilt:
    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook) if hook else None)
    return build_metadata(table, BuildOptions(indexes=names, pending_wait_s=0), LOCK, again=again)


def is_right(path: Path) -> bool:
    """Whether readers see the index. Then each file that they see has an entry, and each partition too."""
    table = open_table(path)
    if LOWER not in json.loads((path / INDEX_DEFINITIONS).read_bytes())["indexDefinitions"]:
        return False
    said = dict(read_entries(table, LOWER))
    for group in table.snapshot().load_view().groups:
        assert expression_stats_key("city", group.partition) in said
        for slice_ in group.slices:
            for file in slice_.files:
                assert column_stats_key("city", group.partition, str(file.name)) in said
    assert validated(table).good
    return True


def test_it_is_kept(tmp_path: Path) -> None:
    """By writes, compactions, clusterings and the services of the metadata table."""
    path = table_with(tmp_path, LOWER)
    assert not is_right(path)
    assert build(path, LOWER).built == (LOWER,)
    assert is_right(path)
    assert build(path, LOWER).why == "the table has these partitions already"
    for city in ("Oslo", "Zürich"):
        upsert(path, city)
        assert is_right(path)
    high = {r["ColumnStatsMetadata"]["maxValue"][1]["value"] for _, r in read_entries(open_table(path), LOWER)}
    assert {"oslo", "\uffff"} <= high
    run_all(open_table(path))
    assert is_right(path)
    assert run_service(open_table(path).snapshot(), AT_ONCE, LOCK, ServiceMeans()).instants
    assert is_right(path)
    assert cluster(path).done
    assert is_right(path)
    assert build(path, LOWER, again=True).built == (LOWER,)
    assert is_right(path)
    writer(rows(range(3), 10**8)).delete(str(path))
    assert is_right(path)


def test_a_definition_that_a_restore_of_hudi_left(tmp_path: Path) -> None:
    """By it Hudi's queries fail: `check` says so, and its way out works. Not while Hudi builds the index."""
    path = table_with(tmp_path, LOWER)
    build(path, LOWER)
    shutil.rmtree(path / f".hoodie/metadata/{LOWER}")
    table = open_table(path)
    save_table_config(table.storage, table.config.without_metadata_partitions([LOWER]))

    def found() -> list[str]:
        return [f.found for f in check_table("t", str(path)).verdict.findings if f.name == "metadata-index"]

    (said,) = found()
    assert said.startswith(f"{LOWER}: ")
    building = path / ".hoodie/timeline/20990101000000000.indexing.requested"
    building.touch()
    assert found() == []
    building.unlink()
    assert build(path, LOWER, again=True).built == (LOWER,)
    assert is_right(path)
    assert found() == []


def test_wrong_bounds_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_with(tmp_path, LOWER)
    with monkeypatch.context() as patched:
        patched.setattr(
            "phantombase.timeline.metadata_table.expression_index._LETTERS", {"lower": lambda texts: pa.array(["m"])}
        )
        build(path, LOWER)
    (found,) = dict(validated(open_table(path)).damaged_indexes).items()
    assert (found[0], "leave out values" in found[1]) == (LOWER, True)


def test_it_is_built_again_only_if_it_is_named(tmp_path: Path) -> None:
    """Hudi's own queries miss rows by it."""
    path = table_with(tmp_path, LOWER, SPLIT)
    with pytest.raises(UnsupportedError, match="does not build this index"):
        build(path, SPLIT)

    def found(name: str = "secondary-index") -> str:
        seen = coexistence(find_hudi_signs(open_table(path).snapshot()), 0)
        return next((one.found for one in seen if one.name == name), "")

    def served(*, dry_run: bool = False) -> str:
        return run_service(open_table(path).snapshot(), AT_ONCE, LOCK, ServiceMeans(dry_run=dry_run)).what

    asked = f"`metadata TABLE --create --indexes {LOWER}` builds it"
    assert asked in found()
    assert f"{SPLIT} (only Hudi's CREATE INDEX builds it)" in found()
    assert "built again" not in served(dry_run=True)
    assert f"{LOWER}: {asked}" in served()
    assert LOWER not in build(path).built
    assert not is_right(path)
    assert build(path, LOWER).built == (LOWER,)
    assert LOWER in build(path, again=True).built, "it is there"
    assert is_right(path)
    assert found("expression-index") == LOWER, "Hudi's own queries miss rows"
    upsert(path, "\U0001f600")
    assert not is_right(path)
    assert LOWER not in open_table(path).config.metadata_partitions
    assert asked in found()
    with pytest.raises(UnsupportedError, match="cannot hold the values"):
        build(path, LOWER)


def test_it_is_taken_out_where_a_bound_would_leave_out_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hudi merges texts by UTF-16 units; its readers leave out partitions without bounds as soon as one has some."""
    path, measured = table_with(tmp_path, LOWER), index_records
    with monkeypatch.context() as patched:
        patched.setattr(
            "phantombase.compactor_daemon.metadata_services.content.index_records",
            lambda *of: (one for one in measured(*of) if one[1] is None or one[1][1]["type"] != PARTITION_STATS),
        )
        build(path, LOWER)
    assert LOWER in open_table(path).config.metadata_partitions
    upsert(path, "Oslo", 1)
    assert not is_right(path)
    with monkeypatch.context() as patched:
        patched.setattr(
            "phantombase.timeline.metadata_table.expression_index._of_texts", lambda *_: ("a\U0001f600", "b")
        )
        build(path, LOWER)
        assert LOWER in open_table(path).config.metadata_partitions
    upsert(path, "a")
    assert not is_right(path)


def test_a_bloom_filter_needs_no_entry(tmp_path: Path) -> None:
    """Of a new file: readers open files without a filter."""
    path = table_with(tmp_path, FILTER)
    definitions, properties = path / INDEX_DEFINITIONS, path / ".hoodie/hoodie.properties"
    defined = json.loads(definitions.read_text())
    defined["indexDefinitions"][FILTER] = definition(FILTER, "bloom_filters", "lower")
    definitions.write_text(json.dumps(defined))
    properties.write_text(properties.read_text().replace("=column_stats,files", f"=column_stats,{FILTER},files"))
    upsert(path, "\U0001f600")
    assert FILTER in open_table(path).config.metadata_partitions
    assert FILTER in json.loads(definitions.read_text())["indexDefinitions"]
    with pytest.raises(UnsupportedError, match="does not build this index"):
        build(path, FILTER, again=True)
    assert build(path, again=True).dropped == (FILTER,)
    assert FILTER not in json.loads(definitions.read_text())["indexDefinitions"], "Hudi's queries would look for it"


def test_bounds_of_another_expression_are_not_made_visible(tmp_path: Path) -> None:
    """As of a column that gets another type or a default, or of an index that is defined anew, while it is built."""
    path = table_with(tmp_path, LOWER)
    absent = path / ABSENT

    def meanwhile(call: Call) -> object:
        if call.name == "open_output" and BUILDS in call.path and '"lower"' in absent.read_text():
            absent.write_text(absent.read_text().replace('"lower"', '"upper"'))
            upsert(path, "Oslo")
        return call.do()

    with pytest.raises(ConflictError, match="or a column of an expression index"):
        build(path, LOWER, hook=meanwhile)
    assert not is_right(path)
    assert build(path).built == (LOWER,)
    assert is_right(path)


@pytest.mark.parametrize("again", [deep(False), deep(True)])
def test_a_death_at_a_storage_call(again: bool, tmp_path: Path) -> None:
    """Of a build, and of a write that takes it out: no reader sees an index that lacks a file."""
    path = table_with(tmp_path, LOWER)
    if again:
        build(path, LOWER)

    def work(storage: Storage) -> None:
        options = BuildOptions(indexes=(LOWER,), pending_wait_s=0)
        build_metadata(open_table(path, storage), options, LOCK, again=again)

    for _, copy in Faults.of(path, work).deaths():
        is_right(copy)
        upsert(copy, "Paris")
        is_right(copy)
        make_old(set((copy / BUILDS).glob("*/*")), 3600)
        build(copy, LOWER)
        assert is_right(copy)
        assert undefined_indexes(open_table(copy)) == ()
