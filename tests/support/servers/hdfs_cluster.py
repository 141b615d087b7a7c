"""A real name node and data node in one JVM: Hadoop's MiniDFSCluster, for tests.

The Hadoop client's jars are those of our PySpark; the cluster's (60 MB) are resolved by Spark on first use and kept
beside the judge's. The JVM is driven through PySpark's py4j, and ends with this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from filelock import FileLock
from hdfs_native import Client, WriteOptions

from phantombase.timeline.storage.hdfs_store import HdfsStorage
from tests.hudi.judge.environment import home

_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_RESOLVE = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
print(builder.getOrCreate().conf.get("spark.jars"))
"""


@dataclass(frozen=True)
class Hdfs:
    """A running cluster."""

    url: str

    @property
    def client(self) -> Client:
        """Another client than the one under test."""
        return Client(self.url)

    def new_folder(self) -> str:
        """An URL that nothing has used."""
        return f"{self.url}/{uuid.uuid4().hex[:12]}"

    def upload(self, folder: Path) -> str:
        """Copies a folder's files; returns the URL of the copy."""
        url, client = self.new_folder(), self.client

        def copy(path: Path) -> None:
            target = f"{url.removeprefix(self.url)}/{path.relative_to(folder).as_posix()}"
            if path.is_dir():
                client.mkdirs(target, create_parent=True)
                return
            with client.create(target, WriteOptions(create_parent=True)) as file:
                if data := path.read_bytes():
                    file.write(data)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(copy, (path for path in folder.rglob("*") if path.suffix != ".crc")))
        return url


@contextmanager
def hdfs_cluster(folder: Path) -> Iterator[Hdfs]:
    """A cluster on free ports of this machine, with its files below `folder`."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    classes = [f"{_SPARK_JARS}/*", *cluster_jars()]
    (py4j,) = _SPARK_JARS.glob("py4j*.jar")
    with ExitStack() as at_end:
        log = at_end.enter_context(open(folder / "log", "w"))
        port = launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(classes),
            javaopts=["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        java = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        at_end.callback(java.shutdown)
        settings = java.jvm.org.apache.hadoop.conf.Configuration()
        settings.set("hdfs.minidfs.basedir", str(folder / "data"))
        settings.setBoolean("dfs.permissions.enabled", False)
        # A small file is closed at once, and not half a second later when the data node's report is late.
        settings.setInt("dfs.namenode.file.close.num-committed-allowed", 1)
        for name in ("datanode.address", "datanode.http.address", "datanode.ipc.address", "namenode.http-address"):
            settings.set(f"dfs.{name}", "127.0.0.1:0")
        builder = java.jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(settings)
        cluster = builder.numDataNodes(1).format(True).build()
        at_end.callback(cluster.shutdown)
        cluster.waitActive()
        yield Hdfs(cluster.getURI().toString())


def cluster_jars() -> list[str]:
    """The jars of MiniDFSCluster of the version of PySpark's Hadoop client, resolved first if they are not there."""
    (client,) = _SPARK_JARS.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    marker = home() / f"minicluster-{version}.jars"
    home().mkdir(parents=True, exist_ok=True)
    with FileLock(home() / "lock"):
        if not marker.exists() or not all(Path(jar).exists() for jar in marker.read_text().split(",")):
            marker.write_text(_resolved(version))
        return marker.read_text().split(",")


def _resolved(version: str) -> str:
    settings = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars.packages": f"org.apache.hadoop:hadoop-client-minicluster:{version},org.mockito:mockito-core:4.11.0",
        "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime",
        "spark.jars.ivy": str(home() / "ivy"),
    }
    command = [sys.executable, "-c", _RESOLVE, json.dumps(settings)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=home())
    if done.returncode:
        raise RuntimeError(f"the jars of MiniDFSCluster cannot be had:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1].replace("file://", "")


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """One cluster for all tests of a process: the one that PHANTOMBASE_HDFS names, else one of its own.

    The tests are skipped where Java or the jars are missing."""
    if given := os.environ.get("PHANTOMBASE_HDFS"):
        yield Hdfs(given)
        return
    try:
        cluster_jars()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"NO HDFS: {error}")
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture
def hdfs_storage(hdfs: Hdfs) -> HdfsStorage:
    """An empty folder."""
    return HdfsStorage(hdfs.new_folder())
