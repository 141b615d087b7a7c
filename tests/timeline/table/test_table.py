"""The table on storage: which commit's schema counts, which completed files are one instant's, and what is looked at
again before it is believed."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.repair import cancel_unreadable_attempt
from phantombase.compactor_daemon.undo.restore import restore_table, to_undo
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    ConflictError,
    MalformedError,
    MissingFileError,
    PhantombaseError,
    StorageError,
    TableChangedError,
    UnknownStateError,
    UnsupportedError,
)
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RestorePlan, encode_restore_plan
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.instants.reserved_times import outcome_path
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.evolved_schema import EvolvedColumns, parse_columns, parse_history, unsupported_change
from phantombase.timeline.table.in_progress import regardless
from phantombase.timeline.table.table import Table, from_one_snapshot, put_requested
from phantombase.timeline.view.view_loader import StorageListing
from phantombase.writer_hooks.options import WriteOptions
from tests.project.rooms import modules
from tests.support.archived_tables import one_row, upsert
from tests.support.clock import sleeps
from tests.support.compaction_steps import decided, open_table
from tests.support.failing_storage import Call, HookedStorage, OnObjects
from tests.support.faults import leave_dead_write
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.metadata_tables import files_of
from tests.support.selection import for_each
from tests.support.written_tables import written_table

LATE = "2099010100000000"


def commit(
    table: Table, last: int, operation: str, action: str = "deltacommit", completion: int = 9, **extra: str
) -> str:
    """Completes an instant behind all others, LATE and a digit; its file."""
    time = f"{LATE}{last}"
    name = f"{time}_{LATE}{completion}.{action}" if table.layout.has_completion_times else f"{time}.{action}"
    metadata = CommitMetadata(operation_type=operation, compacted=operation == "COMPACT", extra_metadata=extra)
    path = f"{table.config.timeline_folder}/{name}"
    assert table.storage.put_if_absent(path, encode(metadata, table.layout.encoding))
    return path


@one_of("version", 9, 6)
def test_files_of_captured_changes_are_named_by_their_write(version: int, tmp_path: Path) -> None:
    """So the rollback of another write of the same millisecond keeps them."""
    table = open_table(unzip_golden(f"v{version}_plain", tmp_path))
    change = "p/.f-0_1.log.1_0-0-0.cdc"
    stat = WriteStat(file_id="f-0", path="p/f-0_0-0-0_1.parquet", cdc_stats={change: 7})
    path = commit(table, 1, "UPSERT")
    metadata = CommitMetadata(operation_type="UPSERT", partition_to_write_stats={"p": (stat,)})
    (tmp_path / table.storage.base_path / path).write_bytes(encode(metadata, table.layout.encoding))
    assert table.facts.named_files(table.load_timeline(), f"{LATE}1") == {stat.path, change}
    assert table.facts.named_files(table.load_timeline(), f"{LATE}1", but="deltacommit") == frozenset()


def a_schema(name: str) -> str:
    """An Avro schema of that name."""
    return f'{{"type":"record","name":"{name}","fields":[{{"name":"id","type":"string"}}]}}'


def emptied(table: Table) -> None:
    """Without its commits."""
    for file in (Path(table.storage.base_path) / table.config.timeline_folder).glob("*commit*"):
        file.unlink()


def evolved(since: int = 0, /, **ids: int) -> str:
    """Columns by name, with their ids; those with a capital letter are no numbers."""
    kinds = {True: "boolean", False: "int"}
    fields = [
        {"id": number, "name": name.lower(), "optional": True, "type": kinds[name != name.lower()]}
        for name, number in ids.items()
    ]
    return json.dumps({"max_column_id": 9, "version_id": since, "type": "record", "fields": fields})


def history(table: Table, last: int, *times: str) -> None:
    """The columns of all times, as of the instant LATE and a digit."""
    text = json.dumps({"schemas": [json.loads(one) for one in times]})
    table.storage.overwrite(f".hoodie/.schema/{LATE}{last}.schemacommit", text.encode())


def schema_name(table: Table) -> str:
    """Of the table's schema now."""
    text = table.snapshot().newest_schema().commit_text
    return next((n for n in ("written", "repeated", "later") if f'"{n}"' in text), "another")


@pytest.fixture
def table(version: int, tmp_path: Path) -> Table:
    """A table of that version."""
    return open_table(unzip_golden(f"v{version}_plain", tmp_path))


# --- schema ---------------------------------------------------------------------------------------------------------


@one_of("version", 6, 9)
def test_the_schema_is_that_of_the_newest_write(table: Table) -> None:
    """A table service repeats an older one; a commit without a schema says nothing."""
    commit(table, 1, "UPSERT", schema=a_schema("written"))
    assert schema_name(table) == "written"
    commit(table, 2, "COMPACT", "commit", schema=a_schema("repeated"))
    commit(table, 3, "UPSERT", schema="")
    assert schema_name(table) == "written"
    commit(table, 4, "INSERT", schema=a_schema("later"))
    assert schema_name(table) == "later"


@one_of("version", 9, 6)
def test_where_only_services_are_left_theirs_is_the_schema(table: Table) -> None:
    """The newest of them; then that of CREATE TABLE; without any the table has none."""
    emptied(table)
    with pytest.raises(UnsupportedError, match="no write is completed"):
        table.snapshot().newest_schema()
    commit(table, 1, "CLUSTER", "commit", schema=a_schema("repeated"))
    commit(table, 2, "COMPACT", "commit", schema=a_schema("later"))
    assert schema_name(table) == "later"


@one_of("version", 9, 6)
def test_columns_that_evolve_on_read(table: Table) -> None:
    """Those of all times must be known: columns with other names in older files would read as nulls."""
    emptied(table)
    text = evolved(a=1, b=2)
    commit(table, 1, "UPSERT", schema=a_schema("written"), latest_schema=text)
    with pytest.raises(UnsupportedError, match=r"schema evolution on read.*no file \.hoodie/\.schema"):
        table.snapshot().newest_schema()
    history(table, 1, text)
    found = table.snapshot().newest_schema()
    assert found.recorded == {"schema": a_schema("written"), "latest_schema": text}
    assert not found.names
    history(table, 2, text, evolved(A=1))  # of a write that is not completed
    assert table.snapshot().newest_schema() == found
    commit(table, 2, "UPSERT", schema=a_schema("written"), latest_schema=text)
    with pytest.raises(UnsupportedError, match="a changed its type: boolean, int"):
        table.snapshot().newest_schema()


@one_of("version", 6, 9)
def test_names_of_columns_in_older_files(table: Table) -> None:
    """A file has those that its commit records; without the commit, those of the last change before it."""
    emptied(table)
    first, second, third = (evolved(int(f"{LATE}{n}"), **{name: 1}) for n, name in ((1, "a"), (3, "b"), (6, "c")))
    commit(table, 1, "UPSERT", schema=a_schema("first"), latest_schema=first)
    commit(table, 3, "ALTER_SCHEMA", schema=a_schema("second"), latest_schema=second)
    commit(table, 4, "UPSERT", schema=a_schema("first"), latest_schema=first)  # it had begun before the change
    commit(table, 6, "ALTER_SCHEMA", schema=a_schema("third"), latest_schema=third)
    history(table, 6, third, second, first)
    timeline = table.load_timeline()
    found = table.with_timeline(timeline).newest_schema().names
    assert [found.at(f"{LATE}{n}") for n in range(8)] == [
        {"c": "a"}, {"c": "a"}, {"c": "a"}, {"c": "b"}, {"c": "a"}, {"c": "b"}, {}, {},
    ]  # fmt: skip
    of_five = table.with_timeline(timeline).schema_written(a_schema("second"), f"{LATE}5").names
    assert [of_five.at(f"{LATE}{n}") for n in (2, 3, 4, 6)] == [{"b": "a"}, {}, {"b": "a"}, {"b": "c"}]
    assert table.with_timeline(timeline).schema_written(a_schema("first"), f"{LATE}4").names.at(f"{LATE}3") == {
        "a": "b"
    }
    given = table.with_timeline(timeline).schema_written(a_schema("first"), f"{LATE}5", evolved=first)
    assert (given.evolved, given.names.at(f"{LATE}3")) == (first, {"a": "b"})


@one_of("version", 9, 6)
@pytest.mark.parametrize("place", ["commit", "history"])
def test_settings_name_columns_that_must_not_change(table: Table, place: str) -> None:
    """The record key by another name would not be found."""
    emptied(table)
    key = table.config.record_key_fields[0]
    text, other = evolved(a=1, **{key: 2}), evolved(a=1, b=2)
    newest, older = (other, text) if place == "commit" else (text, other)
    commit(table, 1, "UPSERT", schema=a_schema("written"), latest_schema=newest)
    history(table, 1, older)
    with pytest.raises(UnsupportedError, match=f"column {key}, which the table's settings name"):
        table.snapshot().newest_schema()


@one_of("version", 9, 6)
def test_a_compaction_has_the_columns_of_its_time(table: Table) -> None:
    """Hudi's readers look them up by the time in the file's name, once its commit is archived."""
    emptied(table)
    first, second = evolved(a=1), evolved(a=1, b=2)
    commit(table, 1, "UPSERT", schema=a_schema("first"), latest_schema=first)
    commit(table, 3, "ALTER_SCHEMA", schema=a_schema("second"), latest_schema=second)
    history(table, 3, first, second)
    timeline = table.load_timeline()
    assert table.with_timeline(timeline).newest_schema().evolved == second
    assert table.with_timeline(timeline).newest_schema(before=f"{LATE}4").evolved == second
    for instant in (f"{LATE}3", f"{LATE}2"):
        found = table.with_timeline(timeline).newest_schema(before=instant)
        assert found.recorded == {"schema": a_schema("first"), "latest_schema": first}
    commit(table, 5, "UPSERT", schema=a_schema("third"))  # by a writer without schema evolution on read
    assert table.snapshot().newest_schema(before=f"{LATE}2").recorded == {"schema": a_schema("third")}


@one_of("version", 6, 9)
def test_columns_that_evolve_on_read_are_not_clustered(table: Table) -> None:
    """Files may have other names for them."""
    emptied(table)
    text = evolved(a=1)
    commit(table, 1, "UPSERT", schema=a_schema("written"), latest_schema=text)
    history(table, 1, text)
    with pytest.raises(UnsupportedError, match="clustering tables with schema evolution on read"):
        table.snapshot().schema_to_cluster()


# --- completed files ------------------------------------------------------------------------------------------------


def test_an_instant_that_was_completed_twice_has_two_commits(tmp_path: Path) -> None:
    """Each completed name has its own completion time: one of them would hide the other's files."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    before = len(table.files.completed_commits())
    commit(table, 1, "COMPACT", "commit", completion=5)
    commit(table, 1, "COMPACT", "commit", completion=6)
    commit(table, 2, "LOG_COMPACT", completion=7)
    commit(table, 3, "UPSERT")
    storage = table.storage
    assert storage.put_if_absent(f"{table.config.timeline_folder}/{LATE}4.deltacommit.requested", b"")
    assert [i.completion_time for i in table.files.completed_commits(f"{LATE}1")] == [f"{LATE}5", f"{LATE}6"]
    assert [i.action for i in table.files.completed_commits(f"{LATE}2")] == ["deltacommit"]
    assert table.files.completed_commits(f"{LATE}4") == []
    assert len(table.files.completed_commits()) == before + 2


@one_of("version", 9, 6)
def test_a_commit_that_is_just_being_written_is_read_again(
    table: Table, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi writes in place: empty and half ones are not yet whole. One that stays so is an error, not an empty one."""
    sleeps(monkeypatch, lambda _: None)
    path, torn = commit(table, 1, "UPSERT", schema=a_schema("written")), [0, 40]

    def being_written(call: Call) -> Any:
        return call.do()[: torn.pop(0)] if call.path == path and torn else call.do()

    hooked = open_table(Path(table.storage.base_path), HookedStorage(table.storage, being_written))
    instant = hooked.load_timeline().completed_writes[f"{LATE}1"]
    assert hooked.commit_metadata(instant).operation_type == "UPSERT"
    torn.extend([40] * 100)
    with pytest.raises(MalformedError):
        hooked.commit_metadata(instant)


@pytest.fixture
def new_york(local_zone: Callable[[str], None]) -> None:
    """This process's zone, five hours behind UTC in winter."""
    local_zone("America/New_York")


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize(("zone", "hour"), [("UTC", "08"), ("LOCAL", "03")])
def test_a_completed_file_without_a_completion_time_completed_when_it_was_made(
    zone: str, hour: str, tmp_path: Path
) -> None:
    """From before the upgrade to version 8; in the zone of the table's instants."""
    path = unzip_golden("v9_plain", tmp_path)
    properties = path / PROPERTIES
    properties.write_bytes(properties.read_bytes() + f"\nhoodie.table.timeline.timezone={zone}\n".encode())
    old = path / ".hoodie" / "timeline" / "20260101000000000.deltacommit"
    old.write_bytes(b"{}")
    os.utime(old, (1_800_000_000, 1_800_000_000))
    timeline = open_table(path).load_timeline()
    assert timeline.completion_time("20260101000000000") == f"20270115{hour}0000000"


# --- views ----------------------------------------------------------------------------------------------------------


def test_what_only_the_archive_can_tell_is_never_guessed(tmp_path: Path) -> None:
    """A log of an archived write belongs to a slice by its completion time; an unreadable archive is no "no"."""
    path = unzip_golden("v9_archived", tmp_path)
    table = open_table(path)
    partition = table.partitions()[0]
    timeline = table.load_timeline()
    facts = table.with_timeline(timeline).load_facts()
    whole = table.load_view().groups
    assert table.views.partition_groups(partition, timeline, facts) == tuple(
        g for g in whole if g.partition == partition
    )
    file_id = next(path.glob(f"{partition}/*.parquet")).name.partition("_")[0]
    (path / partition / f".{file_id}_20200101000000000.log.1_1-2-3").touch()
    (path / table.config.history_folder / "_version_").write_text("77")
    for snapshot in (table.load_view, lambda: table.views.partition_groups(partition, timeline, facts)):
        with pytest.raises(UnknownStateError):
            snapshot()


@one_of("name", "v9_pending", "v6_pending")
def test_settings_that_change_during_a_look_end_it(name: str, tmp_path: Path) -> None:
    """An upgrade renames the timeline: what was listed may be half of it."""
    path = unzip_golden(name, tmp_path)
    properties = path / PROPERTIES

    def upgraded(call: Call) -> Any:
        if call.name == "list" and call.path == "north":
            properties.write_bytes(properties.read_bytes() + b"\nhoodie.some.setting=other\n")
        return call.do()

    with pytest.raises(TableChangedError, match="settings changed"):
        open_table(path, HookedStorage(LocalStorage(str(path)), upgraded)).load_view()


@one_of("name", "v6_pending", "v9_pending")
def test_a_file_group_in_two_plans_is_an_error(name: str, tmp_path: Path) -> None:
    """Its logs would be on two slices to be; none of the two is right."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    folder = path / table.config.timeline_folder
    (plan,) = folder.glob("*.compaction.requested")
    shutil.copy(plan, folder / f"{LATE}1.compaction.requested")
    with pytest.raises(MalformedError, match="two pending compaction plans"):
        table.load_view()


@one_of("name", "v9_pending", "v6_pending")
def test_a_partition_without_its_metadata_file_is_read(name: str, tmp_path: Path) -> None:
    """A folder whose metadata file is gone is no partition to a listing; completed writes name its files."""
    path = unzip_golden(name, tmp_path)
    whole = open_table(path).load_view()
    for file in (path / "north").glob(".hoodie_partition_metadata*"):
        file.unlink()
    assert sorted(g.key for g in open_table(path).load_view().groups) == sorted(g.key for g in whole.groups)


def test_a_snapshot_is_one_moment(tmp_path: Path) -> None:
    table = open_table(unzip_golden("v9_plain", tmp_path))
    for seen in (table.snapshot(), table.snapshot(cached=False)):
        before = seen.timeline
        write = Instant(requested_time=seen.next_time(), action="deltacommit", state=State.REQUESTED)
        seen.storage.put_if_absent(seen.instant_path(write), b"")
        assert seen.timeline is before
        assert seen.snapshot(same_settings=True).timeline.pending_writes.keys() >= {write.requested_time}


def test_a_snapshot_that_is_slow_to_load_stops_no_other(tmp_path: Path) -> None:
    path = str(unzip_golden("v9_plain", tmp_path))
    other = Table.on(LocalStorage(path)).snapshot(cached=False)

    def slow(call: Call) -> Any:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: other.timeline).result(timeout=60).instants
        return call.do()

    table = Table.on(LocalStorage(path))
    seen = table.on_storage(HookedStorage(LocalStorage(path), slow)).snapshot(same_settings=True, cached=False)
    assert seen.timeline == other.timeline


def test_another_timeline_ends_with_the_step(tmp_path: Path) -> None:
    """A new snapshot, what follows a section, and another process have that of the table."""
    seen = open_table(unzip_golden("v9_plain", tmp_path)).snapshot()
    other = seen.with_timeline(replace(seen.timeline, instants=()))
    assert other.storage is seen.storage
    assert other.timeline.instants == ()
    for again in (other.snapshot(cached=False), other.snapshot(), other.snapshot(same_settings=True)):
        assert again.timeline == seen.timeline
    assert type(regardless(other)) is type(pickle.loads(pickle.dumps(other))) is Table


def test_no_function_takes_a_table_and_a_timeline() -> None:
    """They may be of two moments."""
    found = []
    for module, path in modules().items():
        for node in (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef)):
            kinds = {ast.unparse(one.annotation) for one in (*node.args.args, *node.args.kwonlyargs) if one.annotation}
            if "Table" in kinds and kinds & {"Timeline", "Timeline | None"}:
                found.append(f"{module}:{node.lineno}: {node.name}")
    assert found == []


def test_a_table_lists_in_a_snapshot_as_before(tmp_path: Path) -> None:
    """Where views come from is the caller's choice, and not a setting of the table."""

    class OwnListing(StorageListing):
        pass

    own = OwnListing()
    table = replace(open_table(unzip_golden("v9_plain", tmp_path)), listing=own)
    assert table.snapshot(cached=False).listing is own


# --- reading again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MissingFileError("gone"), TableChangedError("upgraded")])
def test_what_was_gone_is_read_again_a_few_times(error: PhantombaseError) -> None:
    tries: list[int] = []

    def load(failures: int) -> Callable[[], str]:
        def once() -> str:
            tries.append(1)
            if len(tries) <= failures:
                raise error
            return "read"

        tries.clear()
        return once

    assert from_one_snapshot(load(4)) == "read"
    with pytest.raises(type(error)):
        from_one_snapshot(load(5))
    assert len(tries) == 5


def test_other_errors_are_not_tried_again() -> None:
    """A disk that fails says so once."""
    tries: list[int] = []

    def load() -> None:
        tries.append(1)
        raise StorageError("failed")

    with pytest.raises(StorageError):
        from_one_snapshot(load)
    assert len(tries) == 1


# Hudi's record of columns that evolve on read.


def columns(*fields: tuple[int, str, Any], since: int = 0) -> dict[str, Any]:
    """A record of columns: id, name and type each."""
    made = [{"id": number, "name": name, "optional": True, "type": kind} for number, name, kind in fields]
    return {"max_column_id": 9, "version_id": since, "type": "record", "fields": made}


def at(*fields: tuple[int, str, Any]) -> EvolvedColumns:
    """The same, parsed."""
    return parse_columns(json.dumps(columns(*fields)), "t")


def record(name: str, number: int = 1, kind: str = "int") -> dict[str, Any]:
    """A record with one field."""
    return {"type": "record", "fields": [{"id": number, "name": name, "optional": True, "type": kind}]}


def test_parts_of_columns_have_ids_of_their_own() -> None:
    """Records, arrays and maps, in each other."""
    array = {"type": "array", "element_id": 3, "element_optional": True, "element": record("x", 5)}
    map_ = {"type": "map", "key_id": 6, "value_id": 7, "key": "string", "value": array, "value_optional": True}
    text = json.dumps(columns((0, "a", "int"), (1, "list", array), (2, "map", map_), since=20240101000000000))
    found = parse_columns(text, "t")
    assert found.since == 20240101000000000
    assert {".".join(path): (one.id, one.kind) for path, one in found.parts.items()} == {
        "a": (0, "int"),
        "list": (1, "array"),
        "list.element": (3, "record"),
        "list.element.x": (5, "int"),
        "map": (2, "map"),
        "map.key": (6, "string"),
        "map.value": (7, "array"),
        "map.value.element": (3, "record"),
        "map.value.element.x": (5, "int"),
    }


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ([(0, "a", "int"), (1, "b", "string")], [(2, "c", "string"), (0, "a", "long")]),
        ([(0, "a", "int")], [(0, "b", "int")]),
        ([(0, "a", "int")], [(1, "a", "string")]),
        ([(0, "a", record("x"))], [(0, "b", record("x"))]),
        ([(0, "a", record("x"))], [(2, "a", record("x", 3))]),
        ([(0, "a", record("x"))], [(0, "a", record("x", kind="long"))]),
        ([(0, "a", "long")], [(0, "a", "string")]),
    ],
    ids=[
        "added, dropped, widened",
        "renamed",
        "added anew",
        "renamed record",
        "record added anew",
        "part widened",
        "text",
    ],
)
def test_such_changes_are_followed(earlier: list[tuple[int, str, Any]], later: list[tuple[int, str, Any]]) -> None:
    """In any order of the times."""
    assert unsupported_change([], ()) is None
    assert unsupported_change([at(*earlier), at(*later)], ["key"]) is None
    assert unsupported_change([at(*later), at(*earlier)], ["key"]) is None


@for_each(
    [
        ([(0, "key", "int")], [(0, "b", "int")], "column key, which the table's settings name"),
        ([(0, "key", "int")], [(1, "key", "int")], "column key, which the table's settings name"),
        ([(0, "a", "int")], [(0, "key", "int")], "column key, which the table's settings name"),
        ([(0, "a", "int")], [(0, "a", "boolean")], "a changed its type: boolean, int"),
        ([(0, "a", "float")], [(0, "a", "string")], "a changed its type: float, string"),
        ([(0, "a", "decimal(4, 2)")], [(0, "a", "decimal(9, 2)")], "a changed its type"),
        ([(0, "a", record("x"))], [(0, "a", record("x", kind="boolean"))], "a.x changed its type"),
        ([(0, "a", record("x"))], [(0, "a", record("y"))], "was renamed or added again: it is a part"),
        ([(0, "a", record("x"))], [(0, "a", record("x", 2))], "a.x was renamed or added again: it is a part"),
    ]
)
def test_what_cannot_be_followed_is_named(
    earlier: list[tuple[int, str, Any]], later: list[tuple[int, str, Any]], says: str
) -> None:
    """Columns that the settings name, other types, parts of columns."""
    for times in ((earlier, later), (later, earlier)):
        assert says in (unsupported_change([at(*one) for one in times], ["key"]) or "")


@pytest.mark.parametrize("types", [("float", "double"), ("int", "long"), ("int", "string"), ("string", "long")])
def test_ordering_columns_keep_their_type(types: tuple[str, str]) -> None:
    """Deletes in logs have ordering values of the old type, and text orders numbers in another way."""
    times = [at((0, "ts", kind)) for kind in types]
    assert unsupported_change(times, ["ts"]) is None
    assert "ordering column ts changed its type" in (unsupported_change(times, ["ts"], ["ts"]) or "")
    assert unsupported_change(times[:1], ["ts"], ["ts", "other"]) is None


@for_each(
    [
        ([(0, "a", "int"), (1, "b", "int")], {}),
        ([(0, "a", "int")], {}),
        ([(0, "x", "int"), (1, "b", "int")], {"a": "x"}),
        ([(0, "b", "int"), (1, "a", "int")], {"a": "b", "b": "a"}),
        ([(7, "a", "int"), (1, "b", "int")], {"a": None}),
        ([(7, "a", "int"), (0, "b", "int")], {"a": "b", "b": None}),
    ]
)
def test_names_in_a_file_of_older_columns(older: list[tuple[int, str, Any]], names: dict[str, str | None]) -> None:
    """Of the columns a and b: by id. A column that the file does not have needs no name, unless another one has it."""
    assert at((0, "a", "int"), (1, "b", record("z", 3))).names_of(at(*older)) == names


@for_each(["", "[]", "{", '{"fields": 3}', '{"fields": [{"name": "a", "type": "int"}]}', "{}"])
def test_what_is_no_record_of_columns_is_an_error(text: str) -> None:
    """Of one time, and of all times."""
    with pytest.raises(MalformedError, match=r"evolved columns.*t"):
        parse_columns(text, "t")
    with pytest.raises(MalformedError, match=r"evolved columns.*t"):
        parse_history(text, "t")


def test_an_unknown_kind_of_type_is_an_error() -> None:
    """It could have parts with names of their own."""
    with pytest.raises(MalformedError, match="unknown type set"):
        at((0, "a", {"type": "set"}))


def test_a_history_has_all_times() -> None:
    """As they stand in the file."""
    text = json.dumps({"schemas": [columns((0, "b", "int"), since=2), columns((0, "a", "int"), since=1)]})
    assert [one.since for one in parse_history(text, "t")] == [2, 1]


@pytest.mark.parametrize(
    "begin",
    [
        lambda path: schedule_compaction(open_table(path), LOCK),
        lambda path: create_savepoint(open_table(path), LOCK, None, user="", comment=""),
        lambda path: delete_savepoint(open_table(path), LOCK, "0"),
        lambda path: upsert(path, one_row("k0", 2), WriteOptions(buckets=1)),
    ],
    ids=["schedule", "savepoint", "delete a savepoint", "write"],
)
@one_of("version", 9, 6)
def test_nothing_is_begun_on_half_of_a_timeline(version: int, begin: Callable[[Path], object], tmp_path: Path) -> None:
    """A plan would leave log files out, a write would insert keys again, a savepoint would retain too little."""
    path = tmp_path / "t"
    written_table(path, version, one_row("k0", 0), WriteOptions(buckets=1))
    upsert(path, one_row("k0", 1), WriteOptions(buckets=1))
    other_half = path / (".hoodie" if version > 6 else ".hoodie/timeline")
    other_half.mkdir(exist_ok=True)
    (other_half / f"{LATE}1.deltacommit.requested").touch()
    before = files_of(path)
    with pytest.raises(ConflictError, match="is being upgraded or downgraded"):
        begin(path)
    assert files_of(path) == before


def _half(path: Path) -> None:
    other_half = path / (".hoodie" if (path / ".hoodie/timeline").exists() else ".hoodie/timeline")
    other_half.mkdir(exist_ok=True)
    (other_half / f"{LATE}1.deltacommit.requested").touch()


def _unreadable(table: Table, instant: str) -> None:
    attempt = decided(table, instant).attempt
    table.storage.overwrite(outcome_path(instant, attempt), b"torn")


def _restoring(table: Table) -> None:
    target = sorted(table.load_timeline().completed_writes)[-2]
    timeline = table.load_timeline()
    plan = RestorePlan(target=target, undone=to_undo(timeline, target))
    requested = Instant(requested_time=table.snapshot().next_time(), action="restore", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(requested), encode_restore_plan(plan))


def _plan_of(table: Table) -> str:
    (instant,) = pending_instants(table)
    return instant


def _dead(table: Table) -> Instant:
    (instant,) = table.load_timeline().pending("deltacommit")
    return instant


HALF: dict[str, tuple[str, Callable[[Table], object], Callable[[Table], object]]] = {
    "unschedule": ("v9_pending", lambda _: None, lambda table: unschedule(table, _plan_of(table), LOCK)),
    "release": (
        "v9_pending",
        lambda table: _unreadable(table, _plan_of(table)),
        lambda table: cancel_unreadable_attempt(table, _plan_of(table), LOCK),
    ),
    "finish a restore": ("v9_plain", _restoring, lambda table: restore_table(table, LOCK, None)),
    "drop the metadata table": (
        "v9_with_metadata_table",
        lambda _: None,
        lambda table: drop_metadata_table(table, LOCK),
    ),
    "serve the metadata table": (
        "v9_with_metadata_table",
        lambda _: None,
        lambda table: serve_metadata(table, MetadataOptions(max_delta_commits=1), LOCK),
    ),
    "roll back": (
        "v9_plain",
        lambda table: leave_dead_write(Path(table.storage.base_path)),
        lambda table: roll_back(table, _dead(table), LOCK),
    ),
}


@pytest.mark.parametrize("what", HALF)
def test_nothing_is_removed_by_half_of_a_timeline(what: str, tmp_path: Path) -> None:
    """What depends on a plan, completed a compaction or is pending may be in the other half."""
    name, prepare, do = HALF[what]
    path = unzip_golden(name, tmp_path)
    prepare(open_table(path))
    _half(path)
    before = files_of(path)
    with pytest.raises(ConflictError, match="is being upgraded or downgraded"):
        do(open_table(path))
    assert files_of(path) == before


@pytest.mark.parametrize(
    "do",
    [
        lambda table: archive_table(table, ArchiveOptions(), LOCK, dry_run=True),
        lambda table: clean_table(table, CleanOptions(), LOCK, dry_run=True),
        lambda table: cluster_table(table, ClusterOptions(), LOCK, output=OutputOptions(), dry_run=True),
        lambda table: restore_table(table, LOCK, min(table.load_timeline().completed_writes), dry_run=True),
    ],
    ids=["archive", "clean", "cluster", "restore"],
)
def test_a_dry_run_is_refused_as_its_run(do: Callable[[Table], object], tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    _half(path)
    with pytest.raises(ConflictError, match="is being upgraded or downgraded"):
        do(open_table(path))


# A plan whose request an object store did not answer: it may take effect behind writes that do not know the plan.

_LATE = Instant(requested_time="20260101000000000", action="compaction", state=State.REQUESTED)


def _unanswering(table: Table, answers: list[str], late: list[Callable[[], object]]) -> Table:
    """`answers`: what happens to each put: `late` takes effect later, `lost` at once, and neither is answered."""

    def hook(call: Call) -> object:
        answer = answers.pop(0) if call.name == "put_if_absent" and answers else ""
        if answer:
            (late.append if answer == "late" else lambda do: do())(call.do)
            raise StorageError("no answer", path=call.path)
        return call.do()

    return table.on_storage(OnObjects(table.storage, hook))


@pytest.mark.parametrize("answers", ["late", "lost", "late late lost"])
def test_a_plan_is_put_until_it_is_there(answers: str, tmp_path: Path) -> None:
    table, late = open_table(unzip_golden("v9_plain", tmp_path)), list[Callable[[], object]]()
    put_requested(_unanswering(table, answers.split(), late), _LATE, b"plan")
    for request in late:
        assert not request()
    assert table.storage.read(table.instant_path(_LATE)) == b"plan"


def test_a_plan_that_was_never_answered_is_unknown(tmp_path: Path) -> None:
    table = open_table(unzip_golden("v9_plain", tmp_path))
    with pytest.raises(UnknownStateError, match="may appear yet"):
        put_requested(_unanswering(table, ["late"] * 9, []), _LATE, b"plan")


def test_another_plan_of_that_time_is_not_taken_for_it(tmp_path: Path) -> None:
    table = open_table(unzip_golden("v9_plain", tmp_path))
    assert table.storage.put_if_absent(table.instant_path(_LATE), b"other")
    for answers in ([], ["lost"]):
        with pytest.raises(ConflictError, match="at the same instant"):
            put_requested(_unanswering(table, answers, []), _LATE, b"plan")


@pytest.mark.parametrize("other", ["clean", "clustering"])
def test_a_plan_at_the_time_of_another_action_is_taken_back(other: str, tmp_path: Path) -> None:
    """Its process chose the time, slept, and lost the lock; the other one chose the same."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    assert table.storage.put_if_absent(table.instant_path(replace(_LATE, action=other)), b"other")
    with pytest.raises(ConflictError, match="at the same instant"):
        put_requested(table, _LATE, b"plan")
    assert table.storage.find(table.instant_path(_LATE)) is None
