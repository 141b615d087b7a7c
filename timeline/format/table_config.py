"""hoodie.properties: the settings of a table, and the thin I/O that loads and saves them.

Java `Properties` text (ISO-8859-1, backslash escapes) in `.hoodie/hoodie.properties`. While a writer replaces that
file, `hoodie.properties.backup` exists too. `hoodie.table.checksum` is the unsigned CRC-32 of "<database>.<name>"."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import javaproperties

from ..errors import MalformedError, MissingFileError, NotATableError, StorageError, UnsupportedError
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import HOODIE, RECORDS, inside_table, join
from .layout import Layout, Slicing
from .merge_settings import (
    FIRST_OF_1X,
    KEY_GENERATOR_TYPE,
    USE_HUDI,
    MergeSettings,
    is_made_by_1x,
    key_generator_of,
    merge_settings,
    refusal,
)
from .merge_settings import PROPERTIES as PROPERTIES
from .merge_settings import MergeMode as MergeMode

BACKUP = f"{HOODIE}/hoodie.properties.backup"

_VERSION = "hoodie.table.version"
_INITIAL_VERSION = "hoodie.table.initial.version"
_NAME = "hoodie.table.name"
_DATABASE = "hoodie.database.name"
_CHECKSUM = "hoodie.table.checksum"
PROPERTIES_LOST = (
    "Restore hoodie.properties from a copy. Without one, make a table of the same version and settings in another "
    "folder, and copy its file here."
)
"""The advice for a table whose settings are lost."""
_REQUIRED = (_VERSION, _NAME, "hoodie.table.type", _CHECKSUM)
_FOLDERS = tuple(
    f"{HOODIE}/{name}" for name in (".aux/.bootstrap/.partitions", ".aux/.bootstrap/.fileids", ".schema", ".temp")
)
_METADATA_BUILT = "hoodie.table.metadata.partitions"
_METADATA_BUILDING = "hoodie.table.metadata.partitions.inflight"
_METADATA_PARTITIONS = (_METADATA_BUILT, _METADATA_BUILDING)

# A writer that replaces the file may finish after the file was read and before its backup is read.
_LOAD_ROUNDS = 2
_KEPT = 256

_TABLE_TYPE = "hoodie.table.type"
_COPY_ON_WRITE, _MERGE_ON_READ = "COPY_ON_WRITE", "MERGE_ON_READ"

# What is refused, its property, Hudi's default, the one supported value, what to do.
_SETTINGS = (
    ("this base file format", "hoodie.table.base.file.format", "PARQUET", "PARQUET", USE_HUDI),
    ("several base file formats", "hoodie.table.multiple.base.file.formats.enable", "false", "false", USE_HUDI),
    ("dropped partition columns", "hoodie.datasource.write.drop.partition.columns", "false", "false", USE_HUDI),
    ("bootstrapped tables", "hoodie.bootstrap.base.path", "", "", "Rewrite the table with Hudi first."),
    ("this table format", "hoodie.table.format", "native", "native", USE_HUDI),
)
_LAYOUT_VERSION = "hoodie.timeline.layout.version"
_POPULATE_META_FIELDS = "hoodie.populate.meta.fields"
_VIRTUAL_KEY_GENERATORS = ("SIMPLE", "COMPLEX", "NON_PARTITION")

UTC_PROPERTY = "hoodie.table.timeline.timezone"
"""LOCAL or UTC. With UTC all instants are in UTC, whatever the options of a process say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The settings of a table; `properties` holds all of them, as text.
    A missing setting has Hudi's default. A malformed one is a MalformedError, which `parse` raises."""

    properties: Mapping[str, str]

    @staticmethod
    @lru_cache(maxsize=_KEPT)
    def parse(data: bytes, where: str) -> TableConfig:
        """Inverse of `dump`; the same bytes are parsed once. MalformedError: truncated, wrong checksum, bad value."""
        try:
            config = TableConfig(properties=javaproperties.loads(data))
        except ValueError as error:
            raise MalformedError(
                "unreadable table properties", path=where, found=str(error), todo=PROPERTIES_LOST
            ) from error
        missing = [key for key in _REQUIRED if not config.properties.get(key)]
        if missing:
            raise MalformedError(
                "incomplete table properties", path=where, expected=", ".join(missing), todo=PROPERTIES_LOST
            )
        expected = str(checksum(config.database, config.name))
        if config.properties[_CHECKSUM] != expected:
            what = "wrong checksum of the table properties"
            todo = f"It covers {_DATABASE} and {_NAME}: restore the value that was changed."
            raise MalformedError(what, path=where, expected=expected, found=config.properties[_CHECKSUM], todo=todo)
        _ = (config.version, config.utc_timezone, config.populate_meta_fields, config.hive_style, config.url_encode)
        return config

    def dump(self) -> bytes:
        """The text of hoodie.properties, keys sorted. It contains no time: equal settings give equal bytes."""
        head = "#Updated by phantombase\n#Equal settings give equal bytes, so there is no time here\n"
        return (head + javaproperties.dumps(dict(self.properties), timestamp=False, sort_keys=True)).encode()

    def check_readable(self) -> None:
        """UnsupportedError that names the first setting with which base files would be read wrongly."""
        layout, _ = self.layout, self.history_folder
        for what, key, default, supported, todo in _SETTINGS:
            found = self.properties.get(key) or default
            if found.upper() != supported.upper():
                raise refusal(what, key, supported or "none", found, todo)
        timeline_layout = "2" if layout.has_completion_times else "1"
        found = self.properties.get(_LAYOUT_VERSION) or timeline_layout
        if found != timeline_layout:
            raise refusal("this timeline layout", _LAYOUT_VERSION, timeline_layout, found)

    def check_mergeable(self) -> None:
        """UnsupportedError that names the first setting with which log files would be merged wrongly."""
        merge_settings(self.properties, self.version)
        generator = self.key_generator or "none"
        virtual = self.properties.get(_POPULATE_META_FIELDS, "").lower() == "false"
        if virtual and generator not in _VIRTUAL_KEY_GENERATORS:
            what = "virtual keys of this key generator"
            raise refusal(what, KEY_GENERATOR_TYPE, " or ".join(_VIRTUAL_KEY_GENERATORS), generator)

    def check_changeable(self) -> None:
        """UnsupportedError that names the first setting with which this table would be changed wrongly.
        An active metadata table is accepted here: readers may ignore it, writers must check `metadata_partitions`."""
        self.check_readable()
        if self._table_type != _MERGE_ON_READ:
            what = "compactions and services of tables of this type"
            todo = "It has no log files, so there is nothing to compact; `read` reads it."
            raise refusal(what, _TABLE_TYPE, _MERGE_ON_READ, self._table_type, todo)
        self.check_mergeable()

    @property
    def _table_type(self) -> str:
        return (self.properties.get(_TABLE_TYPE) or _COPY_ON_WRITE).upper()

    @property
    def has_logs(self) -> bool:
        """False: COPY_ON_WRITE, so all rows are in base files."""
        return self._table_type != _COPY_ON_WRITE

    def without_metadata_table(self) -> TableConfig:
        """The same settings with the metadata table switched off: readers then ignore its folder."""
        kept = {key: value for key, value in self.properties.items() if key not in _METADATA_PARTITIONS}
        return TableConfig(properties=kept)

    def without_metadata_partitions(self, dropped: Collection[str]) -> TableConfig:
        """The same settings with some partitions of the metadata table switched off, as Hudi drops an index."""
        kept = ",".join(name for name in self._list(_METADATA_BUILT) if name not in dropped)
        return TableConfig(properties={**self.properties, _METADATA_BUILT: kept})

    def with_metadata_partitions(self, added: Collection[str]) -> TableConfig:
        """The same settings with these partitions of the metadata table, too, so that readers use them."""
        built = ",".join(sorted({*self._list(_METADATA_BUILT), *added}))
        building = ",".join(name for name in self._list(_METADATA_BUILDING) if name not in added)
        return TableConfig(properties={**self.properties, _METADATA_BUILT: built, _METADATA_BUILDING: building})

    def with_index_definitions(self, path: str) -> TableConfig:
        """The same settings with the path of the index definitions, which Hudi 1.x reads."""
        return TableConfig(properties={**self.properties, "hoodie.table.index.defs.path": path})

    @property
    def version(self) -> int:
        text = self.properties[_VERSION]
        return int(text) if text.isdecimal() and len(text) < 9 else self._malformed(_VERSION, "a number")

    @property
    def layout(self) -> Layout:
        """The differences between table versions; UnsupportedError for unknown versions."""
        try:
            return Layout.of(self.version)
        except UnsupportedError as error:
            raise error.at(PROPERTIES) from error

    @property
    def name(self) -> str:
        return self.properties[_NAME]

    @property
    def database(self) -> str:
        """Database name, "" if there is none."""
        return self.properties.get(_DATABASE, "")

    @property
    def record_key_fields(self) -> tuple[str, ...]:
        """Columns of the record key, in declared order; empty for tables with keys generated by Hudi."""
        return self._list("hoodie.table.recordkey.fields")

    @property
    def is_keyless(self) -> bool:
        """Whether writers generate a key for each new row, since the table has no key columns."""
        return not self.record_key_fields

    @property
    def partition_fields(self) -> tuple[str, ...]:
        """Partition columns, in declared order, without the `:TYPE` that custom key generators append."""
        return tuple(field.partition(":")[0] for field in self._list("hoodie.table.partition.fields"))

    @property
    def ordering_fields(self) -> tuple[str, ...]:
        """Columns whose values decide between two records of one key; empty: the later write wins."""
        return self._list("hoodie.table.ordering.fields") or self._list("hoodie.table.precombine.field")

    @property
    def merge_settings(self) -> MergeSettings:
        """How records of one key are merged; UnsupportedError for custom rules."""
        return merge_settings(self.properties, self.version)

    @property
    def merge_mode(self) -> MergeMode:
        """Which of two records of one key wins; UnsupportedError for custom rules."""
        return self.merge_settings.mode

    @property
    def merges_as_1x(self) -> bool:
        """Whether the rules of Hudi 1.x hold, also on version 6. Then floats in Avro logs widen to double through text
        (see `conform`), and compactions change only the first row of a duplicated key (see `slice_merge`)."""
        return self.version >= FIRST_OF_1X or is_made_by_1x(self.properties)

    @property
    def may_have_upgraded_logs(self) -> bool:
        """Whether a table of a later version may have log files of version 6; False if created in its version."""
        made = self.properties.get(_INITIAL_VERSION)
        return self.layout.slicing is Slicing.BY_COMPLETION_TIME and made != self.properties[_VERSION]

    @property
    def utc_timezone(self) -> bool:
        """Whether instants are in UTC; otherwise they are in the local zone of the writers."""
        return self._one_of(UTC_PROPERTY, "LOCAL", "UTC") == "UTC"

    @property
    def timeline_folder(self) -> str:
        """Folder of the active timeline, relative to the table base."""
        if not self.layout.has_completion_times:
            return HOODIE
        return f"{HOODIE}/{self._folder('hoodie.timeline.path', self.layout.default_timeline_folder)}"

    @property
    def history_folder(self) -> str:
        """Folder of the archived timeline, relative to the table base."""
        layout = self.layout
        key = "hoodie.timeline.history.path" if layout.has_completion_times else "hoodie.archivelog.folder"
        if not layout.has_completion_times and self.properties.get(key) == "":
            return HOODIE  # where Hudi 0.15.0 looks for it then
        return f"{self.timeline_folder}/{self._folder(key, layout.default_history_folder)}"

    @property
    def populate_meta_fields(self) -> bool:
        """False: virtual keys; the five meta columns of base files are null."""
        return self._one_of(_POPULATE_META_FIELDS, "true", "false") == "true"

    @property
    def captures_changes(self) -> bool:
        """Whether Hudi's change data capture is on: its writers add `.cdc` files where they rewrite base files."""
        return self._one_of("hoodie.table.cdc.enabled", "false", "true") == "true"

    @property
    def metadata_partitions(self) -> tuple[str, ...]:
        """Partitions of the metadata table, built or being built; empty if the metadata table is off."""
        return tuple(sorted({name for key in _METADATA_PARTITIONS for name in self._list(key)}))

    @property
    def built_metadata_partitions(self) -> tuple[str, ...]:
        """Partitions of the metadata table that are built: readers may use these."""
        return tuple(sorted(self._list(_METADATA_BUILT)))

    @property
    def building_metadata_partitions(self) -> tuple[str, ...]:
        """Partitions of the metadata table that Hudi's indexer is building."""
        return tuple(sorted(self._list(_METADATA_BUILDING)))

    @property
    def create_schema(self) -> str | None:
        """The Avro schema that the table was created with, if SQL created it."""
        return self.properties.get("hoodie.table.create.schema")

    @property
    def key_generator(self) -> str | None:
        """SIMPLE, COMPLEX, NON_PARTITION, TIMESTAMP, ...; USER_PROVIDED for classes of others; or None."""
        return key_generator_of(self.properties)

    @property
    def hive_style(self) -> bool:
        """Whether partition folders are named `<column>=<value>`."""
        return self._one_of("hoodie.datasource.write.hive_style_partitioning", "false", "true") == "true"

    @property
    def url_encode(self) -> bool:
        """Whether special characters of partition values are escaped in folder names."""
        return self._one_of("hoodie.datasource.write.partitionpath.urlencode", "false", "true") == "true"

    def _folder(self, key: str, default: str) -> str:
        name = self.properties.get(key) or default
        return name if inside_table(name) else self._malformed(key, "a folder inside the table")

    def _list(self, key: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.properties.get(key, "").split(",") if part.strip())

    def _one_of(self, key: str, default: str, other: str) -> str:
        text = self.properties.get(key, default)
        match = [value for value in (default, other) if value.upper() == text.upper()]
        return match[0] if match else self._malformed(key, f"{default} or {other}")

    def _malformed(self, key: str, expected: str) -> NoReturn:
        found = f"{key}={self.properties[key]}"
        what = "impossible table property"
        raise MalformedError(what, path=PROPERTIES, expected=expected, found=found, todo=PROPERTIES_LOST)


def checksum(database: str, name: str) -> int:
    """CRC-32 of "<database>.<name>", which shows whether hoodie.properties was truncated."""
    return zlib.crc32(f"{database}.{name}".encode(errors="replace"))


def load_table_config(storage: Storage) -> TableConfig:
    """The table's settings, from hoodie.properties or, while that is missing or damaged, from its backup.
    NotATableError: neither file exists. MalformedError: no existing file is usable. Other storage errors are raised
    unchanged: they show nothing about the table."""
    damage: MalformedError | None = None
    for path in (PROPERTIES, BACKUP) * _LOAD_ROUNDS:
        try:
            return TableConfig.parse(storage.read(path), path)
        except MissingFileError:
            continue
        except MalformedError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    found = f"no {HOODIE} folder" if storage.find(HOODIE) is None else "neither it nor its backup"
    if (other := other_format(storage)) is not None:
        found = other
    todo = "Check the path; it must be the table's base folder."
    raise NotATableError("not a Hudi table", path=storage.base_path, expected=PROPERTIES, found=found, todo=todo)


DELTA = "_delta_log"
ICEBERG = "metadata"
"""A folder of the tables of other formats; that of Iceberg may have other files."""


def other_format(folder: Storage) -> str | None:
    """The format of a folder that is a table of another format, with its article; None: it is none."""
    if folder.find(DELTA) is not None:
        return "a Delta table"
    return "an Iceberg table" if is_iceberg(one.name for one in listed_if_there(folder, ICEBERG) or ()) else None


def is_iceberg(names: Iterable[str]) -> bool:
    """Whether the files of `ICEBERG` with these names are of an Iceberg table."""
    return any(name.endswith(".metadata.json") for name in names)


def has_only_records(storage: Storage, folder: str = "") -> bool:
    """Whether a folder has no table, but records of phantombase: rows that a first write stages, or left."""
    names = {entry.name for entry in listed_if_there(storage, join(folder, HOODIE)) or ()}
    return names == {RECORDS.rpartition("/")[2]}


def make_table_folders(storage: Storage, config: TableConfig) -> None:
    """Creates the folders that Hudi creates for a table, before its hoodie.properties."""
    for folder in (*_FOLDERS, config.history_folder):
        storage.make_folder(folder)


def save_table_config(storage: Storage, config: TableConfig) -> None:
    """Replaces hoodie.properties so that the table loads, with old or new settings, after a crash at any line.
    The caller holds the table lock. MalformedError: `config` would not load, or there is no table to update.
    StorageError: the file does not read back as written."""
    data = config.dump()
    TableConfig.parse(data, PROPERTIES)
    try:
        current = storage.read(PROPERTIES)
        TableConfig.parse(current, PROPERTIES)
    except (MissingFileError, MalformedError):
        load_table_config(storage)  # the backup is the only good copy, so it must not be overwritten
    else:
        storage.overwrite(BACKUP, current)
    storage.overwrite(PROPERTIES, data)
    if storage.read(PROPERTIES) != data:
        raise StorageError("hoodie.properties does not read back as written; its backup is intact", path=PROPERTIES)
    storage.delete(BACKUP)
