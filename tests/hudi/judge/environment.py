"""The judge's own virtual environment: PySpark 3.5 and the bundles of real Apache Hudi.

Hudi's bundles need Spark 3.5 and phantombase needs Spark 4, so real Hudi lives in an environment beside ours:

    $PHANTOMBASE_JUDGE_HOME, or ~/.cache/phantombase/judge
      lock                     held while anything below is made
      spark-3.5.9/             the virtual environment
      spark-3.5.9.ready        marker, written last: without it the environment is made anew
      ivy/                     the bundles as Spark resolved them
      hudi-1.2.0.jars          marker, written last: the jars of that bundle, comma separated (`spark.jars`)
      hadoop-aws.jars          the same for Hadoop's S3 client (300 MB), made when a test asks for it
      iceberg-1.12.0.jars      the same for Iceberg's runtime, made when a test asks for it

All is made on first use and reused offline afterwards; `python -m tests.hudi.judge.environment` makes it now."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

SPARK_VERSION = "3.5.9"
BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12"
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.3.4"
"""Of the Hadoop release that Spark 3.5 has; brings the SDK of AWS."""
ICEBERG_VERSION = "1.12.0"
HUDI_VERSIONS = ("0.15.0", "1.2.0")
"""Resolved ahead of time. 1.0.2 is used by few tests and resolved when first asked for."""
REQUIREMENTS = (f"pyspark=={SPARK_VERSION}", "setuptools<81; python_version >= '3.12'")
"""PySpark brings py4j; it imports distutils, which Python 3.12 and later have from setuptools only."""
SERVER = Path(__file__).with_name("server.py")


class JudgeError(Exception):
    """Real Hudi, or the environment it runs in, said no: the message is its own words, `trace` the rest."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def home() -> Path:
    """The folder that holds the judge's environment."""
    given = os.environ.get("PHANTOMBASE_JUDGE_HOME")
    return Path(given).absolute() if given else Path.home() / ".cache/phantombase/judge"


def python() -> Path:
    """The interpreter of the judge's virtual environment, made first if it is not there."""
    venv, ready = home() / f"spark-{SPARK_VERSION}", home() / f"spark-{SPARK_VERSION}.ready"
    interpreter = venv / "bin/python"
    with _locked():
        if ready.exists() and interpreter.exists():
            return interpreter
        if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
            raise JudgeError("real Hudi runs on Spark and needs Java 17 or 11: no `java` on PATH, no JAVA_HOME")
        ready.unlink(missing_ok=True)
        _progress(f"making {venv}")
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        _progress(f"installing {', '.join(REQUIREMENTS)}")
        _run([str(interpreter), "-m", "pip", "install", "--quiet", *REQUIREMENTS])
        ready.write_text(f"{sys.version}\n")
        return interpreter


def jars(hudi_version: str) -> str:
    """The jars of one Hudi bundle as a value for `spark.jars`, resolved first if they are not there."""
    return _resolved(f"hudi-{hudi_version}", f"{BUNDLE}:{hudi_version}")


def hadoop_aws_jars() -> str:
    """The same for `s3a://` URLs."""
    return _resolved("hadoop-aws", HADOOP_AWS)


def iceberg_jars() -> str:
    """The same for Iceberg's own reader in Spark."""
    package = f"org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:{ICEBERG_VERSION}"
    return _resolved(f"iceberg-{ICEBERG_VERSION}", package)


def java_client_jars(hudi_version: str) -> str:
    """The jar of Hudi's client for plain Java; all that it needs is in the bundle and in Spark."""
    package = f"org.apache.hudi:hudi-java-client:{hudi_version}"
    return _resolved(f"hudi-java-client-{hudi_version}", package, {"spark.jars.excludes": ",".join(_IN_BUNDLE)})


_IN_BUNDLE = (
    *(f"org.apache.hudi:{name}" for name in ("hudi-client-common", "hudi-common", "hudi-hadoop-common", "hudi-io")),
    *(f"org.apache.hudi:{name}" for name in ("hudi-timeline-service", "hudi-hadoop-mr", "hudi-hive-sync")),
    *(f"org.apache.parquet:{name}" for name in ("parquet-avro",)),
    *(f"org.apache.hadoop:{name}" for name in ("hadoop-common", "hadoop-client")),
    *(f"org.apache.logging.log4j:{name}" for name in ("log4j-1.2-api", "log4j-core", "log4j-api")),
    "org.apache.avro:avro",
    "com.github.davidmoten:hilbert-curve",
    "org.apache.hive:hive-service",
    "org.slf4j:slf4j-api",
    "org.scala-lang:scala-library",
)
"""Dependencies of that client."""


def _resolved(name: str, package: str, more: Mapping[str, str] | None = None) -> str:
    interpreter, marker = python(), home() / f"{name}.jars"
    with _locked():
        if marker.exists() and all(Path(jar).exists() for jar in marker.read_text().split(",")):
            return marker.read_text()
        _progress(f"resolving {package}")
        conf = {"spark.jars.packages": package, "spark.jars.ivy": str(home() / "ivy"), **(more or {})}
        # Spark resolves what it starts with, says where the jars are, and ends because its input is empty.
        answers = _run([str(interpreter), str(SERVER), json.dumps(plain_conf() | conf)], cwd=home())
        found = [jar.removeprefix("file://") for jar in json.loads(answers)["jars"].split(",")]
        marker.write_text(",".join(found))
        return marker.read_text()


def spark_conf(cores: int = 2, memory: str = "3g") -> dict[str, str]:
    """Spark's settings for a small, bounded session on this machine only."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.default.parallelism": str(cores),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }


def plain_conf() -> dict[str, str]:
    """Settings of a session without Hudi's bundle: none names a class of it."""
    return {key: value for key, value in spark_conf().items() if "org.apache." not in value}


def _locked() -> FileLock:
    """The lock of the whole folder: the first user makes what is missing, the others wait and find it."""
    home().mkdir(parents=True, exist_ok=True)
    return FileLock(home() / "lock")


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise JudgeError(f"`{' '.join(command[:6])}` exited {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def _progress(text: str) -> None:
    print(f"judge: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Make everything now, so that tests start at once and offline."""
    for version in HUDI_VERSIONS:
        jars(version)
    _progress(f"ready in {home()}: Spark {SPARK_VERSION}, Hudi {', '.join(HUDI_VERSIONS)}")


if __name__ == "__main__":
    main()
