"""A REST catalog of Iceberg: Iceberg's own code for such servers, which `IcebergRest.java` puts behind a port."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pyspark

from phantombase.compactor_daemon.jvm_archive import spark_java
from tests.hudi.judge import environment


@dataclass(frozen=True)
class IcebergRest:
    """A running server."""

    uri: str

    def lose(self, code: int) -> None:
        """The next commit takes effect, and the answer is one of this code; 0: the connection ends."""
        with urlopen(f"{self.uri}/next/{code}"):
            pass


@contextmanager
def running_rest(folder: Path) -> Iterator[IcebergRest]:
    jars = Path(pyspark.__file__).parent / "jars"
    path = os.pathsep.join([*environment.iceberg_jars().split(","), f"{jars}/*"])
    command = [str(spark_java()), "-cp", path, str(Path(__file__).with_name("IcebergRest.java")), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = next((line for line in process.stdout if line.strip().isdecimal()), None)
        assert port is not None, "the server did not start"
        yield IcebergRest(f"http://127.0.0.1:{port.strip()}")
        process.communicate()  # it ends with its input
