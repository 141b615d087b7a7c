"""Makes a table: its description, and the folders and hoodie.properties that Hudi would give it.

Version 6 is made as by Hudi 0.15.0, versions 8 and 9 as by 1.2.0; always MERGE_ON_READ. hoodie.properties is put last:
it makes the folder a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from phantombase.timeline.errors import MalformedError, NotATableError, StorageError, UsageError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.merge_settings import KEY_GENERATOR_CLASSES, MERGE_STRATEGIES, NEW_PAYLOADS
from phantombase.timeline.format.table_config import (
    DELTA,
    ICEBERG,
    PROPERTIES,
    PROPERTIES_LOST,
    MergeMode,
    TableConfig,
    checksum,
    has_only_records,
    is_iceberg,
    load_table_config,
    make_table_folders,
    other_format,
)
from phantombase.timeline.metadata_table.create import make_metadata_table
from phantombase.timeline.option import check_kinds
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import HOODIE, join
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view_loader import subfolders

from .key_generator import PARTITION_TYPES, KeyGenerator, generator_kind, inferred_kind
from .partition_times import PREFIX

_MODES = (MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """The description of a table. `key_fields`: () for a keyless table, whose writers generate the keys.
    `partition_fields`: `name`, or `name:SIMPLE` and `name:TIMESTAMP` with the CUSTOM key generator; version 6 stores no
    types, so that each writer gives them. `key_generator`: SIMPLE, COMPLEX, NON_PARTITION, TIMESTAMP or CUSTOM; None:
    as Hudi infers it. `merge_mode`: EVENT_TIME (the default with ordering fields) or COMMIT_TIME (the default without).
    `times`: options of the TIMESTAMP generator, under Hudi's names. `utc_timezone`: instants are in UTC; Hudi's default
    is the zone of each writer. `schema_text`: the Avro record, if the table must have it before its first commit, as
    with SQL's CREATE TABLE. `metadata_table`: with Hudi's metadata table, which lists its files. `meta_columns`: False
    for virtual keys; None: as the existing table, with them in a new one."""

    name: str
    version: int
    key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    ordering_fields: tuple[str, ...] = ()
    key_generator: str | None = None
    merge_mode: MergeMode | None = None
    hive_style: bool = False
    url_encode: bool = False
    utc_timezone: bool = False
    database: str = ""
    times: tuple[tuple[str, str], ...] = ()
    schema_text: str | None = None
    metadata_table: bool = False
    meta_columns: bool | None = None

    def __post_init__(self) -> None:
        check_kinds(self)

    @property
    def mode(self) -> MergeMode:
        return self.merge_mode or (MergeMode.EVENT_TIME if self.ordering_fields else MergeMode.COMMIT_TIME)

    @property
    def kind(self) -> str:
        return self.key_generator or inferred_kind(self.key_fields, self.partition_fields)

    def config(self) -> TableConfig:
        """The settings of the table. UsageError, UnsupportedError: no such table can be made or written."""
        self._check()
        layout = Layout.of(self.version)
        own = self._properties_2() if layout.has_completion_times else self._properties_0x()
        config = TableConfig(properties={**self._common(), **own, **self._stored_times(layout)})
        config.check_changeable()
        typed = {PARTITION_TYPES: ",".join(self.partition_fields)} if self.kind == "CUSTOM" else {}
        KeyGenerator.of(config, one_field_prefixed=False, writer={**dict(self.times), **typed})
        return config

    def _check(self) -> None:
        if not self.name.strip() or self.name != self.name.strip():
            raise UsageError("a table needs a name", found=repr(self.name), todo="Give one: .table(NAME).")
        for what, fields in (("record key", self.key_fields), ("partition", self.partition_fields)):
            if len(set(fields)) < len(fields) or any(not f or "," in f or f != f.strip() for f in fields):
                raise UsageError(
                    f"impossible {what} fields",
                    found=repr(fields),
                    expected="names of columns, each once, without commas and spaces around them",
                )
        if self.mode not in _MODES:
            found = self.mode.value
            raise UsageError("not the merge mode of a new table", expected="EVENT_TIME or COMMIT_TIME", found=found)
        if self.mode is MergeMode.EVENT_TIME and not self.ordering_fields:
            raise UsageError("event time merging needs ordering fields", todo="Name them, or choose COMMIT_TIME.")
        if self.kind not in KEY_GENERATOR_CLASSES.values():
            raise UsageError(
                "no such key generator", expected=", ".join(KEY_GENERATOR_CLASSES.values()), found=self.kind
            )
        if self.version in (6, 8) and len(self.ordering_fields) > 1:
            raise UsageError(
                "several ordering fields need version 9",
                found=f"version {self.version}",
                todo="Name one, or choose version 9.",
            )
        if self.version == 6 and self.kind == "CUSTOM" != self.key_generator:
            raise UsageError(
                "Hudi 0.15, which reads version 6, takes the types of partition columns for parts of their names",
                expected='.key_generator("CUSTOM"), or hoodie.datasource.write.keygenerator.class='
                "org.apache.hudi.keygen.CustomKeyGenerator",
                found=",".join(self.partition_fields),
            )
        if self.version == 6 and dict(self.times).get(f"{PREFIX}timestamp.type") == "EPOCHMICROSECONDS":
            raise UsageError(
                "Hudi 0.15, which reads version 6, does not know EPOCHMICROSECONDS",
                todo="Choose another unit, or version 9.",
            )
        if self.meta_columns is False and not self.key_fields:
            raise UsageError("virtual keys need key columns", found="none", todo="Name them, or keep the meta columns.")
        if self.partition_fields and self.kind == "NON_PARTITION":
            raise UsageError(
                "partition fields contradict the key generator NON_PARTITION", todo="Leave one of them out."
            )

    def _common(self) -> dict[str, str]:
        schema = {"hoodie.table.create.schema": self.schema_text} if self.schema_text else {}
        keys = {"hoodie.table.recordkey.fields": ",".join(self.key_fields)} if self.key_fields else {}
        names = [f.partition(":")[0] if self.version == 6 else f for f in self.partition_fields]
        return {
            **schema,
            **keys,
            "hoodie.table.name": self.name,
            "hoodie.table.type": "MERGE_ON_READ",
            "hoodie.table.version": str(self.version),
            "hoodie.table.checksum": str(checksum(self.database, self.name)),
            "hoodie.table.partition.fields": ",".join(names),
            "hoodie.table.base.file.format": "PARQUET",
            "hoodie.table.cdc.enabled": "false",
            "hoodie.table.timeline.timezone": "UTC" if self.utc_timezone else "LOCAL",
            "hoodie.populate.meta.fields": str(self.meta_columns is not False).lower(),
            "hoodie.partition.metafile.use.base.format": "false",
            "hoodie.datasource.write.drop.partition.columns": "false",
            "hoodie.datasource.write.hive_style_partitioning": str(self.hive_style).lower(),
            "hoodie.datasource.write.partitionpath.urlencode": str(self.url_encode).lower(),
        }

    def _properties_0x(self) -> dict[str, str]:
        ordering = {"hoodie.table.precombine.field": ",".join(self.ordering_fields)} if self.ordering_fields else {}
        return {
            **ordering,
            "hoodie.archivelog.folder": "archived",
            "hoodie.compaction.payload.class": NEW_PAYLOADS[self.mode],
            "hoodie.compaction.record.merger.strategy": MERGE_STRATEGIES[MergeMode.EVENT_TIME],
            "hoodie.database.name": self.database,
            "hoodie.table.keygenerator.class": next(c for c, k in KEY_GENERATOR_CLASSES.items() if k == self.kind),
            "hoodie.timeline.layout.version": "1",
        }

    def _properties_2(self) -> dict[str, str]:
        ordering = {"hoodie.table.ordering.fields": ",".join(self.ordering_fields)} if self.ordering_fields else {}
        database = {"hoodie.database.name": self.database} if self.database else {}
        payload = {
            "hoodie.compaction.payload.class": NEW_PAYLOADS[self.mode],
            "hoodie.record.merge.strategy.id": MERGE_STRATEGIES[self.mode],
        }
        return {
            **ordering,
            **database,
            **(payload if self.version == 8 else {}),
            "hoodie.archivelog.folder": "history",
            "hoodie.record.merge.mode": self.mode.value,
            "hoodie.table.format": "native",
            "hoodie.table.initial.version": str(self.version),
            "hoodie.table.keygenerator.type": self.kind,
            "hoodie.table.multiple.base.file.formats.enable": "false",
            "hoodie.table.partition_extractor_class": self._extractor(),
            "hoodie.timeline.history.path": "history",
            "hoodie.timeline.layout.version": "2",
            "hoodie.timeline.path": "timeline",
        }

    def _extractor(self) -> str:
        """The class by which hive sync takes values from folder names, as Hudi infers it."""
        levels = len(self.partition_fields)
        one_level = "HiveStylePartitionValueExtractor" if self.hive_style else "SinglePartPartitionValueExtractor"
        name = {0: "NonPartitionedExtractor", 1: one_level}.get(levels, "MultiPartKeysValueExtractor")
        return f"org.apache.hudi.hive.{name}"

    def _stored_times(self, layout: Layout) -> Mapping[str, str]:
        """The options of the TIMESTAMP generator that Hudi stores: see `partition_times`."""
        if self.kind != "TIMESTAMP":
            return {}
        unstored = () if layout.has_completion_times else (f"{PREFIX}timestamp.type",)
        return {name: value for name, value in self.times if name not in unstored}


def same_as(config: TableConfig) -> NewTable:
    """The description of an existing table, as far as `check_same_table` compares it."""
    return NewTable(
        name=config.name,
        version=config.version,
        key_fields=config.record_key_fields,
        partition_fields=config.partition_fields,
        ordering_fields=config.ordering_fields,
        key_generator=generator_kind(config),
        hive_style=config.hive_style,
        url_encode=config.url_encode,
        utc_timezone=config.utc_timezone,
        database=config.database,
    )


def check_same_table(config: TableConfig, spec: NewTable) -> None:
    """UsageError, with the differences: an existing table is not the one that `spec` describes. Compares name, key,
    partition and ordering fields, key generator, folder names, the zone of instants, and the merge mode if `spec` has
    one. The version is not compared: Hudi may have upgraded the table since."""
    compared: dict[str, tuple[Any, Any]] = {
        "name": (config.name, spec.name),
        "record key fields": (config.record_key_fields, spec.key_fields),
        "partition fields": (config.partition_fields, tuple(f.partition(":")[0] for f in spec.partition_fields)),
        "ordering fields": (config.ordering_fields, spec.ordering_fields),
        "key generator": (
            config.key_generator or inferred_kind(config.record_key_fields, config.partition_fields),
            spec.kind,
        ),
        "hive style folders": (config.hive_style, spec.hive_style),
        "URL encoding": (config.url_encode, spec.url_encode),
        "instants in UTC": (config.utc_timezone, spec.utc_timezone),
    }
    if spec.meta_columns is not None:
        compared["meta columns"] = (config.populate_meta_fields, spec.meta_columns)
    if spec.merge_mode is not None:
        compared["merge mode"] = (config.merge_mode.as_new.name, spec.mode.name)
    wrong = {what: pair for what, pair in compared.items() if pair[0] != pair[1]}
    if wrong:
        raise UsageError(
            "another table is at this path",
            expected="; ".join(f"{what} {_words(new)}" for what, (_, new) in wrong.items()),
            found="; ".join(f"{what} {_words(old)}" for what, (old, _) in wrong.items()),
            todo="Choose another path, or write with the table's own settings.",
        )


def _words(value: Any) -> str:
    return (",".join(value) or "none") if isinstance(value, tuple) else str(value)


def create_table(storage: Storage, spec: NewTable) -> Table:
    """Makes the table that `spec` describes, or opens it if it exists already. Concurrent creators are safe.
    UsageError: no such table can be made, or another one exists. MalformedError: a damaged table exists, which a new
    one must not overwrite. After an error nothing has been written."""
    config = spec.config()
    existing: TableConfig | None = None
    with suppress(NotATableError):
        existing = load_table_config(storage)
    if existing is None:
        _refuse_remains(storage, {HOODIE: config.layout, config.timeline_folder: config.layout})
        make_table_folders(storage, config)
        if spec.metadata_table:
            config = make_metadata_table(storage, config)
        if storage.put_if_absent(PROPERTIES, config.dump()):
            return Table.on(storage)
        existing = load_table_config(storage)
    check_same_table(existing, spec)
    return Table.on(storage)


def refuse_place(storage: Storage, opened: Callable[[str], Storage], *, allow_other_files: bool = False) -> None:
    """UsageError: a new table would be inside another one or above others, in a table of another format, or among
    other files, if these are not allowed. `opened`: gives the storage at a URL. A folder above that cannot be listed
    counts as none: access to an object store may be for the folder of the table alone. Below it, as many levels are
    listed as when tables are searched. Data files of Hudi are never allowed: they would be read as the new table's.
    MalformedError: they have a timeline, and no hoodie.properties."""
    above = storage.base_path.rstrip("/")
    while (parent := above.rpartition("/")[0]) and not parent.endswith(":/"):
        try:
            if (kind := _kind_of(opened(parent))) is not None:
                raise _no_place(storage, f"in {kind} {parent}")
        except StorageError:
            break
        above = parent
    level, data, others = [""], list[str](), list[str]()
    for depth in range(_LEVELS + 1):
        below: list[str] = []
        for folder in level:
            entries = [] if (found := listed_if_there(storage, folder)) is None else list(found)
            names = {entry.name for entry in entries}
            if DELTA in names:
                raise _no_place(storage, f"a Delta table at {folder or 'this path'}")
            if folder.rpartition("/")[2] == ICEBERG and is_iceberg(names):
                raise _no_place(storage, f"an Iceberg table at {folder.rpartition('/')[0] or 'this path'}")
            if folder and HOODIE in names and not has_only_records(storage, folder):
                raise _no_place(storage, f"the table {folder} below it")
            files = [join(folder, entry.name) for entry in entries if not entry.is_folder]
            data = [*data, *(f for f in files if parse_data_file(f.rpartition("/")[2]) is not None)][:_SHOWN]
            others = [*others, *(f for f in files if not _is_hidden(f))][:_SHOWN]
            if depth < _LEVELS:
                below += subfolders(folder, entries)
        level = below[:_FOLDERS_MAX]
    if (files := data or others) and _are_of_no_write(storage, files):
        if data:
            _refuse_remains(storage, {HOODIE: Layout.of(6), f"{HOODIE}/timeline": Layout.of(9)})
            raise _no_place(storage, f"files of a Hudi table that has lost its {HOODIE}: {', '.join(data)}")
        if not allow_other_files:
            raise _no_place(storage, f"files of others: {', '.join(others)}", *_AMONG_FILES)


def _is_hidden(path: str) -> bool:
    """Whether a file is no data for Hadoop and Spark, as `_SUCCESS` and `.part-0.crc`; or the mark of a folder."""
    return any(part.startswith((".", "_")) for part in path.split("/")) or path.endswith("_$folder$")


def _are_of_no_write(storage: Storage, files: Sequence[str]) -> bool:
    """Whether no first write of another process, since this one found no table, has made the files: it makes its table
    before them, and removes them before the table."""
    with suppress(NotATableError):
        load_table_config(storage)
        return False
    return any(storage.find(path) is not None for path in files)


def _kind_of(folder: Storage) -> str | None:
    """What a folder is; None: no table."""
    if folder.find(HOODIE) is not None and not has_only_records(folder):
        return "the table"
    return other_format(folder)


_LEVELS, _FOLDERS_MAX, _SHOWN = 3, 1000, 3
_OWN_FOLDER = (
    "a folder that is not in a table, and holds none",
    "Check the path. A new table needs a folder of its own.",
)
_AMONG_FILES = (
    "a folder without files, but for hidden ones",
    "Check the path. To make the table among them: .option(allow_other_files=True), under Spark and in `conf` "
    "phantombase.write.allow.other.files=true, in [write] of a configuration allow-other-files = true.",
)


def _no_place(storage: Storage, found: str, expected: str = _OWN_FOLDER[0], todo: str = _OWN_FOLDER[1]) -> UsageError:
    what = "a table cannot be made here"
    return UsageError(what, path=storage.base_path, expected=expected, found=found, todo=todo)


def _refuse_remains(storage: Storage, folders: Mapping[str, Layout]) -> None:
    """MalformedError: a timeline exists without hoodie.properties. The table has lost that file. With a new one its
    rows would be read in another way."""
    for folder, layout in sorted(folders.items(), key=lambda one: one[0]):
        if storage.find(folder) is None:
            continue
        names = [e.name for e in storage.list(folder) if not e.is_folder and layout.parse(e.name) is not None]
        if names:
            raise MalformedError(
                "a table without its hoodie.properties",
                path=f"{storage.base_path}/{folder}",
                found=", ".join(sorted(names)[:3]),
                todo=f"A new table needs a folder of its own. {PROPERTIES_LOST}",
            )


def made_with(config: TableConfig) -> dict[str, str]:
    """The properties with which a table is made, without those of its metadata table."""
    return {name: value for name, value in config.properties.items() if not name.startswith("hoodie.table.metadata")}
