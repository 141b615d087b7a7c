"""What real Hudi needs for tables on S3: Hadoop's S3 client, its settings, and a client for Hudi's storage lock."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from tests.hudi.judge import environment
from tests.hudi.judge.environment import JudgeError

_LOCK_CLIENT = Path(__file__).with_name("lock_client")
_LOCK_HUDI = "1.2.0"
"""Older ones have no storage lock."""

STORAGE_LOCK = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.storage.validity.timeout.secs": "20",
    "hoodie.write.lock.storage.renew.interval.secs": "2",
}
"""Hudi's options for the lock that its writers share on an object store, with the shortest times it allows."""


def s3_conf(access: Mapping[str, str], hudi_version: str) -> dict[str, str]:
    """Spark's settings for a server that `access` names as the environment does (AWS_ENDPOINT_URL, ...)."""
    jars = environment.hadoop_aws_jars()
    if hudi_version == _LOCK_HUDI:
        jars += f",{_lock_client_jar()}"
    s3a = {
        "endpoint": access["AWS_ENDPOINT_URL"],
        "access.key": access["AWS_ACCESS_KEY_ID"],
        "secret.key": access["AWS_SECRET_ACCESS_KEY"],
        "endpoint.region": access["AWS_REGION"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        # Hudi 1.2 leaves streams of the metadata table's logs open: 96, the default, are used up by ten requests.
        "connection.maximum": "2000",
    }
    return {"spark.jars": jars, **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}}


def _lock_client_jar() -> Path:
    """The compiled stand-in; made again when its source has changed."""
    (source,) = _LOCK_CLIENT.rglob("*.java")
    made = environment.home() / f"lock-client-{sha256(source.read_bytes()).hexdigest()[:12]}.jar"
    jars = ":".join([environment.jars(_LOCK_HUDI), environment.hadoop_aws_jars()]).replace(",", ":")
    with FileLock(environment.home() / "lock"), tempfile.TemporaryDirectory() as folder:
        if made.exists():
            return made
        if shutil.which("javac") is None or shutil.which("jar") is None:
            raise JudgeError("the client of Hudi's storage lock is compiled: no `javac` or `jar` on PATH")
        _run(["javac", "--release", "11", "-cp", jars, "-d", folder, str(source)])
        _run(["jar", "--create", "--file", f"{folder}/made.jar", "-C", folder, "org"])
        shutil.move(f"{folder}/made.jar", made)
    return made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise JudgeError(f"`{command[0]}` exited {done.returncode}:\n{done.stderr[-4000:]}")
