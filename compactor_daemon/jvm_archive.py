"""A class-data archive for Spark's JVM: parsed and checked classes are mapped in, instead of loaded from 280 jars.

    ~/.cache/phantombase/jvm/         $XDG_CACHE_HOME in place of ~/.cache; may be deleted at any time
      spark-<digest>.jsa              the archive; the digest is of the JVM, the jars and their times
      spark-<digest>.jsa.new          written by a JVM as it exits
      spark-<digest>.jsa.lock         held by that JVM, from its start to its end

The JVM of the second run writes the archive as it exits, when the command is over already; the third run uses it. The
first run writes none: if the cache does not outlive a run (in a container), no archive would ever be used. Writing
costs 6 CPU seconds once, each use saves 2. A failure here only costs time: the JVM checks an archive before it uses it,
and otherwise runs without one."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from phantombase.timeline.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """`java_options` use the archive or make it. Start the JVM inside the context; it inherits `passed`."""

    java_options: str = ""
    passed: tuple[int, ...] = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for handle in self.passed:
            os.close(handle)


NO_ARCHIVE = ClassArchive()


def spark_java() -> str | None:
    """The Java that Spark's scripts choose; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


_SPARK = "pip install 'phantombase[spark]' adds it: compactions and writes in tasks of Spark, the source, 490 MB."


def require_pyspark(what: str) -> None:
    """UsageError where the package pyspark, which `what` needs, is not installed: it is an extra."""
    if find_spec("pyspark") is None:
        raise UsageError(f"{what} needs the package pyspark", todo=_SPARK)


def spark_jars() -> list[Path]:
    """The jars of PySpark, among them ZooKeeper's. UsageError: see `require_pyspark`."""
    require_pyspark("a JVM with Spark's jars")
    import pyspark  # imported here: few processes need it

    return sorted((Path(pyspark.__file__).parent / "jars").iterdir())


def class_archive() -> ClassArchive:
    try:
        return _archive()
    except OSError:  # no home, a full disk, a read-only cache
        return NO_ARCHIVE


def _archive() -> ClassArchive:
    java = spark_java()
    if java is None:
        return NO_ARCHIVE
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phantombase/jvm"
    stats = [(str(p), s.st_size, s.st_mtime_ns) for p in (Path(java).resolve(), *spark_jars()) for s in (p.stat(),)]
    path = cache / f"spark-{hashlib.sha256(repr(stats).encode()).hexdigest()[:16]}.jsa"
    if path.exists():
        return ClassArchive(java_options=f'"-XX:SharedArchiveFile={path}" -Xshare:auto -Xlog:disable')
    lock_path = Path(f"{path}.lock")
    if not lock_path.exists():  # the first run
        cache.mkdir(parents=True, exist_ok=True)
        lock_path.touch()
        return NO_ARCHIVE
    lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another JVM makes it
        os.close(lock)
        return NO_ARCHIVE
    new = Path(f"{path}.new")
    if new.exists() and _is_complete(new):
        new.rename(path)
        os.close(lock)
        return _archive()
    return ClassArchive(java_options=f'"-XX:ArchiveClassesAtExit={new}" -Xshare:auto -Xlog:disable', passed=(lock,))


def _is_complete(new: Path) -> bool:
    """Whether an archive is complete: the JVM writes the header last; until then the file begins with zeros."""
    with new.open("rb") as file:
        return any(file.read(4))
