"""A real Hive Metastore (2.3) with Derby, from the jars that PySpark brings."""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from phantombase.compactor_daemon.jvm_archive import spark_java
from phantombase.timeline.reachable import why_unreachable
from tests.support.servers.zookeeper_server import free_ports

_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name><value>jdbc:derby:;databaseName={folder}/db;create=true</value>
</property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.async.log.enabled</name><value>false</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>{folder}/warehouse</value></property>
</configuration>"""

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
    """A server of its own, with the database `default`."""
    folder = tmp_path / "metastore"
    folder.mkdir()
    (folder / "hive-site.xml").write_text(_SITE.format(folder=folder))
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
                "org.apache.hadoop.hive.metastore.HiveMetaStore",
                "-p",
                str(port),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            until = time.monotonic() + 120
            while why_unreachable([f"127.0.0.1:{port}"], port) is not None:
                assert process.poll() is None, (folder / "out").read_text()[-2000:]
                assert time.monotonic() < until, (folder / "out").read_text()[-2000:]
                time.sleep(0.2)
            yield HiveMetastore(port=port, folder=str(folder))
        finally:
            process.kill()
            process.wait()
