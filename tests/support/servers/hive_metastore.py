"""A real Hive Metastore (2.3) with Derby, from the jars that PySpark brings; and one in memory, for tests of a second.

What the one in memory does is what the real one was seen to do (tests/hudi/sync compares both)."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
import pytest

from phantombase.compactor_daemon.catalogs.catalog import partition_name
from phantombase.compactor_daemon.catalogs.metastore import interface
from phantombase.compactor_daemon.jvm_archive import spark_java
from phantombase.timeline.reachable import why_unreachable
from tests.support.servers.zookeeper_server import free_ports

_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name><value>jdbc:derby:;databaseName={folder}/db;create=true</value>
</property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.async.log.enabled</name><value>false</value></property>
<property><name>datanucleus.connectionPoolingType</name><value>HikariCP</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>{folder}/warehouse</value></property>
{more}</configuration>"""
_KERBEROS = """<property><name>hive.metastore.sasl.enabled</name><value>true</value></property>
<property><name>hive.metastore.kerberos.keytab.file</name><value>{keytab}</value></property>
<property><name>hive.metastore.kerberos.principal</name><value>{principal}</value></property>
"""
_CORE = """<configuration>
<property><name>hadoop.security.authentication</name><value>kerberos</value></property>
<property><name>hadoop.rpc.protection</name><value>{protection}</value></property>
</configuration>"""

_MAIN = "org.apache.hadoop.hive.metastore.HiveMetaStore"
_LOG = """rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
"""

_INTERFACE = """
struct FieldSchema { 1: string name, 2: string type, 3: string comment }
struct SerDeInfo { 1: string name, 2: string serializationLib, 3: map<string, string> parameters }
struct StorageDescriptor { 1: list<FieldSchema> cols, 2: string location, 3: string inputFormat, 4: string outputFormat,
  5: bool compressed, 6: i32 numBuckets, 7: SerDeInfo serdeInfo, 8: list<string> bucketCols,
  10: map<string, string> parameters }
struct Table { 1: string tableName, 2: string dbName, 3: string owner, 7: StorageDescriptor sd,
  8: list<FieldSchema> partitionKeys, 9: map<string, string> parameters, 12: string tableType }
struct Database { 1: string name, 2: string description, 3: string locationUri, 4: map<string, string> parameters }
exception MetaException { 1: string message }
service Metastore {
  void create_database(1: Database database) 
    throws (1: MetaException a, 2: MetaException b, 3: MetaException c),
  void create_table(1: Table tbl) throws (1: MetaException a, 2: MetaException b, 3: MetaException c)
}
"""


@dataclass(frozen=True, kw_only=True)
class HiveMetastore:
    """A running server."""

    port: int
    folder: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds of it so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def create(self, database: str, tables: dict[str, tuple[str, str, dict[str, str]]]) -> None:
        """A database with tables: location, input format and parameters by name."""
        import thriftpy2.parser
        from thriftpy2.rpc import client_context

        kinds: Any = thriftpy2.parser.load_fp(io.StringIO(_INTERFACE), "tests_metastore_thrift")
        with client_context(
            kinds.Metastore, "127.0.0.1", self.port, connect_timeout=60_000, socket_timeout=60_000
        ) as client:
            if database != "default":
                client.create_database(
                    kinds.Database(name=database, description="", locationUri=self.folder, parameters={})
                )
            for name, (location, input_format, parameters) in tables.items():
                serde = kinds.SerDeInfo(name="s", serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe")
                place = kinds.StorageDescriptor(
                    cols=[kinds.FieldSchema(name="id", type="string")],
                    location=location,
                    inputFormat=input_format,
                    outputFormat="none",
                    compressed=False,
                    numBuckets=0,
                    serdeInfo=serde,
                    bucketCols=[],
                    parameters={},
                )
                client.create_table(
                    kinds.Table(
                        tableName=name,
                        dbName=database,
                        owner="tests",
                        sd=place,
                        partitionKeys=[],
                        parameters={"EXTERNAL": "TRUE", **parameters},
                        tableType="EXTERNAL_TABLE",
                    )
                )


@pytest.fixture
def hive_metastore(tmp_path: Path) -> Iterator[HiveMetastore]:
    with running_metastore(tmp_path / "metastore") as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Kerberised:
    """`config`: krb5.conf. `protection`: hadoop.rpc.protection."""

    config: Path
    keytab: Path
    principal: str
    protection: str = "authentication"


@contextmanager
def running_metastore(
    folder: Path, *, locks: bool = False, kerberos: Kerberised | None = None
) -> Iterator[HiveMetastore]:
    """A server of its own, with the database `default`, in a new folder. `locks`: also grants locks of tables."""
    folder.mkdir()
    more, how = "", []
    if kerberos is not None:
        more = _KERBEROS.format(keytab=kerberos.keytab, principal=kerberos.principal)
        how = [f"-Djava.security.krb5.conf={kerberos.config}"]
        (folder / "core-site.xml").write_text(_CORE.format(protection=kerberos.protection))
    (folder / "hive-site.xml").write_text(_SITE.format(folder=folder, more=more))
    (folder / "hive-log4j2.properties").write_text(_LOG)
    jars = Path(pyspark.__file__).parent / "jars"
    (port,) = free_ports(1)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [
                str(spark_java()),
                "-cp",
                f"{folder}:{jars}/*",
                f"-Dderby.stream.error.file={folder}/derby.log",
                *how,
                str(Path(__file__).with_name("LockingMetastore.java")) if locks else _MAIN,
                "-p",
                str(port),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            until = time.monotonic() + 300
            while why_unreachable([f"127.0.0.1:{port}"], port) is not None:
                assert process.poll() is None, (folder / "out").read_text()[-2000:]
                assert time.monotonic() < until, (folder / "out").read_text()[-2000:]
                time.sleep(0.2)
            yield HiveMetastore(port=port, folder=str(folder), pid=process.pid)
        finally:
            process.kill()
            process.wait()


def _typeless(module: str) -> Any:
    return import_module(module)


class MemoryMetastore:
    """A metastore of this process, at a port. `calls`: the names of all requests, the oldest first; `before`: called
    with each, and may raise."""

    asks = "get_table_objects_by_name_req"

    def __init__(self, certificate: Path | None = None) -> None:
        """`certificate`: with TLS, a file with its key."""
        protocol, server, thrift, transport = (
            _typeless(f"thriftpy2.{name}") for name in ("protocol", "server", "thrift", "transport")
        )
        self.kinds = interface()
        self.clear()
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        (self.port,) = free_ports(1)
        of_socket = {"host": "127.0.0.1", "port": self.port, "client_timeout": 60_000}
        self._server = server.TThreadedServer(
            thrift.TProcessor(self.kinds.Metastore, self),
            transport.TServerSocket(**of_socket)
            if certificate is None
            else transport.TSSLServerSocket(**of_socket, certfile=str(certificate)),
            iprot_factory=protocol.TBinaryProtocolFactory(),
            itrans_factory=transport.TBufferedTransportFactory(),
        )
        self._server.daemon = True
        self._thread = Thread(target=self._server.serve, daemon=True)
        self._thread.start()
        while why_unreachable([f"127.0.0.1:{self.port}"], self.port) is not None:
            time.sleep(0.01)

    @property
    def where(self) -> str:
        return f"hive:127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.close()

    def clear(self) -> None:
        self.bases: dict[str, dict[str, Any]] = {"default": {}}
        self.notes: list[tuple[str | None, str | None]] = []
        self.parts: dict[tuple[str, str], dict[tuple[str, ...], Any]] = {}

    def change(self, name: str, *, location: str = "", plain: bool = False, unpartitioned: bool = False) -> None:
        """Of a table of the database `default`, by another client."""
        table = self.bases["default"][name]
        table.sd.location = location or table.sd.location
        if plain:
            table.sd.inputFormat, table.parameters = "org.apache.hadoop.mapred.TextInputFormat", {}
        if unpartitioned:
            table.partitionKeys = []

    def parameters(self, database: str, name: str) -> dict[str, str]:
        found: dict[str, str] = self.bases[database][name].parameters
        return found

    def table(self, database: str, name: str) -> Any:
        return self.bases[database][name]

    def values(self, database: str, name: str) -> list[tuple[str, ...]]:
        """Of the partitions."""
        return sorted(self.parts.get((database, name), {}))

    def _asked(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)

    def get_all_databases(self) -> list[str]:
        self._asked("get_all_databases")
        return list(self.bases)

    def get_all_tables(self, database: str) -> list[str]:
        self._asked("get_all_tables")
        return list(self.bases[database])

    def create_database(self, database: Any) -> None:
        self._asked("create_database")
        if database.name in self.bases:
            raise self.kinds.AlreadyExists(message=database.name)
        self.bases[database.name] = {}

    def get_table_objects_by_name_req(self, request: Any) -> Any:
        self._asked("get_table_objects_by_name_req")
        if request.dbName not in self.bases:
            raise self.kinds.UnknownDatabase(message=request.dbName)
        there = self.bases[request.dbName]
        found = [copy.deepcopy(there[name]) for name in request.tblNames if name in there]
        return self.kinds.GetTablesResult(tables=found)

    def create_table(self, table: Any) -> None:
        self._asked("create_table")
        if table.dbName not in self.bases:
            raise self.kinds.NoSuchObject(message=table.dbName)
        if table.tableName in self.bases[table.dbName]:
            raise self.kinds.AlreadyExists(message=table.tableName)
        self.bases[table.dbName][table.tableName] = table
        self.parts[table.dbName, table.tableName] = {}

    def alter_table_with_environment_context(self, database: str, name: str, table: Any, context: Any) -> None:
        self._asked("alter_table_with_environment_context")
        self.bases[database][name] = table
        if (context.properties or {}).get("CASCADE") == "true":
            for one in self.parts[database, name].values():
                one.sd.cols = copy.deepcopy(table.sd.cols)

    def get_partitions(self, database: str, name: str, most: int) -> list[Any]:
        self._asked("get_partitions")
        return list(self.parts[database, name].values())

    def get_partitions_by_names(self, database: str, name: str, names: list[str]) -> list[Any]:
        self._asked("get_partitions_by_names")
        return [
            one for values, one in self.parts[database, name].items() if self._name(database, name, values) in names
        ]

    def add_partitions_req(self, request: Any) -> Any:
        self._asked("add_partitions_req")
        there = self.parts[request.dbName, request.tblName]
        for one in request.parts:
            if tuple(one.values) in there and not request.ifNotExists:
                raise self.kinds.AlreadyExists(message=str(one.values))
            there.setdefault(tuple(one.values), one)
        return self.kinds.AddPartitionsResult()

    def alter_partitions(self, database: str, name: str, partitions: list[Any]) -> None:
        self._asked("alter_partitions")
        self.parts[database, name] |= {tuple(one.values): one for one in partitions}

    def drop_partitions_req(self, request: Any) -> Any:
        self._asked("drop_partitions_req")
        there = self.parts[request.dbName, request.tblName]
        for values in [v for v in there if self._name(request.dbName, request.tblName, v) in request.parts.names]:
            del there[values]
        return self.kinds.DropPartitionsResult()

    def get_current_notificationEventId(self) -> Any:
        self._asked("get_current_notificationEventId")
        return self.kinds.LastEvent(eventId=len(self.notes))

    def get_next_notification(self, request: Any) -> Any:
        """Of tables, which a test has noted in `notes`."""
        self._asked("get_next_notification")
        later = [*enumerate(self.notes, 1)][request.lastEvent : request.lastEvent + request.maxEvents]
        return self.kinds.Events(events=[self.kinds.Event(eventId=n, dbName=of[0], tableName=of[1]) for n, of in later])

    def _name(self, database: str, name: str, values: tuple[str, ...]) -> str:
        return partition_name(self.bases[database][name].partitionKeys, values)


@pytest.fixture
def memory_metastore() -> Iterator[MemoryMetastore]:
    server = MemoryMetastore()
    yield server
    server.close()
