"""Which catalog a table is synced to, under which names, with which of its columns; and what a sync has done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import check_least, least_of, option

ICEBERG = "iceberg:"
"""What the name of a catalog of Iceberg begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedTable:
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
class SyncResult:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """See the options; in brackets: Hudi's names. `table_properties`, `serde_properties`: `NAME=VALUE`."""

    to: str | None = option(
        None, "the Hive Metastore (hoodie.datasource.hive_sync.metastore.uris)", metavar="hive:HOST:PORT"
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
    batch: int = option(1000, "partitions of a request (hoodie.datasource.hive_sync.batch_num)", least=1)
    table_properties: tuple[str, ...] = option(
        (), "of the table in the catalog (hoodie.datasource.hive_sync.table_properties)", metavar="NAME=VALUE"
    )
    serde_properties: tuple[str, ...] = option(
        (), "of its SerDe (hoodie.datasource.hive_sync.serde_properties)", metavar="NAME=VALUE"
    )

    def check_named(self, flag: str) -> None:
        """UsageError: no catalog is named. `flag`: how it is."""
        if self.to is None:
            raise UsageError(
                "no catalog is named to sync to",
                expected=f"{flag} hive:HOST:PORT",
                todo=f"Add {flag}, or `to` in a file.",
            )

    def __post_init__(self) -> None:
        check_least(self, least_of(SyncOptions))
        for pair in (*self.table_properties, *self.serde_properties):
            if not pair.partition("=")[0] or "=" not in pair:
                raise UsageError("not a property of a catalog's table", expected="NAME=VALUE", found=repr(pair))
