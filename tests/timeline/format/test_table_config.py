"""hoodie.properties: every golden table parses, every refusal has a name, every crash leaves a table that loads."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import (
    MalformedError,
    MissingFileError,
    NotATableError,
    PhantombaseError,
    StorageError,
    UnsupportedError,
)
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.format.merge_settings import DeleteMarker, NotGiven
from phantombase.timeline.format.table_config import (
    BACKUP,
    PROPERTIES,
    MergeMode,
    TableConfig,
    checksum,
    load_table_config,
    save_table_config,
)
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.golden_tables import GOLDEN, golden_case, golden_metadata, unzip_golden
from tests.support.selection import for_each

PAYLOADS = "org.apache.hudi.common.model."
EVENT_TIME_ID = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
COMMIT_TIME_ID = "ce9acb64-bde0-424c-9b91-f6ebba25356d"


def config_of(version: int = 9, /, **changes: str | None) -> TableConfig:
    """A supported table of `version`, changed; keys are written with `__` for `.`, None removes one."""
    base = {
        "hoodie.table.version": str(version),
        "hoodie.table.name": "t1",
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.table.checksum": "3609136688",
        "hoodie.table.recordkey.fields": "id",
        "hoodie.table.precombine.field" if version == 6 else "hoodie.table.ordering.fields": "ts",
    }
    edits = {f"hoodie.{key.replace('__', '.')}": value for key, value in changes.items()}
    return TableConfig(properties={k: v for k, v in {**base, **edits}.items() if v is not None})


def golden_config(name: str) -> TableConfig:
    return TableConfig.parse(golden_metadata(name)[PROPERTIES], name)


class CrashingStorage:
    """Passes calls on until the n-th, which fails before (or, for writes, half-way) doing anything."""

    def __init__(self, inner: Storage, calls_left: int, *, torn: bool) -> None:
        self.inner = inner
        self.calls_left = calls_left
        self.torn = torn

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, path: str, *rest: bytes) -> Any:
        self.calls_left -= 1
        if self.calls_left >= 0:
            return getattr(self.inner, name)(path, *rest)
        if self.torn and name == "overwrite":
            self.inner.overwrite(path, rest[0][: len(rest[0]) // 2])
        raise StorageError("power cut", path=path)


@pytest.fixture
def table(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(unzip_golden("v9_plain", tmp_path)))


@for_each(GOLDEN)
def test_golden_tables_parse_and_are_supported(name: str) -> None:
    """Each golden table is read as what its case says it is, and dumps to what parses to the same."""
    config = golden_config(name)
    config.check_changeable()
    assert TableConfig.parse(config.dump(), name) == config
    version = int(name[1])
    assert config.version == version
    assert config.layout is (LAYOUT_1 if version == 6 else LAYOUT_2)
    assert config.name == golden_case(name)
    assert config.record_key_fields == (("id", "n") if "complex_key" in name else ("id",))
    unpartitioned = config.name in ("bucket_nonpart",)
    partition_fields = () if unpartitioned else ("p", "ok") if "complex_key" in name else ("p",)
    assert config.partition_fields == partition_fields
    assert config.ordering_fields == (("ts", "n") if "multi_ordering" in name else ("ts",))
    assert config.populate_meta_fields is ("virtual_keys" not in name)
    assert bool(config.metadata_partitions) is ("with_metadata_table" in name)
    assert config.hive_style is config.url_encode is ("complex_key" in name)
    assert config.utc_timezone is False
    expected = "COMPLEX" if "complex_key" in name else "NON_PARTITION" if unpartitioned else "SIMPLE"
    assert config.key_generator == expected


@for_each(GOLDEN)
def test_golden_tables_have_the_merge_mode_of_their_judge(name: str) -> None:
    """Overwrite-with-latest on version 6 unless the case says event time; the other way round later on."""
    mode = golden_config(name).merge_mode
    if name.startswith("v6"):
        event_time = "event_time" in name
        assert mode is (MergeMode.EVENT_TIME_0X if event_time else MergeMode.OVERWRITE_WITH_LATEST_0X)
    else:
        commit_time = name.endswith("commit_time")
        assert mode is (MergeMode.COMMIT_TIME if commit_time else MergeMode.EVENT_TIME)


@pytest.mark.parametrize(("database", "name", "expected"), [("", "t1", 3609136688), ("", "tb", 628952702)])
def test_checksum_vectors(database: str, name: str, expected: int) -> None:
    """The checksums of section 12 of the format reference."""
    assert checksum(database, name) == expected


def test_checksum_includes_the_database() -> None:
    """A database name in front changes the checksum, and parse looks at it."""
    assert checksum("d", "t1") != checksum("", "t1")
    config = config_of(database__name="d")
    with pytest.raises(MalformedError, match="checksum"):
        TableConfig.parse(config.dump(), "x")


def test_checksum_of_a_lone_surrogate_is_javas() -> None:
    """Java writes half of a character pair as `?` when it takes the bytes of a string."""
    assert checksum("", "a\ud800") == checksum("", "a?")


TEXTS = st.text(max_size=30)


@given(st.dictionaries(TEXTS, TEXTS), TEXTS.filter(bool), TEXTS)
def test_dump_and_parse_are_inverses(extra: dict[str, str], name: str, database: str) -> None:
    """Any keys and values survive, whatever needs escaping in Java's format."""
    properties = {
        **extra,
        **config_of().properties,
        "hoodie.table.name": name,
        "hoodie.database.name": database,
        "hoodie.table.checksum": str(checksum(database, name)),
    }
    config = TableConfig(properties=properties)
    assert TableConfig.parse(config.dump(), "x") == config


def test_dump_is_java_text_with_two_comment_lines() -> None:
    """Two comment lines, then sorted keys, all ASCII, the same bytes every time."""
    config = config_of(b="=: ü€\U0001f600", a="\\")
    lines = config.dump().decode("ascii").splitlines()
    assert [line.startswith("#") for line in lines] == [True, True, *[False] * (len(lines) - 2)]
    assert lines[2:4] == [r"hoodie.a=\\", r"hoodie.b=\=\: \u00fc\u20ac\ud83d\ude00"]
    assert config.dump() == TableConfig(properties=dict(sorted(config.properties.items(), reverse=True))).dump()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_malformed(data: bytes) -> None:
    """Bytes that are no table properties are an error of ours and nothing else."""
    with pytest.raises(MalformedError):
        TableConfig.parse(data, "x")


@for_each(["hoodie.table.version", "hoodie.table.name", "hoodie.table.type", "hoodie.table.checksum"])
def test_missing_key_means_cut_off(key: str) -> None:
    """Without one of the keys every writer sets the file was cut off, and the message names the key."""
    with pytest.raises(MalformedError, match=key):
        TableConfig.parse(config_of(**{key.removeprefix("hoodie.").replace(".", "__"): None}).dump(), "x")


@for_each(
    [
        ("table__version", "nine"),
        ("table__timeline__timezone", "MARS"),
        ("populate__meta__fields", "maybe"),
        ("datasource__write__hive_style_partitioning", ""),
        ("datasource__write__partitionpath__urlencode", "1"),
    ]
)
def test_impossible_values_are_malformed(key: str, value: str) -> None:
    """A malformed value is an error that names property and value, never a default."""
    with pytest.raises(MalformedError, match=f"{key.replace('__', '.')}={value}"):
        TableConfig.parse(config_of(**{key: value}).dump(), "x")


def test_defaults_of_absent_settings() -> None:
    """What is absent has Hudi's default."""
    config = config_of(table__recordkey__fields=None, table__ordering__fields=None)
    assert config.database == ""
    assert config.record_key_fields == config.partition_fields == config.ordering_fields == ()
    assert config.populate_meta_fields
    assert not config.hive_style
    assert not config.url_encode
    assert not config.utc_timezone
    assert config.create_schema is None
    assert config.key_generator is None
    assert config.metadata_partitions == ()


def test_typed_values() -> None:
    """Lists are split and trimmed, partition types cut off, both metadata properties counted."""
    config = config_of(
        table__partition__fields="p:SIMPLE, day:TIMESTAMP",
        table__recordkey__fields="a, b",
        table__precombine__field="old",
        table__metadata__partitions="files,column_stats",
        table__metadata__partitions__inflight="record_index",
        table__timeline__timezone="utc",
        populate__meta__fields="TRUE",
        table__create__schema='{"type": "record"}',
    )
    assert config.partition_fields == ("p", "day")
    assert config.record_key_fields == ("a", "b")
    assert config.ordering_fields == ("ts",)
    assert config.metadata_partitions == ("column_stats", "files", "record_index")
    assert config.utc_timezone
    assert config.populate_meta_fields
    assert config.create_schema == '{"type": "record"}'
    v6 = config_of(6, table__ordering__fields=None, table__precombine__field="ts")
    assert v6.ordering_fields == ("ts",)


def test_folders() -> None:
    """Version 6 keeps its timeline in `.hoodie`; later ones below it, and the history below the timeline."""
    assert config_of(6).timeline_folder == ".hoodie"
    assert config_of(6).history_folder == ".hoodie/archived"
    assert config_of(6, archivelog__folder="old").history_folder == ".hoodie/old"
    assert config_of(6, archivelog__folder="").history_folder == ".hoodie"
    assert config_of(6, timeline__path="x", timeline__history__path="y").history_folder == ".hoodie/archived"
    assert config_of(8, archivelog__folder="archived").history_folder == ".hoodie/timeline/history"
    moved = config_of(9, timeline__path="tl", timeline__history__path="h")
    assert (moved.timeline_folder, moved.history_folder) == (".hoodie/tl", ".hoodie/tl/h")


@for_each(
    [
        ({"class": "org.apache.hudi.keygen.SimpleKeyGenerator"}, "SIMPLE"),
        ({"class": "org.apache.hudi.keygen.ComplexAvroKeyGenerator"}, "COMPLEX"),
        ({"class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator"}, "NON_PARTITION"),
        ({"class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator"}, "TIMESTAMP"),
        ({"class": "org.apache.hudi.keygen.GlobalAvroDeleteKeyGenerator"}, "GLOBAL_DELETE"),
        ({"class": "com.example.SimpleKeyGenerator"}, "USER_PROVIDED"),
        ({"type": "COMPLEX_AVRO"}, "COMPLEX"),
        ({"type": "CUSTOM"}, "CUSTOM"),
        ({"class": "org.apache.hudi.keygen.SimpleKeyGenerator", "type": "COMPLEX"}, "SIMPLE"),
    ]
)
def test_key_generators(changes: dict[str, str], expected: str) -> None:
    """By class, else by type; the Avro twins go by the same name."""
    config = config_of(**{f"table__keygenerator__{key}": value for key, value in changes.items()})
    assert config.key_generator == expected


@for_each(
    [
        (None, MergeMode.OVERWRITE_WITH_LATEST_0X),
        (f"{PAYLOADS}OverwriteWithLatestAvroPayload", MergeMode.OVERWRITE_WITH_LATEST_0X),
        ("com.uber.hoodie.common.model.OverwriteWithLatestAvroPayload", MergeMode.OVERWRITE_WITH_LATEST_0X),
        (f"{PAYLOADS}DefaultHoodieRecordPayload", MergeMode.EVENT_TIME_0X),
        (f"{PAYLOADS}EventTimeAvroPayload", MergeMode.EVENT_TIME_AVRO_0X),
    ]
)
def test_merge_mode_of_version_6(payload: str | None, expected: MergeMode) -> None:
    """By payload class alone, Hudi 0.15's default being overwrite-with-latest."""
    config = config_of(6, compaction__payload__class=payload, compaction__record__merger__strategy=EVENT_TIME_ID)
    assert config.merge_mode is expected


@for_each(
    [
        ("OverwriteWithLatestAvroPayload", MergeMode.COMMIT_TIME),
        ("DefaultHoodieRecordPayload", MergeMode.EVENT_TIME),
        ("AWSDmsAvroPayload", MergeMode.COMMIT_TIME),
    ]
)
def test_merge_mode_of_version_6_as_1x_makes_it(payload: str, expected: MergeMode) -> None:
    """With hoodie.write.table.version=6, 1.2.0 names the ordering fields as on version 9: 0.15 does not find them."""
    made = {"compaction__payload__class": f"{PAYLOADS}{payload}", "table__ordering__fields": "ts"}
    assert config_of(6, table__precombine__field=None, **made).merge_mode is expected
    assert config_of(6, table__precombine__field=None, **made).merges_as_1x
    strategies = {"record__merge__strategy__id": COMMIT_TIME_ID, "compaction__record__merger__strategy": None}
    assert config_of(6, table__precombine__field=None, **strategies).merges_as_1x
    assert config_of(6, **made).merge_mode is not expected
    assert not config_of(6, **made).merges_as_1x


@for_each(
    [
        ({"record__merge__mode": "COMMIT_TIME_ORDERING"}, MergeMode.COMMIT_TIME),
        ({"record__merge__mode": "event_time_ordering"}, MergeMode.EVENT_TIME),
        ({"record__merge__strategy__id": COMMIT_TIME_ID}, MergeMode.COMMIT_TIME),
        ({"compaction__record__merger__strategy": COMMIT_TIME_ID}, MergeMode.COMMIT_TIME),
        ({"compaction__payload__class": f"{PAYLOADS}OverwriteWithLatestAvroPayload"}, MergeMode.COMMIT_TIME),
        ({"compaction__payload__class": f"{PAYLOADS}EventTimeAvroPayload"}, MergeMode.EVENT_TIME),
        ({}, MergeMode.EVENT_TIME),
        ({"table__ordering__fields": None}, MergeMode.COMMIT_TIME),
        ({"table__ordering__fields": None, "table__precombine__field": "ts"}, MergeMode.EVENT_TIME),
    ]
)
def test_merge_mode_of_later_versions(changes: dict[str, str | None], expected: MergeMode) -> None:
    """By merge mode, else strategy id, else payload class, else by whether there is an ordering field."""
    assert [config_of(version, **changes).merge_mode for version in (8, 9)] == [expected] * 2


UNAVAILABLE = "record__merge__property__hoodie__write__partial__update__unavailable__value"
DELETE_FIELD = "record__merge__property__hoodie__payload__delete__field"
DELETE_VALUE = "record__merge__property__hoodie__payload__delete__marker"


@for_each(
    [
        (6, {"compaction__payload__class": f"{PAYLOADS}PartialUpdateAvroPayload"}, NotGiven(stamps=True)),
        (8, {"compaction__payload__class": f"{PAYLOADS}PartialUpdateAvroPayload"}, NotGiven(stamps=True)),
        (9, {"table__partial__update__mode": "IGNORE_DEFAULTS"}, NotGiven()),
        (9, {"table__partial__update__mode": "FILL_UNAVAILABLE", UNAVAILABLE: "?"}, NotGiven(text="?")),
        (9, {}, None),
    ]
)
def test_what_means_not_given(version: int, changes: dict[str, str | None], expected: NotGiven | None) -> None:
    """By payload class, on version 9 by the mode of partial updates."""
    assert config_of(version, **changes).merge_settings.not_given == expected


@pytest.mark.parametrize("version", [6, 8, 9])
def test_the_delete_marker_of_dms(version: int) -> None:
    """A payload class compares in any case, and readers know it; a property of version 9 is for writers."""
    given = {DELETE_FIELD: "Op", DELETE_VALUE: "D"}
    if version < 9:
        given = {"compaction__payload__class": f"{PAYLOADS}AWSDmsAvroPayload"}
    by_class = version < 9
    marker = config_of(version, **given).merge_settings.marker
    assert marker == DeleteMarker(field="Op", value="D", any_case=by_class, in_logs=by_class)


REFUSALS: list[tuple[int, dict[str, str | None], str]] = [
    (9, {"table__type": "COPY_ON_WRITE"}, "hoodie.table.type.*COPY_ON_WRITE"),
    (9, {"table__type": None}, "hoodie.table.type.*COPY_ON_WRITE"),
    (7, {}, "table version.*7"),
    (5, {}, "table version.*5"),
    (9, {"table__base__file__format": "ORC"}, "base file format.*ORC"),
    (9, {"table__multiple__base__file__formats__enable": "true"}, "several base file formats"),
    (6, {"datasource__write__drop__partition__columns": "True"}, "dropped partition columns"),
    (9, {"table__partial__update__mode": "KEEP_VALUES"}, "partial updates.*KEEP_VALUES"),
    (8, {"table__partial__update__mode": "IGNORE_DEFAULTS"}, "partial updates.*IGNORE_DEFAULTS"),
    (9, {"table__partial__update__mode": "FILL_UNAVAILABLE"}, "partial updates.*FILL_UNAVAILABLE"),
    (6, {"bootstrap__base__path": "/old"}, "bootstrapped.*/old"),
    (9, {"table__format": "iceberg"}, "table format.*iceberg"),
    (9, {"timeline__layout__version": "1"}, "timeline layout.*expected 2.*found 1"),
    (6, {"timeline__layout__version": "2"}, "timeline layout.*expected 1.*found 2"),
    (9, {"record__merge__property__hoodie__payload__delete__field": "op"}, "half a delete marker.*found op"),
    (8, {"record__merge__property__hoodie__payload__delete__field": "op"}, "merge property.*found op"),
    (9, {"record__merge__property__mine": "x"}, "merge property.*found x"),
    (6, {"payload__delete__field": "op"}, "merge property.*found op"),
    (6, {"compaction__payload__class": f"{PAYLOADS}debezium.MySqlDebeziumAvroPayload"}, "payload class.*MySql"),
    (8, {"compaction__payload__class": f"{PAYLOADS}debezium.PostgresDebeziumAvroPayload"}, "payload class.*version 9"),
    (
        6,
        {
            "compaction__payload__class": f"{PAYLOADS}debezium.PostgresDebeziumAvroPayload",
            "table__precombine__field": "ts",
        },
        "another ordering field.*_event_lsn.*found ts",
    ),
    (8, {"compaction__payload__class": "com.example.Mine"}, "payload class.*com.example.Mine"),
    (
        9,
        {"record__merge__mode": "EVENT_TIME_ORDERING", "compaction__payload__class": "com.example.Mine"},
        "payload class",
    ),
    (6, {"compaction__record__merger__strategy": COMMIT_TIME_ID}, "custom merge strategies"),
    (9, {"record__merge__mode": "CUSTOM"}, "merge mode.*CUSTOM"),
    (8, {"record__merge__strategy__id": "00000000-0000-0000-0000-000000000000"}, "merge strategy.*0000"),
    (
        8,
        {
            "record__merge__strategy__id": EVENT_TIME_ID,
            "compaction__payload__class": f"{PAYLOADS}OverwriteWithLatestAvroPayload",
        },
        "contradicting",
    ),
    (9, {"populate__meta__fields": "false"}, "virtual keys.*found none"),
    (9, {"populate__meta__fields": "False", "table__keygenerator__type": "TIMESTAMP"}, "virtual.*TIMESTAMP"),
    (
        6,
        {"populate__meta__fields": "false", "table__keygenerator__class": "com.example.Keys"},
        "virtual keys.*USER_PROVIDED",
    ),
]


@for_each(REFUSALS)
def test_refusals_have_a_name(version: int, changes: dict[str, str | None], message: str) -> None:
    """What is not supported is refused with the setting, what was found and what to do."""
    config_of(6).check_changeable()
    config_of(8).check_changeable()
    config_of(9).check_changeable()
    with pytest.raises(UnsupportedError, match=message) as caught:
        config_of(version, **changes).check_changeable()
    assert caught.value.found
    assert caught.value.todo


@for_each(["SIMPLE", "COMPLEX", "NON_PARTITION", "SIMPLE_AVRO"])
def test_virtual_keys_of_plain_generators_are_supported(kind: str) -> None:
    """Their keys can be computed again from the columns."""
    config_of(populate__meta__fields="false", table__keygenerator__type=kind).check_changeable()


@for_each(
    [
        ("bootstrap__index__enable", "true"),
        ("table__cdc__enabled", "True"),
        ("partition__metafile__use__base__format", "true"),
        ("table__metadata__partitions", "files"),
        ("table__keygenerator__type", "TIMESTAMP"),
        ("table__legacy__payload__class", "com.example.Mine"),
    ]
)
def test_harmless_settings_are_not_refused(key: str, value: str) -> None:
    """Settings that change nothing for reading and compacting are let through."""
    config_of(**{key: value}).check_changeable()


@for_each([("9", False), ("8", True), ("6", True), (None, True)])
def test_log_files_of_version_6_lie_in_tables_that_were_upgraded(initial: str | None, may: bool) -> None:
    assert config_of(9, table__initial__version=initial).may_have_upgraded_logs is may
    assert not config_of(6, table__initial__version=initial).may_have_upgraded_logs


def test_without_metadata_table() -> None:
    """Both metadata properties go, nothing else does."""
    off = config_of()
    on = config_of(table__metadata__partitions="files", table__metadata__partitions__inflight="record_index")
    assert on.without_metadata_table() == off
    assert off.without_metadata_table() == off


def test_load_reads_the_properties(table: LocalStorage) -> None:
    """A whole hoodie.properties is what counts, whatever lies beside it."""
    config = load_table_config(table)
    assert config == golden_config("v9_plain")
    table.overwrite(BACKUP, config_of().dump())
    assert load_table_config(table) == config


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "checksum"])
def test_load_falls_back_to_the_backup(table: LocalStorage, damage: str) -> None:
    """While the properties are missing or damaged the backup is read; without one the damage is reported."""
    good = table.read(PROPERTIES)
    if damage == "missing":
        table.delete(PROPERTIES)
    elif damage == "checksum":
        table.overwrite(PROPERTIES, good.replace(b"hoodie.table.name=plain", b"hoodie.table.name=plane"))
    else:
        table.overwrite(PROPERTIES, b"" if damage == "empty" else good[: len(good) // 3])
    with pytest.raises(NotATableError if damage == "missing" else MalformedError):
        load_table_config(table)
    table.overwrite(BACKUP, good)
    assert load_table_config(table) == golden_config("v9_plain")


def test_load_reports_the_damage_of_the_properties_first(table: LocalStorage) -> None:
    """With both damaged the message is about hoodie.properties."""
    table.overwrite(PROPERTIES, b"")
    table.overwrite(BACKUP, b"")
    with pytest.raises(MalformedError) as caught:
        load_table_config(table)
    assert caught.value.path == PROPERTIES


def test_load_of_no_table(tmp_path: Path) -> None:
    """A folder without `.hoodie` is no table, and the message has the path."""
    with pytest.raises(NotATableError, match=r"no \.hoodie folder") as caught:
        load_table_config(LocalStorage(str(tmp_path)))
    assert caught.value.path == str(tmp_path)


def test_load_survives_a_writer_that_finishes_meanwhile(table: LocalStorage) -> None:
    """Properties gone at the first snapshot and backup gone at the second: the properties are back by then."""
    good = table.read(PROPERTIES)

    class Replacing:
        base_path = table.base_path
        looks: list[str]

        def __init__(self) -> None:
            self.looks = []

        def read(self, path: str) -> bytes:
            self.looks.append(path)
            if len(self.looks) <= 2:
                raise MissingFileError("no such file", path=path)
            return good

    storage = Replacing()
    assert load_table_config(cast(Storage, storage)) == golden_config("v9_plain")
    assert storage.looks == [PROPERTIES, BACKUP, PROPERTIES]


def test_load_lets_storage_failures_through(table: LocalStorage) -> None:
    """A storage that fails says nothing about the table: no fallback, no other error."""
    table.overwrite(BACKUP, config_of().dump())
    with pytest.raises(StorageError, match="power cut"):
        load_table_config(cast(Storage, CrashingStorage(table, 0, torn=False)))


def _damage_nothing(storage: LocalStorage) -> None:
    pass


def _properties_lost(storage: LocalStorage) -> None:
    storage.overwrite(BACKUP, storage.read(PROPERTIES))
    storage.delete(PROPERTIES)


def _properties_cut(storage: LocalStorage) -> None:
    data = storage.read(PROPERTIES)
    storage.overwrite(BACKUP, data)
    storage.overwrite(PROPERTIES, data[:300])


def _stale_backup(storage: LocalStorage) -> None:
    storage.overwrite(BACKUP, config_of().dump())


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("before", [_damage_nothing, _properties_lost, _properties_cut, _stale_backup])
def test_save_survives_a_crash_at_any_call(tmp_path: Path, before: Callable[[LocalStorage], None], torn: bool) -> None:
    """After a crash at any storage call, even with torn writes, the old or the new settings load, and a
    second save ends well without a backup left."""
    origin = unzip_golden("v9_with_metadata_table", tmp_path / "origin")
    old = load_table_config(LocalStorage(str(origin)))
    new = old.without_metadata_table()
    before(LocalStorage(str(origin)))
    for calls in range(20):
        copy = tmp_path / f"copy{calls}"
        (copy / ".hoodie").mkdir(parents=True)
        for path in (PROPERTIES, BACKUP):
            if (origin / path).exists():
                shutil.copy(origin / path, copy / path)
        storage = LocalStorage(str(copy))
        try:
            save_table_config(cast(Storage, CrashingStorage(storage, calls, torn=torn)), new)
        except StorageError:
            assert load_table_config(storage) in (old, new)
            save_table_config(storage, new)
            finished = False
        else:
            finished = True
        assert load_table_config(storage) == new
        assert storage.find(BACKUP) is None
        if finished:
            assert calls >= 4
            return
    pytest.fail("the save never finished")


def test_save_refuses_what_would_not_load(table: LocalStorage) -> None:
    """Settings whose checksum is wrong are refused before anything is touched."""
    before = table.read(PROPERTIES)
    renamed = {**load_table_config(table).properties, "hoodie.table.name": "other"}
    with pytest.raises(MalformedError, match="checksum"):
        save_table_config(table, TableConfig(properties=renamed))
    assert table.read(PROPERTIES) == before
    assert table.find(BACKUP) is None


def test_save_needs_a_table(tmp_path: Path) -> None:
    """Nothing is written where there is no table."""
    with pytest.raises(NotATableError):
        save_table_config(LocalStorage(str(tmp_path)), config_of())
    assert list(tmp_path.iterdir()) == []


def test_save_keeps_the_backup_when_the_file_reads_back_differently(table: LocalStorage) -> None:
    """A store that loses the write is noticed, and the backup stays."""

    class Forgetful(CrashingStorage):
        def _call(self, name: str, path: str, *rest: bytes) -> Any:
            if name == "overwrite" and path == PROPERTIES:
                return None
            return getattr(self.inner, name)(path, *rest)

    new = load_table_config(table).without_metadata_table()
    new = TableConfig(properties={**new.properties, "x": "y"})
    with pytest.raises(StorageError, match="read back"):
        save_table_config(cast(Storage, Forgetful(table, 0, torn=False)), new)
    assert table.find(BACKUP) is not None


def test_every_cut_of_a_golden_file_is_malformed_or_complete() -> None:
    """A cut-off file never raises anything but our error, wherever it is cut."""
    data = golden_metadata("v6_types")[PROPERTIES]
    for length in random.Random(7).sample(range(len(data)), 100):
        try:
            config = TableConfig.parse(data[:length], "x")
        except PhantombaseError:
            continue
        assert set(config.properties) <= set(golden_config("v6_types").properties)
