"""What a user gets wrong: one clear line, the right exit code, no trace in the table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial
from inspect import Parameter, isfunction, signature
from pathlib import Path
from traceback import format_exception
from types import SimpleNamespace
from typing import Any, Protocol

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

import phantombase
from phantombase import (
    AsyncCompaction,
    CleanOptions,
    ExecuteOptions,
    Limit,
    LocalRunner,
    NotATableError,
    PartitionTtlOptions,
    PhantombaseError,
    PinOptions,
    RunningSpark,
    SparkError,
    SparkRunner,
    SyncOptions,
    UnsupportedError,
    UsageError,
    Writer,
    cancel,
    compact,
    erase,
    pause,
    read,
    schedule,
    spark_read,
    status,
    writer,
)
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.dashboard.compactions import plan_facts
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.table.in_progress import exclusive
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.boundary import run
from tests.support.compaction_steps import AS_A_USER, as_a_user
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT, traces

_REFUSED = "127.0.0.1:1"


class Fails(Protocol):
    """The one line that a command prints, which must fail."""

    def __call__(self, *args: str | Path, code: int = 1) -> str: ...


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """In this process."""

    def command(*args: str | Path, code: int = 1) -> str:
        with pytest.raises(SystemExit) as ended:
            run(app, [str(arg) for arg in args])
        printed = capsys.readouterr()
        return _line(ended.value.code, printed.out, printed.err, code)

    return command


def fails_as_a_process(*args: str | Path, code: int = 1) -> str:
    """See `Fails`; as a user who is not root."""
    command = [*AS_A_USER, sys.executable, "-m", "phantombase.compactor_daemon.cli.main", *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return _line(done.returncode, done.stdout, done.stderr, code)


def _line(code: object, out: str, err: str, expected: int) -> str:
    lines = [line for line in err.splitlines() if "[info " not in line]
    assert (code, out, len(lines)) == (expected, "", 1), err
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a pending compaction."""
    return unzip_golden("v9_pending", tmp_path_factory.mktemp("mistakes"))


@pytest.mark.parametrize(
    "args", [("compact",), ("compact", "--schedule", "--sole-writer"), ("status",), ("run", "--once")], ids=" ".join
)
def test_a_wrong_path(args: tuple[str, ...], fails: Fails, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "table"
    ways = [fails, fails_as_a_process] if args == ("compact",) else [fails]
    for way in ways:
        line = way(args[0], missing, *args[1:])
        assert f"no such folder; at {missing}; expected the base path of a Hudi table" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["compact", "schedule", "run"])
def test_a_copy_on_write_table(command: str, fails: Fails, tmp_path: Path) -> None:
    path = unzip_golden("v6_plain", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("MERGE_ON_READ", "COPY_ON_WRITE"))
    before = traces(path)
    given = {"compact": ("--schedule", "--sole-writer"), "schedule": ("--sole-writer",), "run": ("--once",)}[command]
    assert "COPY_ON_WRITE" in (line := fails(command, path, *given))
    assert str(path) in line
    for at in (path, Table.open(path, reading=True)):
        with pytest.raises(UnsupportedError, match="COPY_ON_WRITE"):
            status(at)
    assert traces(path) == before


IMPOSSIBLE = (
    ("hoodie.table.version=99", "unsupported table version", "Keep tables on version 9"),
    (f"hoodie.table.version={'9' * 5000}", "impossible table property", "Restore hoodie.properties"),
    ("hoodie.timeline.path=../..", "impossible table property", "Restore hoodie.properties"),
    ("hoodie.timeline.history.path=../..", "impossible table property", "Restore hoodie.properties"),
)


def test_a_table_that_cannot_be(fails: Fails, tmp_path: Path) -> None:
    """Each error names the table, and a way out that does not meet the same error."""
    path = unzip_golden("v9_pending", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    usual = properties.read_text()
    for line, what, todo in IMPOSSIBLE:
        properties.write_text(f"{usual}\n{line}\n")
        said = fails("compact", path)
        assert f"error: {what}; at {properties};" in said
        assert todo in said
    properties.write_text(usual)
    shutil.rmtree(path / ".hoodie/timeline")
    assert f"at {path}/.hoodie/timeline. Restore the folder" in fails("compact", path)
    said = fails("compact", properties)
    assert "a file lies where a folder is expected" in said
    assert "Check the path" in said
    empty = tmp_path / "empty"
    (empty / ".hoodie/timeline").mkdir(parents=True)
    (empty / ".hoodie/hoodie.properties").write_text(usual)
    said = fails("savepoint", "create", empty, "--sole-writer", code=2)
    assert f"at {empty}; found no write at all" in said
    with pytest.raises(UsageError, match=f"not a compaction; at {empty}; instant 2026"):
        plan_facts(Table.open(str(empty)), "20260101000000000")


@pytest.mark.parametrize(("hosts", "why"), [("nohost.invalid:2181", "unknown host"), (_REFUSED, "connection refused")])
def test_a_wrong_host_of_the_lock(hosts: str, why: str, fails: Fails, table: Path) -> None:
    """Before anything is merged."""
    before = traces(table)
    for command in ("compact", "schedule"):
        assert f"{hosts}: {why}" in fails(command, table, "--lock", f"zookeeper:{hosts}/locks/t")
    assert traces(table) == before


@pytest.mark.deep
def test_a_wrong_host_of_the_fleet(fails: Fails, table: Path) -> None:
    """The servers are named, with why each cannot be reached."""
    before = traces(table)
    assert f"{_REFUSED}: connection refused" in fails("run", table, "--once", "--zookeeper", _REFUSED)
    assert traces(table) == before


@pytest.mark.parametrize("given", [(), ("--schedule", "--sole-writer")], ids=["compact", "compact --schedule"])
def test_a_wrong_master(given: tuple[str, ...], fails: Fails, table: Path) -> None:
    before = traces(table)
    line = fails("compact", table, *given, "--master", f"spark://{_REFUSED}")
    assert f"spark://{_REFUSED}" in line
    assert "connection refused" in line
    assert traces(table) == before


def test_no_java(fails: Fails, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that offers what needs none."""
    before = traces(table)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    line = fails("compact", table, "--executor", "spark")
    assert "Java 17" in line
    assert "--executor local" in line
    assert traces(table) == before


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("compact", "--exectuor", "local"), "--executor"),
        (("compcat",), "compact"),
        (("compact", "--executor", "flink"), "auto"),
        (("schedule", "--target-io", "5x", "--dry-run"), "not a size for --target-io"),
        (("compact", "--lock", "foo"), "zookeeper:"),
        (("schedule",), "--sole-writer"),
        (("pause", "--reason", "x", "--for", "9999999d"), "an end before the year 10000"),
        (("cluster", "--sort-order", "hilbert", "--dry-run"), "sort-by"),
        (("clean", "--dry-run", "--sole-writer", "--lock", "storage"), "one of --lock and --sole-writer"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, tuple) else "",
)
def test_a_typo(args: tuple[str, ...], what: str, fails: Fails, table: Path) -> None:
    before = traces(table)
    assert what in fails(args[0], table, *args[1:], code=2)
    assert traces(table) == before


PLACES: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("status", "file:t"), 2, "not a local path"),
    (("status", "~/t"), 1, "no such folder"),
    (("status", "delta"), 1, "found a Delta table"),
    (("schedule", "delta", "--sole-writer"), 1, "found a Delta table"),
    (("compact", "iceberg"), 1, "found an Iceberg table"),
    (("compact", "version4"), 1, "unsupported table version"),
    (("schedule", "version4", "--sole-writer"), 1, "expected 6, 8 or 9; found 4. Upgrade the table with Hudi"),
    (("schedule", "ours", "--lock", "file:/nowhere/l"), 1, "its folder does not exist"),
    (("schedule", "ours", "--lock", "file:lock"), 2, "relative path"),
)


def test_places_of_a_newcomer(fails: Fails, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another kind, or of another version, and locks that nobody shares: one line, and nothing is left there."""
    for at in (tmp_path / "ours", tmp_path / "version4"):
        shutil.copytree(table, at)
    properties = tmp_path / "version4/.hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("hoodie.table.version=9", "hoodie.table.version=4"))
    for file in ("delta/_delta_log/0.json", "iceberg/metadata/v1.metadata.json"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("{}")
    monkeypatch.chdir(tmp_path)
    before = traces(tmp_path)
    for args, code, what in PLACES:
        assert what in fails(*args, code=code)
    for other in ("delta", "iceberg", "delta/x"):
        with pytest.raises(UsageError, match="a table cannot be made here"):
            writer(TRIPS).table("t").key("id").upsert(other)
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file/t", Path("/proc/t")):
        for call in (read, status, writer(TRIPS).table("t").key("id").upsert):
            with pytest.raises(PhantombaseError, match=rf"{place}.*(Check the path|base path|takes folders)") as raised:
                call(place)
            assert "".join(format_exception(raised.value)).count("Traceback (most") == 1
    (tmp_path / "file").unlink()
    assert traces(tmp_path) == before


NO_SERVER: tuple[tuple[tuple[str, ...], str], ...] = (
    (("sync", "--to", "hive:127.0.0.1:99999"), "not a Hive Metastore"),
    (("sync", "--to", "hive:127.0.0.1:0"), "not a Hive Metastore"),
    (("sync", "--to", "glue:eu-west-1@http://127.0.0.1:99999"), "not a catalog of AWS Glue"),
    (("run", "--once", "--services", "sync", "--sync-to", "junk", "--sole-writer"), "unknown kind of catalog"),
    (("maintain", "--sync-to", "hive:", "--sole-writer"), "not a Hive Metastore"),
    (("schedule", "--lock", "zookeeper:127.0.0.1:99999/a/b"), "impossible settings of a ZooKeeper lock"),
    (("compact", "--master", "local[0]"), "not a Spark master"),
)


def test_what_is_no_server(fails: Fails, table: Path) -> None:
    """Before anything begins, also where a daemon would try it again and again."""
    before = traces(table)
    for args, what in NO_SERVER:
        assert what in fails(args[0], table, *args[1:], code=2)
    assert traces(table) == before


_ROWS = pa.table({"id": ["a"], "ts": [1]})
IN_PYTHON: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (lambda _: writer(_ROWS).option(retry=3), r"no such option; found retry\. Did you mean retries\?"),
    (lambda _: writer(_ROWS).schedule(max_delta_commit=3), r"Did you mean max_delta_commits\?"),
    (lambda _: writer(_ROWS).compact_inline(max_delta_commit=3), r"Did you mean max_delta_commits\?"),
    (lambda _: writer(_ROWS).clean(retains=3), r"CleanOptions has no such option.*Did you mean retain\?"),
    (lambda _: writer(_ROWS).cluster(taget_size=3), r"Did you mean target_size\?"),
    (lambda _: writer(_ROWS).archive(min_instant=3), r"Did you mean min_instants\?"),
    (lambda _: writer(_ROWS).sync("hive:a:1", databse="x"), r"Did you mean database\?"),
    (lambda _: writer(_ROWS).back_pressure(stop=3), "expected action, slow_s, slow_trigger, stop_trigger, wait_s"),
    (lambda _: writer(_ROWS).table("t", versions=9), r"table has no such option.*Did you mean version\?"),  # type: ignore[call-arg]
    (lambda path: writer(_ROWS).table("t", version="nine").key("id").upsert(path), "not a value of version"),  # type: ignore[arg-type]
    (lambda _: writer(_ROWS).config(Path("/nowhere.toml")), "at /nowhere.toml"),
    (lambda _: writer(_ROWS).conf(None), "not a dictionary of configurations"),  # type: ignore[arg-type]
    (lambda _: writer(_ROWS).buckets("one"), "not a value of count of buckets; expected a whole number"),  # type: ignore[arg-type]
    (lambda path: writer(_ROWS).foreach_batch(path, operation="upser"), "expected UPSERT"),
    (lambda _: writer(_ROWS).upsert(None), "not a path.*found None"),  # type: ignore[arg-type]
    (lambda path: read(path, colums=["id"]), r"read has no such option.*Did you mean columns\?"),  # type: ignore[call-arg]
    (lambda path: read(path, filter="_hoodie_file_name = north").to_arrow(), r"Write a text in quotes: 'north'"),
    (lambda path: read(path, query="snap"), "expected snapshot"),
    (lambda _: read(3), "not a path; expected a text, or a path of pathlib; found 3"),  # type: ignore[arg-type]
    (lambda path: erase(path), "missing a required argument: 'keys'"),  # type: ignore[call-arg]
    (lambda path: schedule(path, sole_writers=True), r"Did you mean sole_writer\?"),  # type: ignore[call-arg]
    (lambda path: compact(path, exectue=None), r"Did you mean execute\?"),  # type: ignore[call-arg]
    (lambda path: compact(path, output="x"), "not a value of output of compact; at .*expected OutputOptions"),  # type: ignore[arg-type]
    (lambda path: schedule(path, CleanOptions()), "not a value of options of schedule; at .*expected ScheduleOptions"),  # type: ignore[arg-type]
    (lambda path: schedule(path, lock=5), "not a value of lock of schedule; at .*expected a text; found 5"),  # type: ignore[arg-type]
    (lambda path: schedule(path, lock="zk:a:1/b", dry_run=True), "unknown lock provider; at .*found zk:a:1/b"),
    (lambda path: schedule(path, sole_writer="no"), "sole_writer of schedule; at .*expected True"),  # type: ignore[arg-type]
    (lambda path: pause(path, "x", until="2030-01-01"), "not a value of until of pause; at .*expected a datetime"),  # type: ignore[arg-type]
    (lambda path: pause(path, "x", services=[1]), "nothing that can be paused.*found 1"),  # type: ignore[list-item]
    (lambda path: cancel(path, None), "not a value of instant of cancel; at .*expected a text; found None"),  # type: ignore[arg-type]
    (lambda path: read(""), "not a path"),
    (lambda path: read(path, storage_options=[1]), "a dictionary, like"),  # type: ignore[arg-type]
    (lambda path: read(path, storage_options={"regoin": "x"}), "Did you mean region"),
    (lambda path: read(path, filter=3).to_arrow(), "not a filter"),  # type: ignore[arg-type]
    (lambda path: read(path).to_duckdb("x"), "not a connection of DuckDB"),  # type: ignore[arg-type]
    (lambda path: pause(path, "x", services=3), "not services"),  # type: ignore[arg-type]
    (lambda path: spark_read(None, path), "not a session of Spark"),  # type: ignore[arg-type]
    (lambda _: Limit("x"), "not a value of seconds"),  # type: ignore[arg-type]
    (lambda _: LocalRunner(0), "a whole number above 0"),
    (lambda path: AsyncCompaction(path, "x"), "not a runner"),  # type: ignore[arg-type]
    (lambda _: PinOptions(name="a/b", for_s=60), "name"),
    (lambda _: PinOptions(name="a", for_s=-1), "at least 1"),
    (lambda path: writer().foreach_batch(path)(_ROWS, "one"), "not the number of a batch"),  # type: ignore[arg-type]
    (lambda _: ExecuteOptions(master="locl"), "not a Spark master"),
    (lambda path: writer(_ROWS).conf({"hoodie.compact.inline": "maybe"}).upsert(path), "expected true or false"),
)
"""A call, and what its UsageError says."""


def test_a_mistake_in_python(table: Path) -> None:
    """No error of Python itself, one traceback, and nothing in the table."""
    before = traces(table)
    for call, what in IN_PYTHON:
        with pytest.raises(UsageError, match=what) as raised:
            call(table)
        assert "".join(format_exception(raised.value)).count("Traceback (most") == 1, what
    assert traces(table) == before


TRIPS = pa.table({"id": ["a", "b"], "zone": ["n", "s"], "ts": [1, 2], "fare": [1.0, 2.0]})


def _with(name: str, values: Any) -> pa.Table:
    """The rows with another column of this name."""
    where = TRIPS.schema.get_field_index(name)
    return TRIPS.append_column(name, values) if where < 0 else TRIPS.set_column(where, name, values)


def _broken() -> Iterator[pa.RecordBatch]:
    yield TRIPS.to_batches()[0]
    raise ValueError("it broke")


def _closed_relation() -> object:
    with duckdb.connect() as connection:
        return connection.sql("SELECT 'a' AS id")


WRONG_ROWS: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: TRIPS.rename_columns(["ID", "zone", "ts", "fare"]), "lack columns.*at .*expected id.*rename ID to id"),
    (lambda: TRIPS.rename_columns(["id", "zone", "tss", "fare"]), "expected ts;.*rename tss to ts"),
    (lambda: TRIPS.append_column("ID", TRIPS["id"]), "names are the same, ignoring case"),
    (lambda: TRIPS.append_column("fare", TRIPS["fare"]), "two columns"),
    (lambda: TRIPS.drop(["zone"]), "expected zone"),
    (lambda: TRIPS.drop(["ts"]), "expected ts"),
    (lambda: pa.table({}), "found no columns"),
    (lambda: _with("id", pa.array(["a", None])), "rows without a record key.*1 of 2"),
    (lambda: _with("id", pa.array(["a", ""])), "rows without a record key"),
    (lambda: _with("ts", pa.array([1, None])), "rows without an ordering value"),
    (lambda: _with("ts", pa.array([{"a": 1}] * 2)), "ts: .*struct<a: int64>"),
    (lambda: _with("id", pa.array([["a"]] * 2)), "id: .*list<element: string>"),
    (lambda: _with("zone", pa.array(["../x", "s"])), "not paths inside the table"),
    (lambda: _with("zone", pa.array(["x" * 300, "s"])), "too long for a folder"),
    (lambda: _with("x", pa.array([1, 2], pa.uint64())), "no column can have this type.*x: uint64"),
    (lambda: _with("x", pa.array([1, 2], pa.duration("s"))), "x: duration"),
    (lambda: _with("x", pa.array([1, 2], pa.timestamp("ns"))), "do not fit|does not fit|no column"),
    (lambda: _with("x", pa.array([[(1, 2)], []], pa.map_(pa.int32(), pa.int32()))), "maps need text keys"),
    (lambda: _with("a b", TRIPS["fare"]), "not a column name that Avro allows"),
    (lambda: _with("", TRIPS["fare"]), "not a column name"),
    (lambda: pandas.DataFrame({"id": ["a", 1], "zone": "n", "ts": 1}), "cannot be read as Arrow; found pandas"),
    (lambda: pandas.Series([1]), "not rows"),
    (lambda: pandas.DataFrame, "not rows"),
    (lambda: polars.DataFrame({"id": ["a"]}).lazy(), "Collect it first"),
    (lambda: polars.DataFrame({"id": ["a"], "x": polars.Series([object()], dtype=polars.Object)}), "Python objects"),
    (lambda: polars.Series("id", ["a"]), "cannot be read as Arrow"),
    (_closed_relation, "Connection has already been closed"),
    (lambda: pa.RecordBatchReader.from_batches(TRIPS.schema, _broken()), "RecordBatchReader: .*it broke. "),
    (lambda: [{"id": "a"}], "not rows.*found list. Of a list of dictionaries"),
    (lambda: "trips.parquet", "not rows"),
)
"""Rows, and what the one line about them says."""


def test_rows_that_cannot_be_written(tmp_path: Path) -> None:
    """No table is made for them, and one that is there stays as it is."""
    there, new = tmp_path / "there", tmp_path / "new"

    def write(rows: Any, path: Path) -> None:
        writer(rows).table("t").key("id").partition("zone").ordering("ts").upsert(path)

    write(TRIPS, there)
    before = traces(tmp_path)
    for rows, what in WRONG_ROWS:
        for path in (new, there):
            with pytest.raises((UsageError, UnsupportedError), match=what) as raised:
                write(rows(), path)
            assert "\n" not in str(raised.value)
            assert "Traceback" not in str(raised.value)
            of_users_code = "it broke" in what
            assert of_users_code or "".join(format_exception(raised.value)).count("Traceback (most") == 1, what
    assert traces(tmp_path) == before


def test_a_table_that_went_away(tmp_path: Path) -> None:
    """While it is read, or between the description and the read."""
    writer(TRIPS).table("t").key("id").upsert(tmp_path / "t")
    rows, batches = read(tmp_path / "t"), read(tmp_path / "t").batches()
    shutil.rmtree(tmp_path / "t")
    uses = (list, len, lambda of: of.to_arrow(), lambda of: of.to_polars(), lambda of: of.to_pandas())
    for use in (*uses, lambda _: list(batches)):
        with pytest.raises(PhantombaseError, match=str(tmp_path / "t")):
            use(rows)
    assert not list(tmp_path.iterdir())


def test_no_call_makes_the_folder_of_a_table_again_that_went_away(table: Path, tmp_path: Path) -> None:
    """Neither given the table nor its path; nor does a section of a daemon, which has had it open for long."""
    calls = [one for name in phantombase.__all__ if isfunction(one := getattr(phantombase, name))]
    of_tables = [one for one in calls if {"table", "tables"} & signature(one).parameters.keys()]
    gone = Table.open(shutil.copytree(table, tmp_path / "gone"))
    shutil.rmtree(tmp_path / "gone")
    for call in of_tables:
        form = signature(call).parameters
        needed = {
            name: value for name, value in _GIVEN.items() if name in form and form[name].default is Parameter.empty
        }
        if call is phantombase.partition_ttl:
            needed["options"] = PartitionTtlOptions(days_retain=1)
        given = needed | ({"sole_writer": True} if "sole_writer" in form else {})
        for at in (gone, tmp_path / "gone"):
            if call is not phantombase.check and not (at is gone and "AnyTable" not in str(next(iter(form.values())))):
                with pytest.raises(NotATableError, match=str(tmp_path)):
                    call(at, **given)
    with pytest.raises(NotATableError), exclusive(gone, table_lock(gone.storage, None), "test it"):
        pass
    assert len(of_tables) > 25
    assert not list(tmp_path.iterdir())


def test_a_session_of_spark_that_was_stopped(table: Path, tmp_path: Path) -> None:
    """As PySpark leaves it; no error of its own."""
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    frame = SimpleNamespace(mapInArrow=None, _jdf=None, sparkSession=session)
    uses = (
        lambda: writer(frame).table("t").key("id").upsert(tmp_path / "new"),
        lambda: spark_read(session, table),  # type: ignore[arg-type]
        RunningSpark(session.sparkContext).context,
    )
    for use in uses:
        with pytest.raises(SparkError, match=r"the session of Spark was stopped.*Make a new session"):
            use()
    assert not list(tmp_path.iterdir())


def test_workers_of_spark_with_another_python(table: Path, tmp_path: Path) -> None:
    """One error names the variable, before Spark's hundred lines."""
    before = traces(table)
    for number, (says, what) in enumerate((("echo 3.1", "version 3.1"), ("exit 1", "version unknown"))):
        (python := tmp_path / f"python{number}").write_text(f"#!/bin/sh\n{says}\n")
        python.chmod(0o755)
        context = SimpleNamespace(_jsc=1, master="local[2]", pythonExec=str(python))
        frame = SimpleNamespace(mapInArrow=None, _jdf=None, sparkSession=SimpleNamespace(sparkContext=context))
        with pytest.raises(SparkError, match=f"another Python; at {python}; found {what}.*PYSPARK_PYTHON"):
            writer(frame).upsert(table)
    assert traces(table) == before


_ODD = (None, -1, float("nan"), 10**30, "\0", b"x", ["x"], [1], {1: 2}, object(), int)
_GIVEN = {"instant": "20260101000000000", "keys": ["a"], "options": SyncOptions(to="hive:127.0.0.1:1"), "reason": "x"}
_MADE = (AsyncCompaction, Limit, LocalRunner, RunningSpark, SparkRunner)


def _odd_calls(call: Callable[..., Any], given: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """With each option of another kind, with one that is unknown, and with too many."""
    form = signature(call)
    for one in form.parameters.values():
        for odd in _ODD:
            if one.kind is Parameter.VAR_POSITIONAL:
                yield partial(call, odd)
            elif one.kind is not Parameter.VAR_KEYWORD:
                yield partial(call, **{**given, one.name: odd})
    many = any(one.kind is Parameter.VAR_POSITIONAL for one in form.parameters.values())
    yield from (partial(call, **given, unknown=1), *(() if many else (partial(call, *_ODD),)))


def _odd_kinds(path: Path) -> Iterator[Callable[[], Any]]:
    """Of classes that users make, and of what describes a write."""
    found = [getattr(phantombase, name) for name in phantombase.__all__]
    for one in found:
        if isinstance(one, type) and (one in _MADE or (is_dataclass(one) and one.__name__.endswith("Options"))):
            given = {"path": str(path), "runner": LocalRunner(1)} if one is AsyncCompaction else {}
            needs = {"to": "hive:127.0.0.1:1"} if one is SyncOptions else {"name": "a", "for_s": 60}
            yield from _odd_calls(one, needs if one in (SyncOptions, PinOptions) else given)
    for name, method in vars(Writer).items():
        if isfunction(method) and not name.startswith("_"):
            needed = {"path": path, "place": path, "name": "t", "kind": "SIMPLE", "to": "hive:127.0.0.1:1", "count": 1}
            form = signature(method).parameters.values()
            given = {one.name: needed.get(one.name) for one in form if one.default is Parameter.empty}
            known = {name: value for name, value in given.items() if value is not None}
            yield from _odd_calls(getattr(writer(_ROWS).table("t").key("id"), name), known)


def _odd_verbs(path: Path) -> Iterator[Callable[[], Any]]:
    """Of all that is done to a table."""
    for call in (one for name in phantombase.__all__ if isfunction(one := getattr(phantombase, name))):
        form = signature(call).parameters
        given = {"table": path, "path": path, **_GIVEN, **({"dry_run": True} if "dry_run" in form else {})}
        needed = {one for one in form if form[one].default is Parameter.empty or one == "dry_run"} - {"tables"}
        yield from _odd_calls(call, {name: value for name, value in given.items() if name in needed})


@pytest.mark.parametrize("calls", [_odd_kinds, _odd_verbs])
def test_no_odd_value_ends_in_an_error_of_python(
    calls: Callable[[Path], Iterator[Callable[[], Any]]], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken, or an error of the tree says in one line what is wrong."""
    shutil.copytree(table, tmp_path / "table")
    monkeypatch.chdir(tmp_path)
    left = []
    for call in calls(tmp_path / "table"):
        try:
            call()
        except Exception as error:
            if not isinstance(error, PhantombaseError) or "\n" in str(error):
                left.append((call, repr(error)))
    assert left == []


NO_EFFECT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("compact", "--property", "junk"), "expected NAME=VALUE"),
    (("compact", "--executor", "spark", "--driver-memory", "junk"), "not a size for driver-memory"),
    (("metadata", "--create", "--indexes", "", "--sole-writer"), "no index is named"),
    (("compact", "--threads", "1_0"), "not a value of --threads"),
    (("run", "--once", "--poll-interval", "nan"), "not a value of --poll-interval"),
    (("status", "--slo", "1_0"), "--slo"),
    (("compact", "--executor", "local", "--master", "local[2]", "--dry-run"), "--master means nothing here"),
    (("compact", "--executor", "local", "--spark-conf", "spark.a=b"), "--spark-conf means nothing here"),
    (("compact", "--executor", "spark", "--threads", "99"), "--threads means nothing here"),
    (("cluster", "--executor", "spark", "--threads", "99"), "--threads means nothing here"),
    (("cluster", "--memory-limit", "9000g", "--sole-writer"), "the memory limit of one file slice is more than"),
    (("compact", "--sole-writer", "--lock", "storage"), "one of --lock and --sole-writer"),
    (("run", "--once", "--executor", "local", "--driver-memory", "2g"), "--driver-memory means nothing here"),
    (("run", "--once", "--services", "clean", "--sole-writer", "--services-interval", "9"), "--services-interval"),
    (("run", "--once", "--zookeeper", _REFUSED, "--zookeeper-dir", "/tmp"), "--zookeeper-dir"),
    (("status", "--brief", "--max-delta-commits", "9"), "--max-delta-commits means nothing"),
    (("status", "--root", ""), "--root or --catalog is empty"),
)


def test_an_option_without_effect(fails: Fails, table: Path) -> None:
    before = traces(table)
    for args, what in NO_EFFECT:
        assert what in fails(args[0], table, *args[1:], code=2)
    assert traces(table) == before


def test_a_variable_for_another_executor_is_no_mistake(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names it, and the work is done."""
    shutil.copytree(table, tmp_path / "table")
    monkeypatch.setenv("PHANTOMBASE_EXECUTOR_MEMORY", "2g")
    with pytest.raises(SystemExit) as ended:
        run(app, ["compact", str(tmp_path / "table"), "--executor", "local"])
    assert ended.value.code == 0
    assert "options_without_effect of=executor-memory" in " ".join(capsys.readouterr().err.split())


_CATALOG = ("run", "--once", "--executor", "local")


PATTERNS: tuple[tuple[tuple[str, ...], int, tuple[str, ...]], ...] = (
    (("--include", "typo*"), 2, ("there is no table to serve", "1 tables, and none of them is taken", "typo*")),
    (("--exclude", "*"), 2, ("there is no table to serve",)),
    (("--include", "*", "--include", "typo*"), 0, ("typo*",)),
    (("--exclude", "typo*"), 0, ("typo*",)),
)


def test_a_pattern_that_matches_no_table_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to do since nothing matches is no success."""
    unzip_golden("v9_pending", tmp_path / "lake")
    for args, code, words in PATTERNS:
        with pytest.raises(SystemExit) as ended:
            run(app, [*_CATALOG, "--root", str(tmp_path / "lake"), *args])
        said = capsys.readouterr().err
        assert ended.value.code == code, said
        assert all(word in said for word in words), said


def test_a_folder_without_tables_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(app, [*_CATALOG, "--root", str(tmp_path)])
    assert ended.value.code == 2
    assert "there is no table to serve" in capsys.readouterr().err


@as_a_user
@pytest.mark.parametrize(
    "args", [("compact",), ("schedule", "--sole-writer"), ("clean", "--sole-writer")], ids=" ".join
)
def test_no_permission(args: tuple[str, ...], tmp_path: Path) -> None:
    """A table that may be read only."""
    path = unzip_golden("v9_pending", tmp_path)
    folders = [path, *(p for p in path.rglob("*") if p.is_dir())]
    before = traces(path)
    try:
        for folder in folders:
            folder.chmod(0o555)
        assert "ermission denied" in fails_as_a_process(args[0], path, *args[1:])
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert traces(path) == before


_ON_A_FULL_DISK = """
set -e
mkdir disk && mount -t tmpfs -o size=8m none disk && cp -a table disk/table
dd if=/dev/zero of=disk/fill bs=4k 2>dd.log || true
truncate -s -128k disk/fill
cd disk/table && find . -type f -not -path './.hoodie/.phantombase/*' | sort > ../../before
cd ../..
set +e
"$@" compact disk/table --executor local; echo $? > first
cd disk/table && find . -type f -not -path './.hoodie/.phantombase/*' | sort > ../../after
cd ../.. && rm disk/fill
"$@" compact disk/table --executor local; echo $? > second
"""


def test_a_full_disk(table: Path, tmp_path: Path) -> None:
    """The table stays as it is, and the same command goes on when there is room again."""
    shutil.copytree(table, tmp_path / "table")
    command = [str(Path(sys.executable).with_name("compactor-daemon"))]
    script = ["unshare", "--mount", "bash", "-c", _ON_A_FULL_DISK, "bash", *command]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    if not (tmp_path / "first").exists():
        pytest.skip(f"no file system can be mounted here: {done.stderr.splitlines()[-1:]}")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert "No space left on device" in errors[0]
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["1\n", "0\n"]
