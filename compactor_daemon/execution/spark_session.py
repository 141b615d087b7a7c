"""Spark: checks before a start, the start in the background while the table is loaded, and its Hadoop configuration.

Its schemas become Arrow's with every PySpark from 3.5 on; pyspark is imported only when it is needed."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from phantombase.timeline.errors import SparkError, UsageError, reason_of, without_classes
from phantombase.timeline.option import spelled_class
from phantombase.timeline.reachable import waiting, why_unreachable
from phantombase.timeline.storage.object_url import names_at

from ..jvm_archive import NO_ARCHIVE, class_archive, require_pyspark, spark_java
from ..options import ExecuteOptions

if TYPE_CHECKING:  # a start waits for no pyarrow
    import pyarrow as pa

_STANDALONE = "spark://"
_PORT = 7077


def check_spark(options: ExecuteOptions) -> None:
    """UsageError: no PySpark. SparkError: no Java, or no host of `spark://HOST:PORT[,HOST:PORT]` answers."""
    require_pyspark("Spark")
    if spark_java() is None:
        raise SparkError(
            "Spark needs Java, which was not found",
            expected="Java 17 or newer, by JAVA_HOME or on PATH",
            todo="Install it, or use --executor local, which needs none.",
        )
    master = options.spark_master
    if not master.startswith(_STANDALONE):
        return
    if problem := why_unreachable(master.removeprefix(_STANDALONE).split(","), _PORT):
        raise SparkError(
            "the Spark master cannot be reached",
            path=master,
            found=problem,
            todo="Check --master, and that the master runs. Nothing was changed.",
        )


def hadoop_conf(context: Any, path: str) -> dict[str, str]:
    """The Hadoop settings for the store of a URL, without Hadoop's own defaults. Empty for a path."""
    if not (names := names_at(path)):
        return {}
    conf = context._jsc.hadoopConfiguration()
    found = {name: str(value) for name in names if (value := conf.get(name)) is not None}
    return {n: v for n, v in found.items() if not set(conf.getPropertySources(n) or ()) <= {"core-default.xml"}}


_LEAN_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: the optimising compiler and a parallel collector cost more than they save."""
_LAST_LINES = 3
_stopping: threading.Thread | None = None
"""The thread that stops the process's last context; Spark allows one context at a time."""


def wait_until_stopped() -> None:
    """Waits for the end of the last context of this process, if one is being stopped."""
    if _stopping is not None:
        _stopping.join()


@spelled_class
@dataclass(frozen=True, slots=True)
class RunningSpark:
    """A Spark context that another program made and will stop, for example an ingest job."""

    running: Any

    def context(self) -> Any:
        """SparkError: the program has stopped it."""
        return living(self.running)


def living(context: Any) -> Any:
    """A Spark context. SparkError: it was stopped, or its workers on this machine run a Python that lacks phantombase,
    so that PySpark would fail with errors of its own."""
    if getattr(context, "_jsc", context) is None:
        raise SparkError("the session of Spark was stopped", todo="Make a new session, and the DataFrame again in it.")
    python = shutil.which(of := str(getattr(context, "pythonExec", sys.executable))) or of
    own = getattr(context, "_python_includes", None)  # files that the job has sent may be phantombase
    here = str(getattr(context, "master", "")).startswith("local") and not own
    if here and (problem := _worker_problem(python)):
        raise SparkError("the workers of Spark run another Python", path=python, found=problem, todo=PYTHON_OF_WORKERS)
    return context


def threads_of(context: Any) -> int:
    """How many tasks a Spark that is one process runs at a time, with the files of this machine; 0: its tasks may run
    elsewhere. Its default parallelism may be any number of the user's."""
    one = re.fullmatch(r"local(\[(\d*).*\])?", str(context.master))
    if one is None:
        return 0
    return int(one[2]) if one[2] else min(int(context.defaultParallelism), os.cpu_count() or 1)


PYTHON_OF_WORKERS = (
    "Set the environment variable PYSPARK_PYTHON to a Python that has phantombase, before the session of Spark starts: "
    'in a job os.environ["PYSPARK_PYTHON"] = sys.executable.'
)


@cache
def _worker_problem(python: str) -> str:
    """Why workers with this Python cannot run a job of this process; "": they can."""
    if os.path.dirname(os.path.abspath(python)) == os.path.dirname(os.path.abspath(sys.executable)):
        return ""
    asked, mine = "import sys; print('%d.%d' % sys.version_info[:2]); import pyarrow, phantombase", sys.version_info
    try:
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return reason_of(error)
    version = f"{mine.major}.{mine.minor}"
    if (found := done.stdout.strip()) != version:
        return f"version {found or 'unknown'}; this process has {version}"
    return without_classes(done.stderr.strip().rpartition("\n")[2]) if done.returncode else ""


class StartingSpark:
    """A Spark context that starts at once, in a thread of its own."""

    def __init__(self, options: ExecuteOptions) -> None:
        self._options = options
        self._context: Future[Any] = Future()
        self._unwanted = threading.Event()
        # Not a daemon thread: if everything is refused, the process must clean up before it ends.
        threading.Thread(target=self._start, name="spark-start").start()

    def context(self) -> Any:
        """Waits for the context; SparkError: Spark does not start."""
        with waiting(f"starting Spark at {self._options.spark_master}"):
            return self._context.result()

    def stop(self) -> None:
        """Ends the context, or its start, without waiting: PySpark idles a second. The JVM stops it at exit."""
        global _stopping
        self._unwanted.set()
        _stopping = threading.Thread(target=self._stop, name="spark-stop", daemon=True)
        _stopping.start()

    def _stop(self) -> None:
        if self._context.exception() is None and (context := self._context.result()) is not None:
            with suppress(Exception):  # its JVM has ended: any kind of error
                context.stop()

    def _start(self) -> None:
        wait_until_stopped()
        with tempfile.TemporaryFile() as log:  # the output of the JVM and the workers, kept off the terminal
            try:
                self._context.set_result(self._started(log))
            except Exception as error:
                output = without_classes(last_words(log))
                failure = SparkError(
                    "Spark did not start",
                    path=self._options.spark_master,
                    found=f"{without_classes(reason_of(error))}; the end of the JVM's output: {output}",
                    todo="Spark needs Java 17 or newer (JAVA_HOME or PATH), and a master that can be reached. "
                    "--executor local needs neither.",
                )
                failure.__cause__ = error
                self._context.set_exception(failure)

    def _started(self, log: IO[bytes]) -> Any:
        """The context; None if it was stopped before it had started."""
        from pyspark import SparkConf, SparkContext  # imported here: `--executor local` needs no JVM
        from pyspark.java_gateway import launch_gateway

        chosen, archive = chosen_settings(self._options), NO_ARCHIVE
        # Executors run the driver's own interpreter: workers would take the first `python3` of PATH otherwise.
        os.environ["PYSPARK_PYTHON"] = chosen.get("spark.pyspark.python", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LEAN_JVM)
        defaults = {
            "spark.app.name": "phantombase-compaction",
            "spark.driver.memory": self._options.driver_memory,
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        if not self._options.on_cluster:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            archive = class_archive()
            defaults |= {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.extraJavaOptions": f"{_LEAN_JVM} {archive.java_options}".strip(),
            }
        # On a cluster few settings are made here, because they override the cluster's own spark-defaults.conf.
        conf = SparkConf().setMaster(self._options.spark_master).setAll(list(chosen.items()))
        for key, value in defaults.items():
            conf.setIfMissing(key, value)
        gateway = None
        if SparkContext._gateway is None:  # the process's first context
            with archive:
                output = {"stdout": log, "stderr": log, "pass_fds": archive.passed}
                gateway = launch_gateway(conf, popen_kwargs=output)  # type: ignore[no-untyped-call]
            if self._unwanted.is_set():
                gateway.proc.kill()
                gateway.proc.wait()
                return None
        return SparkContext(gateway=gateway, conf=conf)


def chosen_settings(options: ExecuteOptions) -> dict[str, str]:
    """The settings of Spark for these options (pure). Spark itself requests executors while file slices wait: one after
    a second, then two, four, and so on. It releases idle executors. No data on them is needed afterwards, because these
    jobs have no shuffle."""
    settings: dict[str, str] = {}
    if options.executor_memory is not None:
        settings["spark.executor.memory"] = options.executor_memory
    if options.max_executors is not None:
        settings |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",  # no shuffle service is needed
            "spark.dynamicAllocation.maxExecutors": str(options.max_executors),
        }
    return settings | dict(options.spark_conf)


def last_words(log: IO[bytes]) -> str:
    """The end of what a JVM has written, in one line."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "... "))]  # without frames of stacks
    return " | ".join(lines[-_LAST_LINES:]) or "none"


def arrow_of_spark(schema: Any) -> pa.Schema:
    """The Arrow schema of the batches that Spark exchanges with Python; timestamps are in UTC.
    PySparkException: a type that Arrow does not have. UsageError: a record has two fields of one name, which PySpark
    before 4.0 does not check."""
    from pyspark.sql.pandas.types import to_arrow_schema

    asked: dict[str, Any] = {"error_on_duplicated_field_names_in_struct": True, "timezone": "UTC"}
    known = inspect.signature(to_arrow_schema).parameters
    found = to_arrow_schema(schema, **{name: value for name, value in asked.items() if name in known})
    for path, kind in _records(found):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if len(set(names)) < len(names):
            raise UsageError(
                "a record with two fields of one name",
                found=f"{path}: {', '.join(names)}",
                todo="Rename one of them in the DataFrame.",
            )
    return found


def _records(schema: pa.Schema) -> Iterator[tuple[str, pa.StructType]]:
    """All records of a schema, also those in lists and maps, with their paths."""
    import pyarrow as pa

    waiting = [(field.name, field.type) for field in schema]
    while waiting:
        path, kind = waiting.pop()
        if pa.types.is_struct(kind):
            yield path, kind
        waiting += [(f"{path}.{kind.field(i).name}", kind.field(i).type) for i in range(kind.num_fields)]
