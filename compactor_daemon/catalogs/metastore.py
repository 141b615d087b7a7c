"""A Hive Metastore, through `thriftpy2` (extra `hive`), which reads the interface below when it is first used.

Of hive_metastore.thrift it has only the calls and fields that are used here, with their numbers; a reader of Thrift
skips the others. The calls are those of Hive 2.3 to 4.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.reachable import why_unreachable

_SITES = ("HIVE_CONF_DIR", "SPARK_CONF_DIR", "HADOOP_CONF_DIR")


def uris_of_site() -> str | None:
    """`hive.metastore.uris` of the first hive-site.xml in the folders that these variables name, as Hudi's sync finds
    it; None: there is none, or it says that Glue is asked. UsageError: the file cannot be read."""
    for folder in filter(None, map(os.environ.get, _SITES)):
        if (file := Path(folder) / "hive-site.xml").is_file():
            try:
                found = ElementTree.parse(file).iter("property")
            except (OSError, ElementTree.ParseError) as error:
                raise UsageError("hive-site.xml cannot be read", path=str(file), found=str(error)) from error
            site = {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in found}
            is_glue = "glue" in site.get("hive.metastore.client.factory.class", "").lower()
            return None if is_glue else site.get("hive.metastore.uris") or None
    return None


_INTERFACE = """
struct FieldSchema { 1: string name, 2: string type, 3: string comment }
struct SerDeInfo { 1: string name, 2: string serializationLib, 3: map<string, string> parameters }
struct Order { 1: string col, 2: i32 order }
struct SkewedInfo {
  1: list<string> skewedColNames, 2: list<list<string>> skewedColValues,
  3: map<list<string>, string> skewedColValueLocationMaps
}
struct StorageDescriptor {
  1: list<FieldSchema> cols, 2: string location, 3: string inputFormat, 4: string outputFormat, 5: bool compressed,
  6: i32 numBuckets, 7: SerDeInfo serdeInfo, 8: list<string> bucketCols, 9: list<Order> sortCols,
  10: map<string, string> parameters, 11: optional SkewedInfo skewedInfo, 12: optional bool storedAsSubDirectories
}
struct Table {
  1: string tableName, 2: string dbName, 3: string owner, 4: i32 createTime, 5: i32 lastAccessTime, 6: i32 retention,
  7: StorageDescriptor sd, 8: list<FieldSchema> partitionKeys, 9: map<string, string> parameters,
  10: string viewOriginalText, 11: string viewExpandedText, 12: string tableType, 15: optional bool rewriteEnabled,
  17: optional string catName, 18: optional i32 ownerType
}
struct Partition {
  1: list<string> values, 2: string dbName, 3: string tableName, 4: i32 createTime, 5: i32 lastAccessTime,
  6: StorageDescriptor sd, 7: map<string, string> parameters
}
struct Database { 1: string name, 2: string description, 3: string locationUri, 4: map<string, string> parameters }
struct GetTablesRequest { 1: required string dbName, 2: optional list<string> tblNames }
struct GetTablesResult { 1: required list<Table> tables }
struct AddPartitionsRequest {
  1: required string dbName, 2: required string tblName, 3: required list<Partition> parts,
  4: required bool ifNotExists, 5: optional bool needResult
}
struct AddPartitionsResult { 1: optional list<Partition> partitions }
struct RequestPartsSpec { 1: optional list<string> names }
struct DropPartitionsRequest {
  1: required string dbName, 2: required string tblName, 3: required RequestPartsSpec parts,
  4: optional bool deleteData, 5: optional bool ifExists, 8: optional bool needResult
}
struct DropPartitionsResult { 1: optional list<Partition> partitions }
struct EnvironmentContext { 1: map<string, string> properties }
exception Refused { 1: string message }
exception AlreadyExists { 1: string message }
exception NoSuchObject { 1: string message }
exception UnknownDatabase { 1: string message }
service Metastore {
  list<string> get_all_databases() throws (1: Refused a),
  list<string> get_all_tables(1: string db_name) throws (1: Refused a),
  void create_database(1: Database database) throws (1: AlreadyExists a, 2: Refused b, 3: Refused c),
  GetTablesResult get_table_objects_by_name_req(1: GetTablesRequest req)
    throws (1: Refused a, 2: Refused b, 3: UnknownDatabase c),
  void create_table(1: Table tbl) throws (1: AlreadyExists a, 2: Refused b, 3: Refused c, 4: NoSuchObject d),
  void alter_table_with_environment_context(
    1: string dbname, 2: string tbl_name, 3: Table new_tbl, 4: EnvironmentContext environment_context)
    throws (1: Refused a, 2: Refused b),
  list<Partition> get_partitions(1: string db_name, 2: string tbl_name, 3: i16 max_parts)
    throws (1: NoSuchObject a, 2: Refused b),
  list<Partition> get_partitions_by_names(1: string db_name, 2: string tbl_name, 3: list<string> names)
    throws (1: Refused a, 2: NoSuchObject b),
  AddPartitionsResult add_partitions_req(1: AddPartitionsRequest request)
    throws (1: Refused a, 2: AlreadyExists b, 3: Refused c),
  void alter_partitions(1: string db_name, 2: string tbl_name, 3: list<Partition> new_parts)
    throws (1: Refused a, 2: Refused b),
  DropPartitionsResult drop_partitions_req(1: DropPartitionsRequest req) throws (1: NoSuchObject a, 2: Refused b)
}
"""
_PORT = 9083
_NO_HOST = frozenset("/ ")
_CONNECT_MS, _ANSWER_MS = 30_000, 120_000
"""The longest waits for a connection, and for an answer: a thousand partitions were seen to take a metastore 4 s."""
_AT_ONCE = 500
_PLAIN, _TLS = "hive", "hives"
EXPECTED = f"{_PLAIN}:HOST:PORT, or {_TLS}:HOST:PORT with TLS"
T = TypeVar("T")


@cache
def interface() -> Any:
    """The structures and the service. UsageError: the package is missing."""
    try:
        import thriftpy2.parser
    except ImportError as error:
        raise UsageError(
            "a Hive Metastore needs the package thriftpy2", todo="Install it: pip install 'phantombase[hive]'."
        ) from error
    return thriftpy2.parser.load_fp(io.StringIO(_INTERFACE), "phantombase_metastore_thrift")


@dataclass(frozen=True, slots=True)
class Metastore:
    """The servers of one metastore, which are tried in order. `tls`: by certificates that the system, or the file that
    SSL_CERT_FILE names, trusts."""

    servers: tuple[tuple[str, int], ...]
    tls: bool = False

    @staticmethod
    def parse(text: str) -> Metastore:
        """From `hive:HOST[:PORT][,HOST[:PORT]]...`, or `hives:...`. UsageError."""
        kind, _, where = text.partition(":")
        if kind not in (_PLAIN, _TLS):
            raise UsageError("unknown kind of catalog", expected=EXPECTED, found=repr(text))
        return Metastore(tuple(_server(one, text) for one in where.split(",")), tls=kind == _TLS)

    @property
    def shown(self) -> str:
        return f"{_TLS if self.tls else _PLAIN}:" + ",".join(f"{host}:{port}" for host, port in self.servers)

    @contextmanager
    def calls(self) -> Iterator[Calls]:
        """A connection, for one thread. StorageError: no server answers, or it refuses a call."""
        kinds = interface()
        from thriftpy2.thrift import TException

        try:
            with _connected(self, kinds) as client:
                yield Calls(client, kinds)
        except (kinds.Refused, kinds.NoSuchObject, kinds.UnknownDatabase, kinds.AlreadyExists) as error:
            raise StorageError(
                "the Hive Metastore refused a request",
                path=self.shown,
                found=f"{type(error).__name__}: {error.message}",
                todo="Its log says more. The data are not affected; the next sync tries again.",
            ) from error
        except (TException, OSError) as error:
            host, port = self.servers[0]
            cause = error.__context__ if isinstance(error.__context__, OSError) else error  # thriftpy2 tells less
            raise StorageError(
                "the Hive Metastore did not answer",
                path=self.shown,
                found=why_unreachable([f"{host}:{port}"], _PORT) or f"{type(cause).__name__}: {cause}",
                todo="Check its host and port (hive.metastore.uris), whether it uses TLS (hives:HOST:PORT), and that "
                "it asks for no SASL.",
            ) from error


def _server(text: str, whole: str) -> tuple[str, int]:
    host, separator, port = text.strip().rpartition(":")
    host, port = (host, port) if separator else (port, str(_PORT))
    if not host or re.fullmatch(r"[0-9]{1,5}", port) is None or not _NO_HOST.isdisjoint(host):
        raise UsageError(
            "not a Hive Metastore",
            expected=EXPECTED,
            found=whole,
            todo="Name the servers of hive.metastore.uris, without thrift://.",
        )
    return host, int(port)


@contextmanager
def _connected(store: Metastore, kinds: Any) -> Iterator[Any]:
    from thriftpy2.rpc import client_context
    from thriftpy2.transport import TTransportException

    how: dict[str, Any] = {"connect_timeout": _CONNECT_MS, "socket_timeout": _ANSWER_MS}
    if store.tls:
        import ssl

        how["ssl_context"] = ssl.create_default_context()
    with ExitStack() as stack:
        for number, server in enumerate(store.servers, start=1):
            try:
                client = stack.enter_context(client_context(kinds.Metastore, *server, **how))
            except (TTransportException, OSError):
                if number == len(store.servers):
                    raise
            else:
                break
        yield client


class Calls:
    """The calls of one connection; `kinds`: its structures. Names of tables and databases are in lower case there."""

    def __init__(self, client: Any, kinds: Any) -> None:
        self._client = client
        self.kinds = kinds

    def databases(self) -> list[str]:
        return list(self._client.get_all_databases())

    def names(self, database: str) -> list[str]:
        return list(self._client.get_all_tables(database))

    def create_database(self, name: str) -> None:
        """Of no effect if it exists, or another process makes it just now."""
        made = self.kinds.Database(name=name, description="automatically created by hoodie", parameters={})
        with suppress(self.kinds.AlreadyExists):
            self._client.create_database(made)

    def tables(self, database: str, names: Collection[str]) -> Iterator[Any]:
        """Those of these tables that exist; none, if the database does not."""
        for some in batches(list(names), _AT_ONCE):
            asked = self.kinds.GetTablesRequest(dbName=database, tblNames=some)
            try:
                yield from self._client.get_table_objects_by_name_req(asked).tables
            except self.kinds.UnknownDatabase:
                return

    def create(self, table: Any) -> bool:
        """False: another process has made it just now."""
        try:
            self._client.create_table(table)
        except self.kinds.AlreadyExists:
            return False
        return True

    def alter(self, table: Any, *, partitions: bool) -> None:
        """`partitions`: their columns change, too."""
        more = self.kinds.EnvironmentContext(properties={"CASCADE": "true"} if partitions else {})
        self._client.alter_table_with_environment_context(table.dbName, table.tableName, table, more)

    def partitions(self, table: Any) -> list[Any]:
        return list(self._client.get_partitions(table.dbName, table.tableName, -1))

    def named(self, table: Any, names: Sequence[str]) -> list[Any]:
        """Those of these partitions that exist, by names such as `a=1/b=2`."""
        return list(self._client.get_partitions_by_names(table.dbName, table.tableName, list(names)))

    def add(self, table: Any, partitions: Sequence[Any]) -> None:
        """Those that exist stay as they are."""
        request = self.kinds.AddPartitionsRequest(
            dbName=table.dbName, tblName=table.tableName, parts=partitions, ifNotExists=True, needResult=False
        )
        self._client.add_partitions_req(request)

    def move(self, table: Any, partitions: Sequence[Any]) -> None:
        self._client.alter_partitions(table.dbName, table.tableName, partitions)

    def drop(self, table: Any, names: Sequence[str]) -> None:
        """Removes partitions by name, `a=1/b=2`; their files stay."""
        request = self.kinds.DropPartitionsRequest(
            dbName=table.dbName,
            tblName=table.tableName,
            parts=self.kinds.RequestPartsSpec(names=list(names)),
            deleteData=False,
            ifExists=True,
            needResult=False,
        )
        self._client.drop_partitions_req(request)


def batches(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def base_path(location: str | None) -> str:
    """The location of a table as the path of a Hudi table: Hadoop writes `file:/path`, which is no URL with a host."""
    found = (location or "").rstrip("/")
    return found.removeprefix("file:") if found.startswith("file:/") and "://" not in found else found


PROVIDER = "spark.sql.sources.provider"


def is_hudi(table: Any) -> bool:
    """Whether a table of a metastore is one of Hudi, by Spark's provider or the input format."""
    parameters: Mapping[str, str] = table.parameters or {}
    return (
        parameters.get(PROVIDER, "").lower() == "hudi" or "hudi" in ((table.sd and table.sd.inputFormat) or "").lower()
    )
