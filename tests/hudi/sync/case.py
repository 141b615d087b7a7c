"""A dictionary of Hudi's names, the batches that are written with it, and what a metastore has after each of them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import thriftpy2.parser
from thriftpy2.rpc import client_context

from tests.hudi.effects.case import Batch as Batch
from tests.hudi.effects.case import Written

RECORDED = Path(__file__).with_name("recorded.json")
OPERATION = "hoodie.datasource.write.operation"
TYPE = "hoodie.datasource.write.table.type"
PARTITION = "hoodie.datasource.write.partitionpath.field"
SYNC = "hoodie.datasource.hive_sync."
HUDI = {6: "0.15.0", 9: "1.2.0"}
Found: TypeAlias = dict[str, Any]
"""Tables by name, and the partitions of each by their values, as the metastore has them."""
USUAL: Mapping[str, Any] = {
    "hoodie.table.name": "t",
    TYPE: "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    f"{SYNC}enable": "true",
    f"{SYNC}mode": "hms",
    f"{SYNC}table": "t",
}
BASE, USER, TIME = "<base>", "<user>", "<time>"
"""What stands in records for the path of the table, the name of the user, and times."""
_TIMES = ("createTime", "lastAccessTime")
_TIME_PARAMETERS = ("last_commit_time_sync", "last_commit_completion_time_sync", "transient_lastDdlTime")


@dataclass(frozen=True, kw_only=True)
class Case(Written):
    """One whose tables in the catalog are compared."""

    @property
    def id(self) -> str:
        """Its name with the version, as the name of a database."""
        return f"v{self.version}_{self.name}"

    def options(self, batch: Batch, port: int) -> dict[str, Any]:
        """The whole dictionary of a write, the same for both."""
        own = {f"{SYNC}metastore.uris": f"thrift://127.0.0.1:{port}", f"{SYNC}database": self.id}
        return {**USUAL, **own, **self.conf, **batch.conf, OPERATION: batch.operation}


def recorded() -> dict[str, Any]:
    """By id of a case: its digest, and what the metastore had after each batch."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}


_OF_METASTORE = ("numFiles", "totalSize", "transient_lastDdlTime")
"""Parameters that the metastore itself adds."""
_OF_HUDI = ("hudi_writer_version", "spark.sql.create.version")
"""Parameters that say with which releases Hudi has synced; phantombase has none."""


_NULLS = '"containsNull":false', '"containsNull":true'
"""Hudi 0.15.0 says of each array that its elements are not null, though they may be."""


def essence(value: Any) -> Any:
    """What a sync has made, without what the metastore adds, and without empty fields: it fills in what is left out."""
    if isinstance(value, list):
        return [essence(one) for one in value]
    if isinstance(value, dict):
        inner = {key: essence(one) for key, one in value.items() if key not in (*_OF_METASTORE, *_OF_HUDI)}
        return {key: one for key, one in inner.items() if one}
    return value.replace(*_NULLS) if isinstance(value, str) else value


_INTERFACE = """
struct FieldSchema { 1: string name, 2: string type, 3: string comment }
struct SerDeInfo { 1: string name, 2: string serializationLib, 3: map<string, string> parameters }
struct Order { 1: string col, 2: i32 order }
struct SkewedInfo { 1: list<string> skewedColNames, 2: list<list<string>> skewedColValues }
struct StorageDescriptor { 1: list<FieldSchema> cols, 2: string location, 3: string inputFormat, 4: string outputFormat,
  5: bool compressed, 6: i32 numBuckets, 7: SerDeInfo serdeInfo, 8: list<string> bucketCols, 9: list<Order> sortCols,
  10: map<string, string> parameters, 11: optional SkewedInfo skewedInfo, 12: optional bool storedAsSubDirectories }
struct Partition { 1: list<string> values, 2: string dbName, 3: string tableName, 4: i32 createTime,
  5: i32 lastAccessTime, 6: StorageDescriptor sd, 7: map<string, string> parameters }
struct Table { 1: string tableName, 2: string dbName, 3: string owner, 4: i32 createTime, 5: i32 lastAccessTime,
  6: i32 retention, 7: StorageDescriptor sd, 8: list<FieldSchema> partitionKeys, 9: map<string, string> parameters,
  10: string viewOriginalText, 11: string viewExpandedText, 12: string tableType, 14: optional bool temporary,
  15: optional bool rewriteEnabled }
struct Database { 1: string name, 2: string description, 3: string locationUri, 4: map<string, string> parameters,
  6: optional string ownerName, 7: optional i32 ownerType }
exception Problem { 1: string message }
service Metastore {
  Database get_database(1: string name) throws (1: Problem a, 2: Problem b),
  list<string> get_all_tables(1: string database) throws (1: Problem a),
  Table get_table(1: string database, 2: string name) throws (1: Problem a, 2: Problem b),
  list<Partition> get_partitions(1: string database, 2: string name, 3: i16 most) throws (1: Problem a, 2: Problem b),
}
"""


def everything(port: int, database: str, base: Path) -> Found:
    """All that a metastore has of a database, with `BASE`, `USER` and `TIME` for what differs from run to run."""
    kinds: Any = thriftpy2.parser.load_fp(io.StringIO(_INTERFACE), "tests_whole_metastore_thrift")
    with client_context(kinds.Metastore, "127.0.0.1", port, connect_timeout=60_000, socket_timeout=60_000) as client:
        tables = {}
        for name in sorted(client.get_all_tables(database)):
            table = client.get_table(database, name)
            partitions = client.get_partitions(database, name, -1) if table.partitionKeys else []
            found = [plain(one, base) for one in sorted(partitions, key=lambda one: one.values)]
            tables[name] = {"table": plain(table, base), "partitions": found}
        return {"database": plain(client.get_database(database), base), "tables": tables}


def plain(value: Any, base: Path, name: str = "") -> Any:
    if isinstance(value, list):
        return [plain(one, base) for one in value]
    if isinstance(value, dict):
        return {key: TIME if key in _TIME_PARAMETERS else plain(one, base) for key, one in sorted(value.items())}
    if hasattr(value, "thrift_spec"):
        fields = {spec[1]: getattr(value, spec[1]) for _, spec in sorted(value.thrift_spec.items())}
        return {key: plain(one, base, key) for key, one in fields.items() if one is not None}
    if name in _TIMES:
        return TIME if value else value
    if name in ("owner", "ownerName"):
        return USER
    return value.replace(f"file:{base}", BASE).replace(str(base), BASE) if isinstance(value, str) else value


def differences(ours: Any, hudis: Any, where: str = "") -> list[str]:
    """Each field that differs, with both values."""
    if isinstance(ours, dict) and isinstance(hudis, dict):
        return [
            d for key in sorted({*ours, *hudis}) for d in differences(ours.get(key), hudis.get(key), f"{where}.{key}")
        ]
    if isinstance(ours, list) and isinstance(hudis, list) and len(ours) == len(hudis):
        return [d for n, pair in enumerate(zip(ours, hudis, strict=True)) for d in differences(*pair, f"{where}[{n}]")]
    return [] if ours == hudis else [f"{where}: {ours!r}, Hudi's {hudis!r}"]
