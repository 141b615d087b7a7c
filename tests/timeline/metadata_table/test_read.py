"""The metadata table as Hudi's readers see it: which blocks count, and what their entries become."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.dashboard.overview import commits_to_compact
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_metadata, encode_rollback_plan
from phantombase.timeline.metadata_table.read import MetadataListing, read_entries, read_files
from phantombase.timeline.metadata_table.records.entries import combine, fold, merge
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view_loader import StorageListing
from tests.support.builders import PARQUET, avro_content, block, delete_block, rollback_block
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import one_of, put, unzip_golden
from tests.support.metadata_tables import ADDED, VERSIONS, Indexed, entry, serve
from tests.support.metadata_tables import entries as everything_in
from tests.support.places import SEED
from tests.support.selection import ALL, deep, for_each

NEW = "11111111-aaaa-4d3c-84f8-8d185fe427ea-0_0-0-0_20261130000000000.parquet"


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Indexed:
    """A golden table of each version."""
    return Indexed.golden(request.param, tmp_path)


def north(table: Indexed) -> dict[str, int]:
    """What the metadata table lists in one partition."""
    return dict(read_files(table.open()).partitions["north"])


# --- what real Hudi wrote


def test_what_hudi_lists_is_there(table: Indexed) -> None:
    """Both ways of listing, and the rows read by each."""
    opened = table.open()
    listed = read_files(opened)
    assert list(listed.partitions) == ["north", "south"]
    assert not listed.unnamed
    for partition, entries in StorageListing().below(opened.storage, opened.config, ""):
        stored = {e.name: e.size for e in entries if not e.name.startswith(".hoodie") and not e.name.endswith(".crc")}
        assert stored == listed.partitions[partition]
    through = Table(opened.storage, opened.config, MetadataListing())
    assert through.load_view().groups == opened.load_view().groups
    assert through.load_view(exactly={"north"}).groups == opened.load_view("north").groups
    assert read_table(through).sort_by("id") == read_table(opened).sort_by("id")


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_column_statistics(table: Indexed) -> None:
    """Every file has them for every column; bounds come with the names of their wrappers."""
    opened = table.open()
    if "column_stats" not in opened.config.built_metadata_partitions:
        assert opened.config.version == 6
        return
    stats = [record["ColumnStatsMetadata"] for _, record in read_entries(opened, "column_stats")]
    files = {name for listed in read_files(opened).partitions.values() for name in listed}
    assert {s["fileName"] for s in stats} == files
    wrappers = {s["columnName"]: s["minValue"][0].rpartition(".")[2] for s in stats if s["minValue"] is not None}
    assert wrappers["id"] == "StringWrapper"
    assert wrappers["ts"] == "LongWrapper"
    assert {(r["type"], r["ColumnStatsMetadata"]["fileName"]) for _, r in read_entries(opened, "partition_stats")} == {
        (6, "north"), (6, "south"),
    }  # fmt: skip


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_commits_to_compact(table: Indexed) -> None:
    """Those that filled it count, as Hudi counts them."""
    before = commits_to_compact(table.open())
    assert before == (4 if table.open().config.version == 6 else 6)
    table.commit(table.avro([]))
    assert commits_to_compact(table.open()) == before + 1


# --- blocks


@one_of("table", "v6", "v9", "v8", indirect=True)
@pytest.mark.parametrize("kind", ["avro", "hfile"])
def test_blocks_of_both_kinds(table: Indexed, kind: str) -> None:
    """A file more, a file less, one that grew, and a new partition."""
    before = north(table)
    gone, grown, *_ = sorted(before)
    make: Callable[..., bytes] = getattr(table, kind)
    added = [
        entry("__all_partitions__", {"east": 0}),
        entry("east", {NEW: 5}),
        entry("north", {gone: None, grown: before[grown] + 1, NEW: 7}),
    ]
    table.commit(make(added))
    assert all(record["key"] == key for key, record in read_entries(table.open(), "files"))
    listed = read_files(table.open()).partitions
    assert list(listed) == ["east", "north", "south"]
    assert listed["east"] == {NEW: 5}
    assert listed["north"] == {**{n: s for n, s in before.items() if n != gone}, grown: before[grown] + 1, NEW: 7}


def test_deleted_entries(table: Indexed) -> None:
    """A delete block takes an entry away whole; what comes behind it begins anew."""
    table.commit(delete_block(ADDED, [("north", None), ("nobody", None)]))
    assert north(table) == {}
    table.commit(table.avro([entry("north", {NEW: 3})], str(int(ADDED) + 5)), str(int(ADDED) + 5))
    assert north(table) == {NEW: 3}


def test_files_without_their_partition(table: Indexed) -> None:
    """They are kept apart, and nobody lists them."""
    table.commit(table.avro([entry("west", {NEW: 3})]))
    assert read_files(table.open()).unnamed == {"west": {NEW: 3}}
    assert "west" not in read_files(table.open()).partitions


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_a_table_without_partitions(table: Indexed) -> None:
    """Its one partition is called `.` there."""
    table.commit(
        table.avro([entry("__all_partitions__", {"north": None, "south": None, ".": 0}), entry(".", {NEW: 3})])
    )
    assert read_files(table.open()).partitions == {"": {NEW: 3}}


def test_other_blocks_are_refused(table: Indexed) -> None:
    """By name."""
    table.commit(block(PARQUET, {0: ADDED, 2: table.schema}, b"PAR1"))
    with pytest.raises(UnsupportedError, match="PARQUET_DATA"):
        read_files(table.open())


# --- whose blocks count


def test_uncommitted_blocks(table: Indexed) -> None:
    """Not completed there; completed there but still pending on the data table."""
    before = north(table)
    table.commit(table.avro([entry("north", {NEW: 3})]), metadata=False, data=False)
    assert north(table) == before
    later = str(int(ADDED) + 5)
    table.commit(table.avro([entry("north", {NEW: 3})], later), later, data=False)
    timeline = table.path / table.open().config.timeline_folder
    (timeline / f"{later}.deltacommit.requested").touch()
    (timeline / f"{later}.deltacommit.inflight").touch()
    assert north(table) == before


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_commits_that_the_data_table_does_not_know(table: Indexed) -> None:
    """Version 6 goes by the instant's suffix; versions 8 and 9 take them all."""
    before = north(table)
    table.commit(table.avro([entry("north", {NEW: 3})]), data=False)
    six = table.open().config.version == 6
    assert north(table) == (before if six else {**before, NEW: 3})
    if six:
        for suffix, counts in (("004", True), ("007", False), ("010", True)):
            instant, name = f"{ADDED}{suffix}", f"{suffix}_{NEW}"
            table.commit(table.avro([entry("north", {name: 3})], instant), instant, data=False)
            assert (name in north(table)) is counts, suffix


@pytest.mark.parametrize("table", ["v6"], indirect=True)
@pytest.mark.parametrize("empty", [False, True])
def test_what_was_rolled_back_counts(table: Indexed, empty: bool) -> None:
    """Its entries were undone by entries of the rollback's. Hudi may leave the completed file empty. Versions 8 and 9
    count it anyway."""
    before, rollback = north(table), str(int(ADDED) + 5)
    table.commit(table.avro([entry("north", {NEW: 3})]), data=False)
    assert north(table) == before
    plan = RollbackPlan(target=ADDED, action="deltacommit")
    done = b"" if empty else encode_rollback_metadata(plan, rollback, 1, {}, str(table.path))
    requested = encode_rollback_plan(plan, str(table.path))
    (table.path / f".hoodie/{rollback}.rollback.requested").write_bytes(requested)
    (table.path / f".hoodie/{rollback}.rollback").write_bytes(done)
    assert north(table) == {**before, NEW: 3}


def test_command_blocks(tmp_path: Path) -> None:
    """On version 6 a rollback of the metadata table revokes blocks by one."""
    table = Indexed.golden("v6", tmp_path)
    before = north(table)
    table.commit(table.avro([entry("north", {NEW: 3})]) + rollback_block("20261201000000009", ADDED))
    assert north(table) == before


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_made_up_commits(table: Indexed) -> None:
    """Those that fill a new partition are before every instant of the data table."""
    filling = "00000000000000012"
    table.commit(table.avro([entry("north", {NEW: 3})], filling), filling, data=False)
    assert north(table)[NEW] == 3


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_replaced_file_groups(table: Indexed) -> None:
    """A partition that Hudi has dropped."""
    opened = table.open()
    replaced = CommitMetadata(partition_to_replace_file_ids={"files": ("files-0000-0",)})
    name = f"{ADDED}_{ADDED}" if opened.layout.has_completion_times else ADDED
    timeline = table.folder / ".hoodie" / opened.layout.default_timeline_folder
    (timeline / f"{name}.replacecommit").write_bytes(encode(replaced, opened.layout.encoding))
    assert list(read_entries(opened, "files")) == []


def test_listed_below_a_folder(table: Indexed) -> None:
    """Partitions in it, not those whose names only begin alike; and every reload lists the same way."""
    table.commit(table.avro([entry("__all_partitions__", {"a/b": 0, "a/c": 0, "ab": 0, "south": None})]))
    opened = table.open()
    through = replace(opened, listing=MetadataListing())
    assert through.partitions("a") == ["a/b", "a/c"]
    assert through.partitions("a/c") == ["a/c"]
    assert through.snapshot(cached=False).partitions() == ["a/b", "a/c", "ab", "north"]
    assert opened.snapshot(cached=False).partitions() == ["north", "south"]
    with pytest.raises(MissingFileError, match="no such partition"):
        through.load_view(exactly={"south"})


# --- refusals


def test_what_is_off(table: Indexed) -> None:
    """Not built, or not at all."""
    with pytest.raises(UsageError, match=r"record_index.*expected.*files"):
        list(read_entries(table.open(), "record_index"))
    properties = table.path / ".hoodie/hoodie.properties"
    lines = [line for line in properties.read_text().splitlines() if "metadata.partitions=" not in line]
    properties.write_text("\n".join([*lines, "hoodie.table.metadata.partitions.inflight=files"]))
    with pytest.raises(UsageError, match="none: it is off"):
        read_files(table.open())


@one_of("table", "v6", "v9", "v8", indirect=True)
@pytest.mark.parametrize("value", [b"", b"\x00" * 5, b"\xff" * 30, b"\x00" * 5 + b"\x02k\x04\x02\xff\xff\xff\xff\x0f"])
def test_undecodable_records(table: Indexed, value: bytes) -> None:
    """Named by the log file they are in."""
    sound = table.avro([entry("north", {})])
    at = sound.index(b"\x00\x00\x00\x03\x00\x00\x00\x01") + 8
    record = sound[at + 4 :][: int.from_bytes(sound[at : at + 4], "big")]
    assert value != record
    content = sound[at - 8 : at] + len(value).to_bytes(4, "big") + value
    table.commit(block(3, {0: ADDED, 2: table.schema}, content))
    with pytest.raises(MalformedError, match=r"metadata table; at .*/files/.*log\."):
        read_files(table.open())


@pytest.mark.parametrize("inside", [True, False])
def test_bytes_behind_the_last(table: Indexed, inside: bool) -> None:
    """Of a record, of a block."""
    content = avro_content(table.schema, [entry("north", {})])
    if inside:
        content = content[:8] + (len(content) - 12 + 1).to_bytes(4, "big") + content[12:]
    table.commit(block(3, {0: ADDED, 2: table.schema}, content + b"\x00"))
    with pytest.raises(MalformedError, match="1 bytes after it" if inside else "do not add up"):
        read_files(table.open())


def test_any_damage_is_an_error_of_ours(tmp_path: Path) -> None:
    """Or none to what is read: base files, log files, the timeline."""
    dice = random.Random(SEED)
    for version in VERSIONS:
        table = Indexed.golden(version, tmp_path)
        keep = tmp_path / "keep"
        shutil.copytree(table.folder, keep)
        files = [p for p in sorted(table.folder.rglob("*")) if p.is_file() and p.suffix != ".crc" and p.stat().st_size]
        for _ in range(25):
            victim = dice.choice(files)
            data = bytearray(victim.read_bytes())
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            victim.write_bytes(data[: dice.choice([len(data), dice.randrange(len(data))])])
            for partition in table.open().config.built_metadata_partitions:
                try:
                    list(read_entries(table.open(), partition))
                except PhantombaseError:
                    pass
                except Exception as error:
                    pytest.fail(f"seed {SEED}, {victim}: {error!r}")
            shutil.copyfile(keep / victim.relative_to(table.folder), victim)
        shutil.rmtree(keep)


# --- two entries of one key (pure)


def files_of(record: dict[str, Any] | None) -> dict[str, int | None]:
    """The files of an entry; None: deleted."""
    assert record is not None
    listed = record["filesystemMetadata"]
    return {name: None if file["isDeleted"] else file["size"] for name, file in listed.items()}


def test_files_combine() -> None:
    """Sizes grow, deletions take away, and those of files that nobody knows stay."""
    older, newer = entry("p", {"a": 5, "b": 5, "c": None}), entry("p", {"a": 3, "b": None, "c": None, "d": None})
    assert files_of(combine(older, newer)) == {"a": 5, "c": None, "d": None}
    assert files_of(combine(entry("p", {"a": None}), entry("p", {"a": 4}))) == {"a": 4}


def test_two_steps() -> None:
    """What the logs add and delete again leaves the base file's entry alone; a deletion alone reaches it."""
    base = [("p", entry("p", {"a": 5})), ("q", entry("q", {"a": 5}))]
    logs = fold([("p", entry("p", {"a": 9})), ("p", entry("p", {"a": None})), ("q", entry("q", {"a": None}))])
    assert {key: files_of(record) for key, record in merge(base, logs)} == {"p": {"a": 5}, "q": {}}


def test_deleted_keys() -> None:
    """In logs, in both, and back again: the base file's entry is then combined with what came after."""
    base = [("p", entry("p", {"a": 5})), ("q", entry("q", {"a": 5}))]
    logs = fold([("p", None), ("q", None), ("q", entry("q", {"b": 1})), ("r", entry("r", {"c": 1})), ("s", None)])
    assert {key: files_of(record) for key, record in merge(base, logs)} == {"q": {"a": 5, "b": 1}, "r": {"c": 1}}


def test_what_cannot_be_combined() -> None:
    """Hudi fails too."""
    with pytest.raises(MalformedError, match="different types"):
        combine(entry("p", {}), {**entry("p", {}), "type": 3})
    with pytest.raises(MalformedError, match="without bytes"):
        combine(entry("p", {}), entry("p", {"a": 0}))


def stats(
    low: Any, high: Any, *, tight: bool = False, deleted: bool = False, kind: str = "LongWrapper"
) -> dict[str, Any]:
    """An entry of column statistics."""
    inner = {
        "minValue": None if low is None else (kind, {"value": low}),
        "maxValue": None if high is None else (kind, {"value": high}),
        "valueCount": 2, "nullCount": 1, "totalSize": 10, "totalUncompressedSize": None,
        "isTightBound": tight, "isDeleted": deleted,
    }  # fmt: skip
    return {"key": "k", "type": 6, "ColumnStatsMetadata": inner}


@for_each(
    [
        ((1, 5), (3, 9), (1, 9)),
        ((None, None), (3, 9), (3, 9)),
        ((1, 5), (None, None), (1, 5)),
        (("\U0001f600", "a"), ("ﷺ", "\U0001f600"), ("\U0001f600", "\U0001f600")),
        ((b"\x01", b"\x01"), (b"\xff", b"\xff"), (b"\xff", b"\x01")),
        ((0.0, 1.0), (-0.0, 2.0), (-0.0, 2.0)),
        ((1.0, float("nan")), (2.0, 3.0), (1.0, "nan")),
    ]
)
def test_statistics_widen(older: tuple[Any, Any], newer: tuple[Any, Any], bounds: tuple[Any, Any]) -> None:
    """By Java's order of values."""
    found = combine(stats(*older), stats(*newer))["ColumnStatsMetadata"]
    low, high = (found[name][1]["value"] for name in ("minValue", "maxValue"))
    assert (str(low), str(high)) == (str(bounds[0]), str(bounds[1]))
    assert (found["valueCount"], found["totalUncompressedSize"]) == (4, 0)


DECIMAL = {"typeOrdinal": 10, "additionalInfo": "12,2"}


def decimals(low: int, high: int, value_type: dict[str, Any] | None) -> dict[str, Any]:
    """An entry of a decimal's statistics in index version 2: as short as Java writes them."""
    shortest = [n.to_bytes(n.bit_length() // 8 + 1, "big", signed=True) for n in (low, high)]
    record = stats(*shortest, kind="BytesWrapper")
    record["ColumnStatsMetadata"]["valueType"] = value_type
    return record


@for_each(range(30))
def test_statistics_of_decimals_widen_by_value(number: int) -> None:
    """As bytes, -453790000000 comes before -902000000000, which is longer: the rows below it were left out."""
    pick = random.Random(SEED + number)
    values = [pick.choice((1, -1)) * pick.randrange(2 ** pick.randrange(1, 60)) for _ in range(4)]
    older, newer = (decimals(min(two), max(two), DECIMAL) for two in (values[:2], values[2:]))
    found = combine(older, newer)["ColumnStatsMetadata"]
    low, high = (int.from_bytes(found[b][1]["value"], "big", signed=True) for b in ("minValue", "maxValue"))
    assert (low, high) == (min(values), max(values))


def test_statistics_of_two_types_are_refused() -> None:
    for other in ({"typeOrdinal": 10, "additionalInfo": "12,3"}, {"typeOrdinal": 8, "additionalInfo": None}, None):
        with pytest.raises(MalformedError, match="of two types"):
            combine(decimals(1, 2, DECIMAL), decimals(1, 2, other))
    nothing = stats(None, None)
    assert combine(nothing, decimals(1, 2, DECIMAL))["ColumnStatsMetadata"]["maxValue"][1] == {"value": b"\x02"}


def test_statistics_that_replace() -> None:
    """Tight ones, deleted ones, and what comes behind deleted ones."""
    wide = stats(1, 9)
    for older, newer in (
        (wide, stats(3, 4, tight=True)),
        (wide, stats(3, 4, deleted=True)),
        (stats(1, 9, deleted=True), stats(3, 4)),
    ):
        assert combine(older, newer) == newer


# --- its own files


ITS_OWN = ["v9_with_metadata_table", deep("v6_with_metadata_table"), deep("more/v9_record_index")]


@pytest.mark.parametrize("name", ITS_OWN)
def test_a_damaged_file_of_its_own_is_named_or_not_needed(name: str, tmp_path: Path) -> None:
    """A reader that had fewer entries would have fewer files of the table; a compaction would make that final."""
    path = unzip_golden(name, tmp_path / "table")
    whole, everything = read_files(open_table(path)), everything_in(open_table(path))
    metadata, refused = Path(".hoodie", "metadata"), 0
    files = [f.relative_to(path) for p in everything for f in (path / metadata).glob(f"{p}/*")]
    for file in sorted(f for f in files if parse_data_file(f.name) is not None):
        data = (path / file).read_bytes()
        for number, damage in enumerate((b"", None, data[: len(data) // 2])[: 3 if ALL else 1]):
            copy = tmp_path / f"{number}"
            shutil.copytree(path, copy)
            put(copy / file, damage)
            refusal, found = None, whole
            try:
                found = read_files(open_table(copy))
            except PhantombaseError as error:
                refusal, refused = str(error), refused + 1
            assert found == whole
            assert refusal is None or file.name in refusal
            with suppress(PhantombaseError):
                serve(open_table(copy))
            put(copy / file, data)
            assert everything_in(open_table(copy)) == everything
            shutil.rmtree(copy)
    assert refused


def test_a_whole_one_asks_no_delta_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of its own timeline nor of the table's: it has the files of completed writes itself."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    table = replace(open_table(path), listing=MetadataListing())
    read: list[str] = []

    def watched(self: LocalStorage, path: str) -> bytes:
        read.append(path)
        return original(self, path)

    original = LocalStorage.read
    monkeypatch.setattr(LocalStorage, "read", watched)
    assert table.load_view().groups
    asked = [name for name in read if name.endswith(".deltacommit") and "/00000000000000" not in name]
    assert asked == []


@pytest.mark.parametrize(("is_own", "version"), [(True, "v6"), (False, "v6"), deep(False, "v9")])
def test_a_completed_file_that_is_lost(is_own: bool, version: str, tmp_path: Path) -> None:
    """Of the delta commit that filled it first, or of the table's first write, whose files it then does not list."""
    path = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    folder = path / (".hoodie/metadata/.hoodie" if is_own else ".hoodie") / ("timeline" if version == "v9" else "")
    min(folder.glob("*.deltacommit")).unlink()
    table = open_table(path)
    with pytest.raises(PhantombaseError, match="no file groups" if is_own else "the completed file of a write is lost"):
        read_table(replace(table, listing=MetadataListing()))
    if is_own:
        with pytest.raises(PhantombaseError, match="no file groups"):
            read_files(table)
