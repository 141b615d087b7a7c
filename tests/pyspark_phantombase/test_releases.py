"""The same tests on older releases of PySpark, from 4.0 on, the first that has Python data sources: each in processes
of its own. Streams need 4.2 (`pyspark_phantombase._check_streams`). PySpark 3.5: `tests/hudi/cases/test_pyspark35.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.hudi.judge import environment
from tests.support.places import ROOT

SAMPLE = (
    "tests/pyspark_phantombase/test_batch.py",
    "tests/pyspark_phantombase/test_write.py",
    "tests/pyspark_phantombase/test_sql.py",
    "tests/writer_hooks/engine/test_writer_spark.py",
    "tests/writer_hooks/engine/test_spark_schema.py",
)
STREAMS = ("tests/pyspark_phantombase/test_stream.py", "tests/pyspark_phantombase/test_stream_parts.py")

pytestmark = [pytest.mark.deep, pytest.mark.spark]


CONNECT = ("grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "zstandard")
"""What a client of Spark Connect needs beside PySpark."""


def packages(name: str, *wanted: str) -> Path:
    """A folder with these packages, made first if it is not there; beside the judge's environment."""
    folder, ready = environment.home() / name, environment.home() / f"{name}.ready"
    environment.home().mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *wanted]
            subprocess.run(install, check=True)
            ready.write_text("\n".join(wanted))
    return folder


def tested(folder: Path, *files: str, **variables: str) -> dict[str, str]:
    """Runs tests with the packages of a folder; gives the environment of that."""
    path = os.pathsep.join((str(folder), str(ROOT)))
    environ = {**os.environ, "PYTHONPATH": path, "PHANTOMBASE_ALL": "0", **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    return environ


@pytest.mark.parametrize(("release", "files"), [("4.0", SAMPLE), ("4.1", SAMPLE), ("4.2", SAMPLE + STREAMS)])
def test_writes_compacts_and_reads(release: str, files: tuple[str, ...]) -> None:
    environ = tested(packages(f"pyspark-{release}", f"pyspark=={release}.*"), *files)
    code = f"import pyspark; assert pyspark.__version__.startswith('{release}.'), pyspark.__version__"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, check=True)


def test_by_spark_connect() -> None:
    """The client has no JVM: everything goes through a local server, which finds the source by itself."""
    files = [f"tests/pyspark_phantombase/test_{name}.py" for name in ("batch", "write", "sql")]
    tested(packages("spark-connect", *CONNECT), *files, PHANTOMBASE_CONNECT="1", PHANTOMBASE_ALL="1")
