"""Which catalog a table is synced to, under which names, with which of its columns, also by Hudi's names; and what a
sync has done."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.option import check_least, least_of, option, spelled_class, whole_number
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.object_url import S3, ObjectUrl
from phantombase.timeline.storage.storage_options import Settings, StorageOptions

from ..hudi_names import Known, flag, listed, parsed, word_of
from .catalog import EXPECTED, TableCatalog
from .kerberos import PRINCIPAL, SASL, check_principal

_log = get_logger()

ICEBERG = "iceberg:"
"""What the name of a catalog of Iceberg begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTable(Shown):
    """What a sync changed of one table of the catalog. `columns`: new ones, or with a wider type. `of`: what `added`,
    `moved` and `dropped` count."""

    name: str
    created: bool = False
    altered: bool = False
    columns: tuple[str, ...] = ()
    added: int = 0
    moved: int = 0
    dropped: int = 0
    of: str = "partition"

    @property
    def changed(self) -> bool:
        return self.created or self.altered or bool(self.added or self.moved or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult(Shown):
    """`tables`: all of the Hudi table. `up_to`: the newest write that they show. `why`: nothing was synced."""

    catalog: str
    database: str
    tables: tuple[SyncedTable, ...] = ()
    up_to: str | None = None
    why: str = ""

    @property
    def changed(self) -> tuple[SyncedTable, ...]:
        return tuple(one for one in self.tables if one.changed)


class Names(Enum):
    """The names of a MERGE_ON_READ table `t`: ALL: `t` and `t_rt` for the snapshot, `t_ro` for the read-optimized view.
    RO, RT: `t` alone, for one of these."""

    ALL = "all"
    RO = "ro"
    RT = "rt"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """See the options; in brackets: Hudi's names. `table_properties`, `serde_properties`: `NAME=VALUE`."""

    to: str | None = option(
        None,
        "the catalog: a Hive Metastore, hive:HOST:PORT (hoodie.datasource.hive_sync.metastore.uris), with Kerberos "
        "hive:HOST:PORT?principal=hive/_HOST@REALM, AWS Glue, glue:[REGION] "
        "(hoodie.meta.sync.client.tool.class), or one of PyIceberg, iceberg:NAME",
        metavar="CATALOG",
    )
    database: str | None = option(
        None,
        "of the catalog; made if it does not exist. By default that of the table, or `default` "
        "(hoodie.datasource.hive_sync.database)",
    )
    name: str | None = option(
        None, "of the table in the catalog, by default its own name (hoodie.datasource.hive_sync.table)"
    )
    partition_fields: tuple[str, ...] = option(
        (),
        "checked: they must be the partition columns of the table (hoodie.datasource.hive_sync.partition_fields)",
        metavar="COLUMN",
    )
    strategy: Names = option(
        Names.ALL,
        "a MERGE_ON_READ table has the names t, t_rt (snapshot) and t_ro (read optimized), or t alone for one of these "
        "(hoodie.datasource.hive_sync.table.strategy)",
    )
    meta_columns: bool = option(
        True, "with Hudi's meta columns (hoodie.datasource.hive_sync.omit_metadata_fields leaves them out)"
    )
    timestamps: bool = option(
        False,
        "Hive's type of timestamps is timestamp instead of bigint (hoodie.datasource.hive_sync.support_timestamp)",
    )
    ro_suffix: bool = option(
        True, "the read-optimized table is t_ro; otherwise t (hoodie.datasource.hive_sync.skip_ro_suffix)"
    )
    plain_name: bool = option(
        True, "with `all` there is t, besides t_rt and t_ro (hoodie.meta.sync.sync_snapshot_with_table_name)"
    )
    slashed_days: bool = option(
        False, "folders such as 2024/01/02 are one value, 2024-01-02 (`partition_extractor_class` of Hudi's sync)"
    )
    for_spark: bool = option(
        True, "with Spark's schema, as a data source table (hoodie.datasource.hive_sync.sync_as_datasource)"
    )
    comments: bool = option(False, "with the comments of columns (hoodie.datasource.hive_sync.sync_comment)")
    schema_part: int = option(
        4000,
        "the longest part of Spark's schema, in characters (`schema_string_length_thresh` of Hudi's sync)",
        least=1,
    )
    batch: int = option(
        1000, "partitions of a request, in Glue of at most 100 (hoodie.datasource.hive_sync.batch_num)", least=1
    )
    table_properties: tuple[str, ...] = option(
        (), "of the table in the catalog (hoodie.datasource.hive_sync.table_properties)", metavar="NAME=VALUE"
    )
    serde_properties: tuple[str, ...] = option(
        (), "of its SerDe (hoodie.datasource.hive_sync.serde_properties)", metavar="NAME=VALUE"
    )

    archive: bool = option(
        False, "Glue keeps the older version of a table that changes (`skip_table_archive` of Hudi's sync)"
    )
    metadata_listing: bool = option(
        False, "in Glue: Athena lists files by the metadata table (`metadata_file_listing` of Hudi's sync)"
    )

    @property
    def is_glue(self) -> bool:
        return (self.to or "").startswith("glue:")

    def check_named(self, flag: str) -> None:
        """UsageError: no catalog is named. `flag`: how it is."""
        if self.to is None:
            raise UsageError(
                "no catalog is named to sync to",
                expected=f"{flag} hive:HOST:PORT, {flag} glue:[REGION] or {flag} iceberg:NAME",
                todo=f"Add {flag}, or `to` in a file.",
            )

    def __post_init__(self) -> None:
        check_least(self, least_of(SyncOptions))
        if self.to is not None and not self.to.startswith(ICEBERG):
            open_catalog(self.to, StorageOptions())
        for pair in (*self.table_properties, *self.serde_properties):
            if not pair.partition("=")[0] or "=" not in pair:
                raise UsageError("not a property of a catalog's table", expected="NAME=VALUE", found=repr(pair))


def open_catalog(
    text: str, options: Storage | StorageOptions, *, archive: bool = False, batch: int = 1000
) -> TableCatalog:
    """The catalog that a text such as `hive:HOST:PORT` names; no connection is made. `options`: where AWS's credentials
    and region come from. `archive`: Glue keeps the older version of a table that changes. `batch`: partitions of a
    request. UsageError: not a catalog."""
    kind = text.partition(":")[0]
    if kind in ("hive", "hives"):
        from .metastore import Metastore  # late: a process needs one kind

        return Metastore.parse(text, batch=batch)
    if kind == "glue":
        from .glue import Glue

        return Glue.parse(text, _of_s3(options), archive=archive, batch=batch)
    raise UsageError(
        "unknown kind of catalog", expected=f"{EXPECTED}; to sync to also {ICEBERG}NAME of PyIceberg", found=repr(text)
    )


def _of_s3(options: Storage | StorageOptions) -> Settings:
    if isinstance(options, StorageOptions):
        return options.at(ObjectUrl(cloud=S3, bucket="", prefix=""))
    clients = getattr(options, "clients", None)  # of an object store
    return clients.settings if clients is not None and clients.cloud is S3 else Settings()


SYNC, GLUE = "hoodie.datasource.hive_sync.", "hoodie.datasource.meta.sync.glue."
SYNC_ENABLED = (f"{SYNC}enable", "hoodie.datasource.meta.sync.enable")
_EXTRACTORS = {
    f"{package}{name}ValueExtractor": name == "SlashEncodedDayPartition"
    for name in ("MultiPartKeys", "SinglePartPartition", "HiveStylePartition", "SlashEncodedDayPartition")
    for package in ("", "org.apache.hudi.hive.")
} | {"org.apache.hudi.hive.NonPartitionedExtractor": False}


def _negated(text: str) -> bool:
    return not flag(text)


_HIVE, _GLUE = "hive", "glue"
_TOOLS = {
    f"{package}{name}": kind
    for package, name, kind in (
        ("org.apache.hudi.hive.", "HiveSyncTool", _HIVE),
        ("org.apache.hudi.aws.sync.", "AwsGlueCatalogSyncTool", _GLUE),
    )
}
GLUE_TOOL = next(name for name, kind in _TOOLS.items() if kind == _GLUE)
_TOOL = "hoodie.meta.sync.client.tool.class"


def _tool(text: str) -> str:
    """UnsupportedError: a sync to several catalogs, or to one of another kind."""
    found = _TOOLS.get(text.strip())
    if found is None:
        raise UnsupportedError(
            "a table is synced to one Hive Metastore or to AWS Glue",
            expected=" or ".join(_TOOLS),
            found=f"{_TOOL}={text}",
            todo="Name one of these; `compactor-daemon sync` syncs the same table to another catalog.",
        )
    return found


def _mode(text: str) -> str | None:
    """UnsupportedError: none of Hudi's. Three of them are ways to the same tables."""
    word = text.strip().lower()
    if word not in ("hms", "jdbc", "hiveql", _GLUE):
        raise UnsupportedError(
            "a catalog is synced through its metastore only",
            expected=f"{SYNC}mode=hms",
            found=f"{SYNC}mode={text}",
            todo=f"Set that, and {SYNC}metastore.uris=thrift://HOST:PORT; for AWS Glue {_TOOL}={GLUE_TOOL}.",
        )
    return _GLUE if word == _GLUE else None


def names_glue(conf: Mapping[str, str]) -> bool:
    """Whether names ask for a sync to AWS Glue."""
    return conf.get(f"{SYNC}mode", "").strip().lower() == _GLUE or _TOOLS.get(conf.get(_TOOL, "").strip()) == _GLUE


def _idle(region: str | None, endpoint: str | None) -> set[str]:
    return {field for field, value in (("region", region), ("endpoint", endpoint)) if value is not None}


def sync_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SyncOptions that parsed names of `SYNC_CONF` set: the catalog follows from several of them.
    UsageError: they name two catalogs."""
    found = dict(given)
    mode, tool, region, endpoint = (found.pop(name, None) for name in ("mode", "tool", "region", "endpoint"))
    if _GLUE not in (mode, tool):
        if idle := [name for name in SYNC_CONF if SYNC_CONF[name][0] in _idle(region, endpoint)]:
            _log.warning("configurations_without_meaning", names=" ".join(idle))
        return found
    to = f"glue:{region or ''}" + (f"@{endpoint}" if endpoint else "")
    if found.setdefault("to", to) != to:
        raise UsageError(
            "the names ask for a sync to two catalogs",
            expected=f"{_TOOL}={GLUE_TOOL}, or {SYNC}metastore.uris",
            found="both",
            todo="Leave one out; `compactor-daemon sync` syncs the same table to another catalog.",
        )
    return found


def _metastores(text: str) -> str:
    """`hive.metastore.uris` as a catalog. ValueError: not that."""
    servers = [server.strip().rstrip("/") for server in text.split(",")]
    if not all(server.startswith("thrift://") for server in servers):
        raise ValueError(text)
    return "hive:" + ",".join(server.removeprefix("thrift://") for server in servers)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


SYNC_CONF: Known = {
    f"{SYNC}metastore.uris": ("to", _metastores),
    f"{SYNC}mode": ("mode", _mode),
    _TOOL: ("tool", _tool),
    "hoodie.aws.glue.region": ("region", str.strip),
    "hoodie.aws.glue.endpoint": ("endpoint", str.strip),
    f"{GLUE}skip_table_archive": ("archive", _negated),
    f"{GLUE}metadata_file_listing": ("metadata_listing", flag),
    f"{GLUE}database_name": ("database", str.strip),
    f"{GLUE}table_name": ("name", str.strip),
    f"{SYNC}database": ("database", str.strip),
    f"{SYNC}table": ("name", str.strip),
    f"{SYNC}partition_fields": ("partition_fields", listed),
    f"{SYNC}table.strategy": ("strategy", word_of({one.name: one for one in Names})),
    f"{SYNC}omit_metadata_fields": ("meta_columns", _negated),
    f"{SYNC}support_timestamp": ("timestamps", flag),
    f"{SYNC}skip_ro_suffix": ("ro_suffix", _negated),
    "hoodie.meta.sync.sync_snapshot_with_table_name": ("plain_name", flag),
    f"{SYNC}partition_extractor_class": ("slashed_days", word_of(_EXTRACTORS)),
    f"{SYNC}sync_as_datasource": ("for_spark", flag),
    f"{SYNC}sync_comment": ("comments", flag),
    f"{SYNC}schema_string_length_thresh": ("schema_part", whole_number),
    f"{SYNC}batch_num": ("batch", whole_number),
    f"{SYNC}table_properties": ("table_properties", _lines),
    f"{SYNC}serde_properties": ("serde_properties", _lines),
}
"""Names for the sync to a catalog. `mode` sets nothing but for `glue`: the metastore itself is asked, as by `hms`. With
Hudi's modes that ask a server of Hive the tables are the same."""
OF_GLUE = frozenset(name for name in SYNC_CONF if name.startswith((GLUE, "hoodie.aws.glue.")))
"""Names that have an effect with AWS Glue only."""

_MODE, _TLS = "hive.metastore.client.auth.mode", "hive.metastore.use.SSL"
_SITES = ("HIVE_CONF_DIR", "SPARK_CONF_DIR", "HADOOP_CONF_DIR")


def with_site(options: SyncOptions) -> SyncOptions:
    """With what the first hive-site.xml says in the folders that these variables name, where Hudi's sync looks, too:
    the metastore, if none is named and it does not say that Glue is asked, and the principal of a metastore with SASL.
    UsageError: the file cannot be read, or SASL is on without a principal. UnsupportedError: another kind of login."""
    if options.to is not None and (not options.to.startswith("hive:") or "?" in options.to):
        return options
    folders = filter(None, map(os.environ.get, _SITES))
    file = next((file for folder in folders if (file := Path(folder) / "hive-site.xml").is_file()), None)
    if file is None:
        return options
    try:
        found = ElementTree.parse(file).iter("property")
    except (OSError, ElementTree.ParseError) as error:
        raise UsageError(
            "hive-site.xml cannot be read",
            path=str(file),
            found=str(error),
            todo="Correct it, or name the metastore: --to hive:HOST:PORT.",
        ) from error
    site = {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in found}
    to = options.to
    if to is None and "glue" not in site.get("hive.metastore.client.factory.class", "").lower():
        uris = site.get("hive.metastore.uris")
        to = parsed(SYNC_CONF, f"{SYNC}metastore.uris", uris)[1] if uris else None
    if to is not None and (mode := site.get(_MODE, "").upper()) not in ("", "NONE", "NOSASL", "KERBEROS"):
        todo = "Sync to a metastore with Kerberos (hive.metastore.sasl.enabled), with TLS, or with neither."
        raise UnsupportedError("logins of this kind to a Hive Metastore", found=f"{_MODE}={mode} in {file}", todo=todo)
    if to is not None and site.get(_TLS, "").lower() == "true":
        to = f"hives:{to.removeprefix('hive:')}"
    if to is not None and site.get(SASL, "").lower() == "true":
        to += f"?principal={check_principal(site.get(PRINCIPAL, ''), f'{PRINCIPAL} in {file}')}"
    return replace(options, to=to)
