"""A catalog as a sync and a daemon see it: its tables and partitions as values, and the calls, for any kind of catalog.

`metastore.py` and `glue.py` turn these values into requests, and answers into these values; what is to be changed is
decided elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
PROVIDER = "spark.sql.sources.provider"
MADE_BY = "automatically created by hoodie"
"""What Hudi's sync says of a database that it makes."""
OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
EXTERNAL = "EXTERNAL_TABLE"
EXPECTED = "hive:HOST:PORT[?principal=hive/_HOST@REALM], hives:HOST:PORT with TLS, or glue:[REGION][@ENDPOINT]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table of a catalog. `raw`: as the catalog has it; None: it is to be made."""

    database: str
    name: str
    location: str
    columns: tuple[CatalogColumn, ...]
    partition_columns: tuple[CatalogColumn, ...]
    input_format: str
    serde_properties: Mapping[str, str]
    parameters: Mapping[str, str]
    raw: Any = None

    @property
    def is_hudi(self) -> bool:
        """By Spark's provider or the input format."""
        return self.parameters.get(PROVIDER, "").lower() == "hudi" or "hudi" in self.input_format.lower()

    @property
    def types(self) -> tuple[tuple[str, str], ...]:
        return tuple((one.name, one.type) for one in self.columns)

    @property
    def serde_of_partitions(self) -> dict[str, str]:
        """As Hudi's sync: no path, where it is no data source table of Spark."""
        return {k: v for k, v in self.serde_properties.items() if k != "path" or PROVIDER in self.parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPartition:
    """A partition of a table of a catalog. `raw`: see `CatalogTable`."""

    values: tuple[str, ...]
    location: str
    columns: tuple[CatalogColumn, ...]
    raw: Any = None

    @property
    def types(self) -> tuple[tuple[str, str], ...]:
        return tuple((one.name, one.type) for one in self.columns)


class Calls(Protocol):
    """The calls of one connection, for one thread. Names of tables and databases are in lower case in a catalog. Each
    may be repeated after an answer that was lost. StorageError: no answer, or a request is refused."""

    def databases(self) -> list[str]: ...

    def create_database(self, name: str) -> None:
        """Of no effect if it exists, or another process makes it just now."""

    def all_tables(self, database: str) -> Iterator[CatalogTable]: ...

    def tables(self, database: str, names: Collection[str]) -> Iterator[CatalogTable]:
        """Those of these tables that exist; none, if the database does not."""

    def create(self, table: CatalogTable) -> bool:
        """False: another process has made it just now."""

    def alter(self, table: CatalogTable, *, partitions: bool) -> bool:
        """Gives an existing table other columns, parameters or SerDe properties. `partitions`: their columns change,
        too, and before those of the table. False: another process has changed the table since it was asked for."""

    def partitions(self, table: CatalogTable) -> Iterable[CatalogPartition]: ...

    def named(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> Iterable[CatalogPartition]:
        """Those of these partitions that exist."""

    def add(self, table: CatalogTable, partitions: Sequence[CatalogPartition]) -> None:
        """Those that exist stay as they are."""

    def move(self, table: CatalogTable, partitions: Sequence[CatalogPartition]) -> None:
        """Gives existing partitions other locations or columns."""

    def drop(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> None:
        """Removes partitions; their files stay. Those that do not exist are no error."""


class TableCatalog(Protocol):
    @property
    def shown(self) -> str:
        """Where it is, for messages; equal for all processes that name the same."""

    def calls(self) -> AbstractContextManager[Calls]:
        """A connection. Errors: see `Calls`; UsageError: a package is missing."""


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def base_path(location: str | None) -> str:
    """The location of a table as the path of a Hudi table: Hadoop writes `file:/path`, which is no URL with a host."""
    found = (location or "").rstrip("/")
    return found.removeprefix("file:") if found.startswith("file:/") and "://" not in found else found


def same_place(one: str, other: str) -> bool:
    """Whether two locations are one place, whatever each client calls it."""
    return _place(one) == _place(other)


def _place(location: str) -> str:
    path = base_path(location)
    return path.replace("s3a://", "s3://", 1).replace("s3n://", "s3://", 1).replace("file:///", "/", 1)


def partition_name(columns: Sequence[CatalogColumn], values: Sequence[str]) -> str:
    """The name of a partition in Hive, `a=1/b=2`, with its escapes."""
    return "/".join(f"{_escaped(c.name)}={_escaped(value)}" for c, value in zip(columns, values, strict=True))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}
"""Of `FileUtils.escapePathName` in Hive."""
