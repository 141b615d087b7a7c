"""Real Hudi's table services and views without Spark: a JVM of its own for each call, some two seconds.

    run_java("1.2.0", "archived", path)                  the archived instants
    run_java("0.15.0", "archive", path, "hoodie.keep.min.commits=2")

Operations: see `table_services/Judge.java` (1.2.0) and `Judge15.java` (0.15.0)."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from tests.hudi.judge.environment import JudgeError, home, jars, java_client_jars

_SOURCES = Path(__file__).with_name("table_services")
_CLASS = {"0.15.0": "Judge15", "1.2.0": "Judge"}
_JAVA = (
    "-Xmx700m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("nio", "lang", "util")),
)  # fmt: skip


def run_java(version: str, operation: str, path: Path, *arguments: str) -> list[str]:
    """The lines that an operation of this Hudi version prints. JudgeError: it failed."""
    path_of_classes, name = _classes(version), _CLASS[version]
    command = ["java", *_JAVA, "-cp", path_of_classes, name, operation, str(path), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise JudgeError(f"Hudi {version} failed in `{operation}`", done.stderr[-4000:])
    return done.stdout.splitlines()


def archived_instants(version: str, path: Path) -> list[tuple[str, str]]:
    """(requested time, action) of the completed archived instants that this Hudi version sees, in its order."""
    rows = [line.split() for line in run_java(version, "archived", path)[1:]]
    return [(row[0], row[-2]) for row in rows if row[-1] == "COMPLETED"]


def _classes(version: str) -> str:
    return compiled(version, _SOURCES / f"{_CLASS[version]}.java")


@cache
def compiled(version: str, source: Path) -> str:
    """The class path of a program, compiled against a Hudi version."""
    spark = next((home() / "spark-3.5.9").glob("lib/python3*/site-packages/pyspark/jars"))
    parts = [*java_client_jars(version).split(","), *jars(version).split(","), f"{spark}/*"]
    target = home() / f"{source.parent.name.replace('_', '-')}-{version}"
    target.mkdir(exist_ok=True)
    command = ["javac", "-nowarn", "-cp", ":".join(parts), "-d", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise JudgeError(f"the program for Hudi {version} does not compile", done.stderr[-4000:])
    return ":".join([*parts, str(target)])
