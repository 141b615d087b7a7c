"""The same tests on PySpark 4.0, the first release that has Python data sources, in a process of its own. Streams need
4.2 (`pyspark_phantombase.release`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.judge import environment
from tests.support.places import ROOT

PYSPARK = "pyspark==4.0.*"
SAMPLE = (
    "tests/spark_source/test_batch.py",
    "tests/spark_source/test_incremental.py",
    "tests/writing/test_writer_spark.py",
    "tests/unit/writer_hooks/schema/test_spark_schema.py",
)

pytestmark = [pytest.mark.deep, pytest.mark.spark]


def packages() -> Path:
    """A folder with that PySpark and its py4j, made first if it is not there; beside the judge's environment."""
    folder, ready = environment.home() / "pyspark-4.0", environment.home() / "pyspark-4.0.ready"
    environment.home().mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), PYSPARK]
            subprocess.run(install, check=True)
            ready.write_text(f"{PYSPARK}\n")
    return folder


def test_writes_and_reads() -> None:
    path = os.pathsep.join((str(packages()), str(ROOT)))
    environ = {**os.environ, "PYTHONPATH": path, "PHANTOMBASE_ALL": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *SAMPLE]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    code = "import pyspark; assert pyspark.__version__.startswith('4.0.'), pyspark.__version__"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, check=True)
