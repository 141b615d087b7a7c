"""What Spark needs, checked before anything is changed: Java, and a master that answers."""

from __future__ import annotations

from phantombase.timeline.errors import SparkError
from phantombase.timeline.reachable import why_unreachable

from ..jvm_archive import spark_java
from ..options import ExecuteOptions

_STANDALONE = "spark://"
_PORT = 7077


def check_spark(options: ExecuteOptions) -> None:
    """SparkError: there is no Java, or no host of a standalone master (`spark://HOST:PORT[,HOST:PORT]`) answers."""
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
