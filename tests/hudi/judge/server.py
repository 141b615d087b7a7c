"""One Spark session with one version of real Hudi, driven by JSON lines. Runs in the judge's environment.

    python server.py '{"spark.master": ...}'        the argument is the whole Spark configuration

The first line out says that Spark is up: {"jars", "seconds"}. Then each line in, {"op", "options", ...}, gets
one line out: {"result", "seconds"} or {"error", "trace", "seconds"}. It ends at `exit` or at the end of its
input, and the JVM with it, so a client that dies leaves nothing behind. Spark's own output goes to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

MESSAGE_CHARS_MAX = 2000


def frame(spark: SparkSession, request: dict[str, Any]) -> DataFrame:
    """The rows Hudi reads from the table at `path`."""
    return spark.read.format("hudi").options(**request["options"]).load(request["path"])


def write(spark: SparkSession, request: dict[str, Any]) -> None:
    """Write the rows of the file `parquet`; with none, an empty frame, for operations that need no rows."""
    rows = spark.read.parquet(request["parquet"]) if request["parquet"] else spark.range(0)
    rows.write.format("hudi").options(**request["options"]).mode(request["mode"]).save(request["path"])


def overlap(spark: SparkSession, request: dict[str, Any]) -> None:
    """A write of `parquet` by a thread, and what happens between its request and its completion. That is another write,
    of the Parquet file `second`, or a statement, `text`."""
    go_on, known = Path(request["out"]), _requested(request["path"])

    def waiting(value: Any) -> Any:
        for _ in range(1200):
            if go_on.exists():
                return value
            time.sleep(0.05)
        raise TimeoutError("the second write did not complete")

    rows = spark.read.parquet(request["parquet"])
    name, kind = rows.schema[0].name, rows.schema[0].dataType
    slow = rows.withColumn(name, udf(waiting, kind)(name))

    def save(frame: DataFrame) -> None:
        frame.write.format("hudi").options(**request["options"]).mode("append").save(request["path"])

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(save, slow)
        try:
            while not first.done() and _requested(request["path"]) == known:
                time.sleep(0.05)
            if request["second"]:
                save(spark.read.parquet(request["second"]))
            else:
                sql(spark, request)
        finally:
            go_on.touch()
        first.result()


def _requested(path: str) -> set[Path]:
    return set(Path(path, ".hoodie").glob("**/*.deltacommit.requested"))


def read(spark: SparkSession, request: dict[str, Any]) -> None:
    """Read the table into the one Parquet file `out`."""
    out = Path(request["out"])
    parts = out.with_name(f"{out.name}.parts")
    frame(spark, request).coalesce(1).write.mode("overwrite").parquet(str(parts))
    (part,) = parts.glob("part-*.parquet")
    part.replace(out)
    shutil.rmtree(parts)


def stream(spark: SparkSession, request: dict[str, Any]) -> None:
    """Stream what is there, in Hudi's own batches, into the folder of Parquet files `out`."""
    source = spark.readStream.format("hudi").options(**request["options"]).load(request["path"])
    sink = source.writeStream.format("parquet").option("checkpointLocation", f"{request['out']}.checkpoint")
    sink.trigger(availableNow=True).start(request["out"]).awaitTermination()


def count(spark: SparkSession, request: dict[str, Any]) -> int:
    """The number of rows Hudi reads."""
    return frame(spark, request).count()


def select(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Rows of `columns` where `where` holds, both in SQL, and how many file slices were opened for them."""
    rows = frame(spark, request).where(request["where"]).selectExpr(*json.loads(request["columns"]))
    found = [list(row) for row in rows.collect()]
    leaves = rows._jdf.queryExecution().executedPlan().collectLeaves()
    metrics = [leaves.apply(number).metrics().get("numFiles") for number in range(leaves.size())]
    return {"rows": found, "files": sum(metric.get().value() for metric in metrics if metric.isDefined())}


def scan(spark: SparkSession, request: dict[str, Any]) -> None:
    """Read every column of every row on all cores and drop them: a read without a result to write."""
    frame(spark, request).write.format("noop").mode("overwrite").save()


def sql(spark: SparkSession, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one statement or procedure under the session settings of `options`, which hold for it only."""
    for key, value in request["options"].items():
        spark.conf.set(key, value)
    return [row.asDict(recursive=True) for row in spark.sql(request["text"]).collect()]


BESIDE, begun = ThreadPoolExecutor(1), list[Future[Any]]()


def later(spark: SparkSession, request: dict[str, Any]) -> int:
    """Begin a statement beside the next requests, in a session of its own; without one, begin none. How many have not
    ended; one that has failed says so now."""
    if request["text"]:
        begun.append(BESIDE.submit(lambda: sql(spark.newSession(), request)))
    for done in [future for future in begun if future.done()]:
        begun.remove(done)
        done.result()
    return len(begun)


OPERATIONS = {
    "write": write,
    "overlap": overlap,
    "read": read,
    "stream": stream,
    "count": count,
    "select": select,
    "scan": scan,
    "sql": sql,
    "later": later,
}


def failure(error: Exception) -> dict[str, str]:
    """The causes in Hudi's own words, outermost first, without py4j's wrapping; the trace has everything."""
    words: list[str] = []
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None and len(words) < 10:
        words.append(cause.toString().splitlines()[0])
        cause = cause.getCause()
    text = "\n  caused by ".join(words) or f"{type(error).__name__}: {error}"
    return {"error": text[:MESSAGE_CHARS_MAX], "trace": traceback.format_exc()}


def main() -> None:
    # Answers go to a private copy of stdout; what anybody else prints, the JVM included, goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(since: float, **fields: Any) -> None:
        fields["seconds"] = time.perf_counter() - since
        print(json.dumps(fields, default=str), file=answers, flush=True)

    started = time.perf_counter()
    builder = SparkSession.builder.appName("phantombase-judge")
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    answer(started, jars=spark.sparkContext.getConf().get("spark.jars", ""))

    # Hudi changes some settings of the session and leaves them so: behind a query for changes, 0.15 reads a float
    # widened to double by its bits, not by its decimal text, from base files of every table.
    settings = spark._jsparkSession.sessionState().conf().settings()
    first = spark._jvm.java.util.HashMap(settings)
    for line in sys.stdin:
        started = time.perf_counter()
        request = json.loads(line)
        if request["op"] == "exit":
            answer(started, result=None)
            break
        try:
            try:
                result = OPERATIONS[request["op"]](spark, request)
            finally:
                settings.clear()
                settings.putAll(first)
            answer(started, result=result)
        except Exception as error:
            answer(started, **failure(error))
    spark.stop()


if __name__ == "__main__":
    main()
