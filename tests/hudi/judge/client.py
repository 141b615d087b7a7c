"""Real Apache Hudi as a Python object: `with Judge("1.2.0") as judge: judge.upsert(path, rows)`.

Its writes are quiet: no metadata table, cleaning, archiving, inline compaction or upgrade of the table,
unless an option asks for it. Options are Hudi's own, and the later ones win:

    QUIET, what hoodie.properties says, the options given to `create` or `adopt` here, the method's own, `options`"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hudi.judge.environment import JudgeError
from tests.hudi.judge.session import Session
from tests.hudi.judge.table_files import TablePath, names, properties

__all__ = ["BRIEF", "INTERPRETED", "METADATA_TABLE", "QUIET", "Judge", "JudgeError", "Selected"]

Options: TypeAlias = Mapping[str, object]
Rows: TypeAlias = pa.Table | Path
"""Rows to write: a table, or a Parquet file that holds them."""

QUIET: Options = {
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
}
WRITER_KEYS = {
    "hoodie.table.name": "hoodie.table.name",
    "hoodie.table.version": "hoodie.write.table.version",
    "hoodie.table.recordkey.fields": "hoodie.datasource.write.recordkey.field",
    "hoodie.table.precombine.field": "hoodie.datasource.write.precombine.field",
    "hoodie.table.ordering.fields": "hoodie.datasource.write.precombine.field",
    "hoodie.table.partition.fields": "hoodie.datasource.write.partitionpath.field",
}
"""Entries of hoodie.properties, and the options by which a writer has to repeat them."""


METADATA_TABLE: Options = {"hoodie.metadata.enable": "true"}
"""Hudi's own default, which QUIET turns off: writes keep the metadata table, reads list and skip files by it."""

OPTIMISTIC: Options = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
}
"""Several writers of one process."""


BRIEF = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn512m -XX:MetaspaceSize=300m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""A JVM that spends little on making code fast: 42 s of CPU for some tens of requests, 71 s without (seen).

Room for young objects and for classes from the start saves a tenth of the rest: fewer garbage collections. The
bundles' thousands of classes are sound, and need not be proved so again.
"""
INTERPRETED: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Spark's plans as they are: to write and compile a class for each costs more than a few rows are worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """Rows a query found, and the number of file slices that it opened."""

    rows: list[tuple[Any, ...]]
    files: int


class Judge:
    """Real Hudi of one version on its own small Spark; close it, or use it in a `with`. `java_options`: of its JVM,
    `BRIEF` for one that lives for minutes; `more`, `variables`: see `Session`. `keeps_names`: no table at a path
    changes its columns, so one name in SQL serves for all calls."""

    def __init__(
        self,
        version: str,
        cores: int = 2,
        memory: str = "3g",
        *,
        java_options: str = "",
        more: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        keeps_names: bool = False,
    ) -> None:
        self.version = version
        self.session = Session(version, cores, memory, java_options, more, variables)
        self._numbers = itertools.count()
        self._names: dict[TablePath, str] | None = {} if keeps_names else None
        self._created_with: dict[TablePath, Options] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End Hudi's process. May be repeated."""
        self.session.close()

    @property
    def seconds(self) -> float:
        """What the last request took, measured beside Hudi; before the first, what Spark took to start."""
        return self.session.seconds

    # Anything: exactly these options, any statement, any read.

    def write(self, path: TablePath, rows: Rows | None, options: Options, mode: str = "append") -> None:
        """Write `rows` with exactly these options; `None` is an empty frame without the table's columns."""
        file = self._new_file() if isinstance(rows, pa.Table) else rows
        if isinstance(rows, pa.Table):
            pq.write_table(rows, file)
        parquet = None if file is None else str(file)
        self.session.ask("write", path=str(path), parquet=parquet, mode=mode, options=options)

    def read(
        self,
        path: TablePath,
        out: Path | None = None,
        *,
        query: str = "snapshot",
        as_of: str | None = None,
        options: Options | None = None,
    ) -> pa.Table:
        """What Hudi reads, also left in the file `out`. `query`: snapshot, read_optimized or incremental."""
        file = out or self._new_file()
        chosen = {"as.of.instant": as_of, **(options or {})} if as_of else options
        self.session.ask("read", path=str(path), out=str(file), options=_read_options(query, chosen))
        return pq.ParquetFile(file).read()

    def stream(self, path: TablePath, options: Options | None = None) -> pa.Table:
        """What Hudi's stream delivers from the beginning of the table, all its batches together."""
        folder = self._new_file().with_suffix("")
        started = {"hoodie.metadata.enable": "false", "hoodie.datasource.streaming.startOffset": "earliest"}
        self.session.ask("stream", path=str(path), out=str(folder), options={**started, **(options or {})})
        return pa.concat_tables([pq.ParquetFile(file).read() for file in sorted(folder.glob("*.parquet"))])

    def count(self, path: TablePath, *, query: str = "snapshot", options: Options | None = None) -> int:
        """The number of rows Hudi reads."""
        return int(self.session.ask("count", path=str(path), options=_read_options(query, options)))

    def select(
        self, path: TablePath, columns: Sequence[str], *, where: str = "true", options: Options | None = None
    ) -> Selected:
        """What a query finds; `columns` and `where` are expressions of SQL. Small results only: they come as JSON."""
        read = _read_options("snapshot", options)
        found = self.session.ask("select", path=str(path), columns=json.dumps(columns), where=where, options=read)
        return Selected(rows=[tuple(row) for row in found["rows"]], files=int(found["files"]))

    def scan(self, path: TablePath, *, query: str = "snapshot", options: Options | None = None) -> float:
        """Read all rows and columns on all cores, keep nothing, return the seconds: for benchmarks."""
        self.session.ask("scan", path=str(path), options=_read_options(query, options))
        return self.seconds

    def sql(self, text: str, options: Options | None = None) -> list[dict[str, Any]]:
        """Run one statement, with `options` as session settings for its time; its rows."""
        rows: list[dict[str, Any]] = self.session.ask("sql", text=text, options=options or {})
        return rows

    def later(self, text: str | None = None, options: Options | None = None) -> int:
        """Begin a statement beside the next calls, in a session of its own; how many of such have not ended."""
        return int(self.session.ask("later", text=text, options=options or {}))

    # Commits. All but `create` take name, version and fields from hoodie.properties.

    def create(
        self,
        path: TablePath,
        name: str,
        rows: Rows,
        *,
        version: int | None = None,
        partition_field: str | None = None,
        key: str = "id",
        ordering: str | None = "ts",
        operation: str = "upsert",
        options: Options | None = None,
    ) -> None:
        """Make a MERGE_ON_READ table by its first commit; several fields go comma separated. `version` is the table
        version, by default Hudi's newest. This Judge's later writes get `options` too."""
        fields = {
            "hoodie.table.name": name,
            "hoodie.datasource.write.table.type": "MERGE_ON_READ",
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.recordkey.field": key,
            "hoodie.datasource.write.precombine.field": ordering,
            "hoodie.datasource.write.partitionpath.field": partition_field,
            "hoodie.write.table.version": version,
        }
        said = {option: value for option, value in fields.items() if value is not None}
        self.write(path, rows, {**QUIET, **said, **(options or {})}, mode="errorifexists")
        self.adopt(path, options or {})

    def adopt(self, path: TablePath, options: Options) -> None:
        """This Judge's later writes of a table get these options, whoever makes it."""
        self._created_with[path] = options

    def upsert(self, path: TablePath, rows: Rows, options: Options | None = None) -> None:
        """Update by key and insert what is new."""
        self._commit(path, rows, "upsert", options)

    def overlap(self, path: Path, first: pa.Table, second: pa.Table, options: Options | None = None) -> None:
        """Two upserts of one process: `first` is requested before `second`, and completes after it."""
        file = self._new_file()
        pq.write_table(second, file)
        self._overlap(path, first, {**OPTIMISTIC, **(options or {})}, second=str(file), text=None)

    def upsert_around_plan(self, path: Path, rows: pa.Table, options: Options | None = None) -> str | None:
        """An upsert, and a compaction that is requested between its request and its completion: that one's instant."""
        before = _instants(path, "compaction.requested")
        chosen = {**OPTIMISTIC, "hoodie.compact.inline.max.delta.commits": 1, **(options or {})}
        text = self._call_text("run_compaction", path, op="schedule", options=_lock_options(chosen))
        self._overlap(path, rows, chosen, second=None, text=text)
        return max(_instants(path, "compaction.requested") - before, default=None)

    def _overlap(self, path: Path, first: pa.Table, options: Options, **other: str | None) -> None:
        file = self._new_file()
        pq.write_table(first, file)
        chosen = {**self._writer_options(path), "hoodie.datasource.write.operation": "upsert", **options}
        go_on = str(file.with_suffix(".go"))
        self.session.ask("overlap", path=str(path), parquet=str(file), out=go_on, options=chosen, **other)

    def insert(self, path: TablePath, rows: Rows, options: Options | None = None) -> None:
        """Insert without looking up keys."""
        self._commit(path, rows, "insert", options)

    def bulk_insert(self, path: TablePath, rows: Rows, options: Options | None = None) -> None:
        """Insert into new base files, whatever their size."""
        self._commit(path, rows, "bulk_insert", options)

    def delete(self, path: TablePath, rows: Rows, options: Options | None = None) -> None:
        """Delete by key; `rows` need the key, partition and ordering columns."""
        self._commit(path, rows, "delete", options)

    def insert_overwrite(self, path: TablePath, rows: Rows, options: Options | None = None) -> None:
        """Replace the partitions that `rows` belong to."""
        self._commit(path, rows, "insert_overwrite", options)

    def delete_partition(self, path: TablePath, *partitions: str, options: Options | None = None) -> None:
        """Replace whole partitions, named by their paths, by nothing."""
        named = {"hoodie.datasource.write.partitions.to.delete": ",".join(partitions)}
        self._commit(path, None, "delete_partition", {**named, **(options or {})})

    # Table services.

    def schedule_compaction(self, path: TablePath, options: Options | None = None) -> str | None:
        """Plan to compact every file group with logs and no plan; its instant, None if there is none."""
        before = _instants(path, "compaction.requested")
        # By default Hudi schedules nothing before five delta commits, and does not say so.
        at_once = {"hoodie.compact.inline.max.delta.commits": 1, **(options or {})}
        self._call("run_compaction", path, at_once, op="schedule", options=_lock_options(at_once))
        return max(_instants(path, "compaction.requested") - before, default=None)

    def run_compaction(self, path: TablePath, instant: str | None = None, options: Options | None = None) -> list[str]:
        """Execute one pending compaction, or all; the instants executed."""
        # With nothing pending Hudi would schedule one first, if there were enough delta commits.
        never = {"hoodie.compact.inline.max.delta.commits": 1_000_000, **(options or {})}
        # A number here, text in all other procedures; text fails deep inside with a ClassCastException.
        timestamp = None if instant is None else int(instant)
        rows = self._call("run_compaction", path, never, op="run", timestamp=timestamp, options=_lock_options(never))
        return sorted(str(row["timestamp"]) for row in rows)

    def expire(self, path: TablePath, *, days: int) -> None:
        """Delete partitions whose last write, as Hudi counts it, is older."""
        self._call("run_ttl", path, None, retain_days=days)

    def cluster(self, path: TablePath, options: Options | None = None) -> None:
        """Plan and execute a clustering. On a bucket index Hudi plans it, fails, and leaves it pending."""
        self._call("run_clustering", path, options, op="scheduleAndExecute")

    def plan_clustering(self, path: TablePath, options: Options | None = None) -> None:
        """Plan a clustering, and leave it pending."""
        self._call("run_clustering", path, options, op="schedule")

    def execute_clustering(self, path: TablePath, options: Options | None = None) -> None:
        """Execute the pending clusterings."""
        self._call("run_clustering", path, options, op="execute")

    def clean(self, path: TablePath, retain_commits: int = 1, options: Options | None = None) -> None:
        """Delete the files that only commits older than the newest `retain_commits` need."""
        self._call("run_clean", path, options, retain_commits=retain_commits)

    def clean_by_versions(self, path: TablePath, options: Options | None = None) -> None:
        """Delete all but the newest version of each file, and replaced file groups at once."""
        policy = "KEEP_LATEST_FILE_VERSIONS"
        self._call("run_clean", path, options, clean_policy=policy, file_versions_retained=1)

    def rollback(self, path: TablePath, instant: str, options: Options | None = None) -> None:
        """Roll back the newest commit. On version 6 only Hudi 0.15.0 can: 1.x lists the wrong folder."""
        self._call("rollback_to_instant", path, options, instant_time=instant)

    def savepoint(self, path: TablePath, instant: str | None = None, options: Options | None = None) -> str | None:
        """Protect the files of a commit, by default the newest, from cleaning; the instant, None if it has one."""
        before = _instants(path, "savepoint.inflight")
        self._call("create_savepoint", path, options, commit_time=instant)
        return max(_instants(path, "savepoint.inflight") - before, default=None)

    def restore(self, path: TablePath, savepoint: str, options: Options | None = None) -> None:
        """Take the table back to a savepoint: whatever came after it is removed."""
        self._call("rollback_to_savepoint", path, options, instant_time=savepoint)

    def delete_savepoint(self, path: TablePath, savepoint: str, options: Options | None = None) -> None:
        """Let the files of a savepoint be cleaned, and the timeline be archived past it."""
        self._call("delete_savepoint", path, options, instant_time=savepoint)

    def archive(self, path: TablePath, keep: tuple[int, int] = (2, 3), options: Options | None = None) -> None:
        """Archive the timeline down to `keep` (fewest, most) commits, as far as it has been cleaned."""
        fewest, most = keep
        self._call("archive_commits", path, options, min_commits=fewest, max_commits=most, retain_commits=1)

    # The metadata table.

    def listed_files(self, path: TablePath) -> dict[str, int]:
        """Size in bytes of each data file the metadata table lists, by its path below the table. The procedure's name
        promises to compare with storage, but both of its listings come from the metadata table."""
        rows = self._call("validate_metadata_table_files", path, None, verbose=True)
        return {"/".join(filter(None, (row["partition"], row["file_name"]))): row["metadata_size"] for row in rows}

    def _commit(self, path: TablePath, rows: Rows | None, operation: str, options: Options | None) -> None:
        operate = {"hoodie.datasource.write.operation": operation}
        self.write(path, rows, {**self._writer_options(path), **operate, **(options or {})})

    def _call(
        self, procedure: str, path: TablePath, settings: Options | None, **arguments: object
    ) -> list[dict[str, Any]]:
        """Call one of Hudi's procedures with a writer's options. Most procedures know tables by name only, and a name
        is bound to the schema it was made with: each call makes its own, or `keeps_names`. All take session settings,
        which may hold commas, unlike their own `options`."""
        text = self._call_text(procedure, path, **arguments)
        return self.sql(text, {**self._writer_options(path), **(settings or {})})

    def _call_text(self, procedure: str, path: TablePath, **arguments: object) -> str:
        name = self._names.get(path) if self._names is not None else None
        if name is None:
            name = f"judge_{next(self._numbers)}"
            self.sql(f"create table {name} using hudi location '{path}'")
        if self._names is not None:
            self._names[path] = name
        given = {"table": name, **{key: value for key, value in arguments.items() if value is not None}}
        text = ", ".join(f"{key} => {value!r}" for key, value in given.items())
        return f"call {procedure}({text})"

    def _writer_options(self, path: TablePath) -> Options:
        there = properties(path)
        said = {option: there[key] for key, option in WRITER_KEYS.items() if there.get(key)}
        return {**QUIET, **said, **self._created_with.get(path, {})}

    def _new_file(self) -> Path:
        return self.session.scratch / f"{next(self._numbers)}.parquet"


def _read_options(query: str, options: Options | None) -> Options:
    return {"hoodie.metadata.enable": "false", "hoodie.datasource.query.type": query, **(options or {})}


def _instants(path: TablePath, ending: str) -> set[str]:
    """The instants that have a file of that action and state and are not archived, under either timeline layout."""
    found = itertools.chain.from_iterable(names(path, folder) for folder in (".hoodie", ".hoodie/timeline"))
    return {name.split(".")[0] for name in found if name.endswith(f".{ending}")}


def _lock_options(options: Options) -> str | None:
    """Those of the lock: a compaction takes them from its own `options` only, and a default of the disk otherwise."""
    lock = [f"{name}={value}" for name, value in options.items() if name.startswith("hoodie.write.lock.")]
    return ",".join(lock) or None
