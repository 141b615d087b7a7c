"""Nothing is requested that `compact` would refuse: such file groups are left out and shown, the others compacted."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.conform import check_conformable
from phantombase.timeline.errors import PhantombaseError, UnsupportedError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.heartbeat import WANTED, read_wanted
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.slice_log import check_slice
from phantombase.timeline.merge.slice_stream import check_base
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.partition_walk import LeftOut
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, GroupKey, latest_slice
from tests.support.builders import block
from tests.support.compaction_steps import check_no_strays, open_table, run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.evolved_tables import NO_COLUMNS, UNKNOWN_INDEX, digest, evolves_on_read, schedule, written_instant
from tests.support.failing_storage import HookedStorage
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.selection import ALL

PARTIAL = "partial-update log blocks are not supported"


def appended(kind: int, headers: dict[int, str], content: bytes) -> Callable[[Path, Path], None]:
    """Appends a block of a completed write to a log."""

    def damage(path: Path, log: Path) -> None:
        log.write_bytes(log.read_bytes() + block(kind, {0: written_instant(log), 2: "{}", **headers}, content))

    return damage


def unreadable(path: Path, log: Path) -> None:
    """No block begins where one must."""
    log.write_bytes(b"no log at all" + log.read_bytes()[13:])


DAMAGE = {
    "partial": (appended(3, {2: NO_COLUMNS, 7: "true"}, struct.pack(">ii", 3, 0)), PARTIAL),
    "hfile": (appended(4, {}, b"hfile"), "HFILE_DATA log blocks are not supported"),
    "kryo": (appended(1, {}, struct.pack(">ii", 2, 4) + b"kryo"), "old content version"),
    "unreadable": (unreadable, "log file does not continue with a block"),
}


def groups_of(path: Path) -> list[FileGroup]:
    """Those with log files; the planner's first one first."""
    found = [(s, g) for g in open_table(path).load_view().groups if (s := latest_slice(g)) is not None and s.logs]
    return [g for s, g in sorted(found, key=lambda pair: (pair[1].partition, pair[0].base_instant, -pair[0].log_bytes))]


def damaged(path: Path, kind: str, group: FileGroup) -> None:
    """Damages the last log of a group."""
    slice_ = latest_slice(group)
    assert slice_ is not None
    DAMAGE[kind][0](path, path / slice_.logs[-1].path)


def planned(done: Scheduled) -> list[GroupKey]:
    """All plans together."""
    return sorted((o.partition_path, o.file_id) for one in done.requested for o in one.plan.operations)


def refused(done: Scheduled) -> list[LeftOut]:
    """What cannot be merged."""
    return list(done.notes.unmergeable) if done.notes else []


@pytest.mark.parametrize("kind", DAMAGE)
@one_of("name", "v9_plain", "v6_plain")
def test_what_compact_would_refuse_is_left_out(
    name: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason stands in the result and in the log; the others are requested, and compacted."""
    path = unzip_golden(name, tmp_path)
    first, *others = groups_of(path)
    assert others
    damaged(path, kind, first)
    caplog.set_level("INFO", "phantombase")
    done = schedule(path)
    assert planned(done) == sorted(g.key for g in others)
    (left,) = refused(done)
    assert (left.partition, left.file_id) == first.key
    assert DAMAGE[kind][1] in left.why
    assert DAMAGE[kind][1] in done.why
    (line,) = [line for line in caplog.messages if "left_out" in line]
    assert DAMAGE[kind][1] in line
    compacted = CliRunner().invoke(app, ["compact", str(path), "--executor", "local"])
    assert compacted.exit_code == 0, compacted.output
    again = schedule(path)
    assert again.instant is None
    assert DAMAGE[kind][1] in again.why


def test_the_command_shows_what_is_left_out(tmp_path: Path) -> None:
    """For people and as JSON, in a dry run and in a real one."""
    path = unzip_golden("v9_plain", tmp_path)
    first = groups_of(path)[0]
    damaged(path, "partial", first)

    def shown(*options: str) -> str:
        done = CliRunner().invoke(app, ["schedule", str(path), "--sole-writer", *options])
        assert done.exit_code == 1, done.output  # so that nobody takes it for done
        return done.stdout

    dry = json.loads(shown("--dry-run", "--json"))
    assert [row["rule"] for row in dry["left_out"] if row["file_id"] == first.file_id] == ["cannot be merged"]
    assert [(row["partition"], row["file_id"]) for row in dry["cannot_be_merged"]] == [first.key]
    assert "cannot be merged" in shown("--dry-run")
    text = " ".join(shown().split())
    assert "requested compaction" in text
    assert (
        f"left out: 1 file group that cannot be merged, such as {first.partition}/{first.file_id}: these {PARTIAL}"
        in text
    )


@pytest.mark.parametrize("picking", Picking)
def test_nothing_is_requested_where_nothing_else_is_there(picking: Picking, tmp_path: Path) -> None:
    """The first reason is what it says."""
    path = unzip_golden("v9_plain", tmp_path)
    for group in groups_of(path):
        damaged(path, "unreadable", group)
    before = digest(path)
    done = schedule(path, replace(PLAN_NOW, picking=picking))
    assert done.requested == ()
    assert done.why.startswith("logs wait that cannot be compacted: ")
    assert DAMAGE["unreadable"][1] in done.why
    assert digest(path) == before


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("partial", {"max_file_slices": 1}),
        ("unreadable", {"max_file_slices": 1}),
        ("unreadable", {"max_file_slices": 1, "picking": Picking.UNIVERSAL, "compaction_trigger": 2}),
        ("partial", {"max_file_slices": 1, "strategies": (Strategy.LOG_FILE_SIZE,)}),
        ("partial", {"strategies": (Strategy.BOUNDED_IO,), "strategy_io_mb": 1}),
    ],
)
def test_another_one_takes_its_place(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Within the same limits."""
    path = unzip_golden("v9_plain", tmp_path)
    chosen = replace(PLAN_NOW, **options)
    copy = unzip_golden("v9_plain", tmp_path / "copy")
    (first, *_) = planned(schedule(copy, chosen))
    damaged(path, kind, next(g for g in groups_of(path) if g.key == first))
    done = schedule(path, chosen)
    assert len(planned(done)) >= 1
    assert first not in planned(done)
    assert [(o.partition, o.file_id) for o in refused(done)] == [first]
    CliRunner().invoke(app, ["compact", str(path), "--executor", "local"], catch_exceptions=False)
    assert open_table(path).load_timeline().pending_merges == ()


def test_only_what_is_picked_is_looked_at(tmp_path: Path) -> None:
    """The logs of one file group of a partition, and a few ahead."""
    path = unzip_golden("v9_plain", tmp_path)
    opened: list[str] = []

    def watch(call: Any) -> Any:
        if call.name == "open_input":
            opened.append(call.path)
        return call.do()

    done = schedule(path, replace(PLAN_NOW, max_file_slices=1), HookedStorage(LocalStorage(str(path)), watch))
    ((partition, _),) = planned(done)
    assert opened
    assert {name.rpartition("/")[0] for name in opened} == {partition}


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [("v9_with_metadata_table", UNKNOWN_INDEX, "vector_index"), ("v9_plain", evolves_on_read, "schema evolution")],
)
def test_a_table_that_compact_refuses_is_refused(
    name: str, change: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    """Before anything is requested."""
    path = unzip_golden(name, tmp_path)
    change(path)
    before = digest(path)
    with pytest.raises(UnsupportedError, match=says):
        schedule(path)
    assert digest(path) == before


def test_what_is_requested_is_what_a_compactor_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any error of its check is the reason, and nothing else is caught."""
    path = unzip_golden("v9_plain", tmp_path)

    def fail(*args: Any, **options: Any) -> None:
        check_slice(*args, **options)
        raise PhantombaseError("some day another rule")

    monkeypatch.setattr("phantombase.timeline.merge.slice_stream.check_slice", fail)
    one = replace(PLAN_NOW, max_file_slices=1)  # blocks that are known are not checked again
    assert "some day another rule" in schedule(path, one).why


# What a compaction would fail on is left out of plans: base files are asked by their footers, logs by their headers.
#
# Tables are made by our writer; the column that changes its type is rewritten in the base file by hand.


SPAN = [Decimal("1.25"), Decimal("99999999.25")]
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [1, 2]),
    "long": (pa.int64(), [1, 2]),
    "float": (pa.float32(), [1.5, 2.5]),
    "double": (pa.float64(), [1.5, 2.5]),
    "string": (pa.string(), ["1", "2"]),
    "bytes": (pa.binary(), [b"1", b"2"]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [1, 2]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [1, 2]),
    "local timestamp": (pa.timestamp("us"), [1, 2]),
    "decimal": (pa.decimal128(10, 2), SPAN),
    "wider decimal": (pa.decimal128(12, 2), SPAN),
    "decimal of another scale": (pa.decimal128(10, 4), [Decimal("1.25"), Decimal("2.25")]),
    "list": (pa.list_(pa.int64()), [[1], [2]]),
    "list of floats": (pa.list_(pa.float32()), [[1.5], [2.5]]),
    "struct": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": 2}]),
    "struct of text": (pa.struct([("a", pa.string())]), [{"a": "1"}, {"a": "2"}]),
}


def rows(kind: str, partition: str, ts: int) -> pa.Table:
    of, values = TYPES[kind]
    n = len(values)
    return pa.table(
        {
            "id": [f"{partition}{i}" for i in range(n)],
            "p": [partition] * n,
            "ts": pa.array([ts] * n, pa.int64()),
            "v": pa.array(values, of),
        }
    )


def table(path: Path, version: int = 9, kind: str = "long", log: str = "parquet") -> Path:
    """Two partitions, a and b, each with a base file and a log."""
    first = pa.concat_tables([rows(kind, "a", 1), rows(kind, "b", 1)])
    writer(first).table("t", version=version).key("id").partition("p").ordering("ts").bulk_insert(str(path))
    second = pa.concat_tables([rows(kind, "a", 2), rows(kind, "b", 2)])
    writer(second.slice(0, 1)).conf({"hoodie.logfile.data.block.format": log}).upsert(str(path))
    writer(second.slice(len(second) - 1)).conf({"hoodie.logfile.data.block.format": log}).upsert(str(path))
    return path


def base_of(path: Path, partition: str) -> Path:
    (file,) = (path / partition).glob("*.parquet")
    return file


def retyped(path: Path, kind: str) -> None:
    """The base file of partition a as an earlier writer would have written it: its column of another type."""
    file = base_of(path, "a")
    stored, of = pq.read_table(file), TYPES[kind]
    column = pa.array([of[1][i % 2] for i in range(len(stored))], of[0])
    at = stored.schema.get_field_index("v")
    changed = stored.set_column(at, pa.field("v", of[0]), column)
    pq.write_table(changed.replace_schema_metadata(None), file)


def command(*args: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(daemon, [*args, "--sole-writer", "--json"])
    if isinstance(done.exception, PhantombaseError):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


def merges(path: Path) -> bool:
    """Whether a read, which merges as a compaction does, can be had of partition a."""
    try:
        read(str(path), partition="a").to_arrow()
    except PhantombaseError:
        return False
    return True


@pytest.mark.parametrize("now", TYPES)
def test_schedule_plans_just_what_can_be_merged(now: str, tmp_path: Path) -> None:
    """Of every pair of types: base files of the one, logs and table of the other.

    A usual run takes each third pair, and all of decimals, whose values count too."""
    made = table(tmp_path / "made", kind=now)
    kept = base_of(made, "a").read_bytes()
    for number, then in enumerate(TYPES):
        if not ALL and (number - [*TYPES].index(now)) % 3 and not ("decimal" in now and "decimal" in then):
            continue
        base_of(made, "a").write_bytes(kept)
        retyped(made, then)
        code, said = command("schedule", str(made), "--dry-run")
        can = merges(made)
        left = [one["partition"] for one in said["cannot_be_merged"]]
        assert (code, left) == ((0, []) if can else (1, ["a"])), (then, now, said["cannot_be_merged"])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def four_bytes(file: Path) -> None:
    file.write_bytes(b"PAR1")


def zeros(file: Path) -> None:
    """In the footer."""
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    file.write_bytes(data[: -8 - length] + bytes(length) + data[-8:])


def changelog(file: Path) -> None:
    stored = pq.read_table(file)
    pq.write_table(stored.append_column("_hoodie_operation", pa.array(["I"] * len(stored))), file)


DAMAGES: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (cut, four_bytes, zeros, changelog)}


@pytest.mark.parametrize("damage", DAMAGES)
@one_of("version", 9, 6)
def test_a_base_file_that_cannot_be_read(version: int, damage: str, tmp_path: Path) -> None:
    """It is named with the reason; the rest is planned and compacted, and the exit code says it."""
    path = table(tmp_path / "t", version)
    DAMAGES[damage](base_of(path, "a"))
    code, said = command("schedule", str(path))
    assert (code, said["file_groups"], [one["partition"] for one in said["cannot_be_merged"]]) == (1, 1, ["a"])
    assert base_of(path, "a").name in said["cannot_be_merged"][0]["why"]
    run_all(open_table(path))
    assert read(str(path), partition="b").to_arrow()["ts"].to_pylist() == [1, 2]
    code, said = command("compact", str(path), "--schedule", "--executor", "local")
    assert (code, said["scheduled"]["plans"], len(said["scheduled"]["cannot_be_merged"])) == (1, [], 1)
    text = CliRunner().invoke(daemon, ["schedule", str(path), "--sole-writer"])
    assert text.exit_code == 1
    assert base_of(path, "a").name in text.stdout.replace("\n", "")


def test_an_older_log_of_a_type_that_cannot_be_merged(tmp_path: Path) -> None:
    """The header of a block has the types of its rows."""
    path = table(tmp_path / "t", log="avro")
    (log,) = (path / "a").glob(".*.log.*")
    data = log.read_bytes()
    assert data.count(b'["null","long"]') > 0 or data.count(b'"long"') > 0
    log.write_bytes(data.replace(b'"ts","type":["null","long"]', b'"ts","type":["null","bool"]'))
    code, said = command("schedule", str(path), "--dry-run")
    assert not merges(path)
    assert (code, [one["partition"] for one in said["cannot_be_merged"]]) == (1, ["a"])


def test_of_very_many_base_files_one_of_each_write_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "t")
    asked: list[str] = []

    def counted(storage: Any, path: str, *rest: Any) -> None:
        asked.append(path)
        check_base(storage, path, *rest)

    for module in ("merge.slice_stream", "planning.survey"):
        monkeypatch.setattr(f"phantombase.timeline.{module}.check_base", counted)
    command("schedule", str(path), "--dry-run")
    assert len(asked) == 2
    monkeypatch.setattr("phantombase.timeline.planning.survey._FOOTERS_MAX", 0)
    command("schedule", str(path), "--dry-run")
    assert len(asked) == 3


def test_a_required_column_that_a_file_lacks() -> None:
    """Whatever the values, a merge would fail on it, unless the file has no row."""
    schema = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    check_conformable(schema, schema, "x")
    check_conformable(schema.remove(1), schema, "x", rows=False)
    with pytest.raises(PhantombaseError, match="required column"):
        check_conformable(schema.remove(1), schema, "x")


# Requesting a compaction of a real table: the trigger, the size of a plan, and the gate of version 6.


DUE = ScheduleOptions(strategy=TriggerStrategy.NUM_COMMITS, max_delta_commits=1)
LATER = "20270101000000000"


def request(table: Table, options: ScheduleOptions) -> Scheduled:
    """Under a lock of this process."""
    return schedule_compaction(table, ProcessLock(table.storage.base_path), options)


def begin_write(table: Table) -> str:
    """A delta commit pends; the path of its file."""
    path = table.instant_path(Instant(requested_time=LATER, action="deltacommit", state=State.INFLIGHT))
    table.storage.put_if_absent(path, b"")
    return path


@one_of("name", "v9_plain", "v6_plain")
def test_a_plan_that_is_not_due_is_not_made_and_says_why(name: str, tmp_path: Path) -> None:
    """And leaves nothing behind."""
    table = open_table(unzip_golden(name, tmp_path))
    before = sorted(tmp_path.rglob("*"))
    found = request(table, replace(DUE, max_delta_commits=99))
    assert found.instant is None
    assert "of 99 delta commits since" in found.why
    assert sorted(tmp_path.rglob("*")) == before
    assert request(table, DUE).instant is not None


def test_pending_plans_are_limited(tmp_path: Path) -> None:
    """While one pends no second one is made, whatever could be planned."""
    table = open_table(unzip_golden("v9_pending", tmp_path))
    assert "the limit is 1" in request(table, replace(PLAN_NOW, max_pending=1)).why


@one_of("name", "v6_plain", "v9_plain")
def test_a_plan_closes_when_it_reaches_its_target(name: str, tmp_path: Path) -> None:
    """The first file group is always in it; the rest is planned next, and Hudi 1.2 is told where it lies."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    before = read_table(table)
    everything = request(open_table(unzip_golden(name, tmp_path / "other")), PLAN_NOW)
    assert everything.plan is not None
    left = {(o.partition_path, o.file_id): o for o in everything.plan.operations}
    assert len(left) > 1
    small = replace(PLAN_NOW, target_io_bytes=1)
    while left:
        plan = request(table, small).plan
        assert plan is not None
        (operation,) = plan.operations
        assert left.pop((operation.partition_path, operation.file_id)) == operation
        assert {partition for partition, _ in left} <= set(plan.missing_schedule_partitions or ())
    assert request(table, small).instant is None
    run_all(table)
    assert_same_rows(read_table(open_table(path)), before)
    check_no_strays(path)


def test_a_target_beyond_all_is_no_limit(tmp_path: Path) -> None:
    """The sum of what is read and written decides."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    plan = request(table, replace(PLAN_NOW, target_io_bytes=1 << 40)).plan
    assert plan is not None
    assert plan.missing_schedule_partitions == ()


def test_a_due_plan_in_whose_way_a_write_is_asks_writers_to_wait(tmp_path: Path) -> None:
    """Until the plan is made; then the record is gone."""
    table = open_table(unzip_golden("v6_plain", tmp_path))
    write = begin_write(table)
    found = request(table, DUE)
    assert found.instant is None
    assert LATER in found.why
    wanted = read_wanted(table.storage, clock_ms())
    assert wanted is not None
    assert wanted.holds(clock_ms())
    assert wanted.length_ms == 30_000
    table.storage.delete(write)
    assert request(table, DUE).instant is not None
    assert table.storage.find(WANTED) is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v6_plain", PLAN_NOW),  # who asks once does not come back
        ("v6_plain", replace(DUE, gate_s=0)),
        ("v6_plain", replace(DUE, max_delta_commits=99)),
        ("v6_fresh_compacted", DUE),  # nothing to plan
        ("v9_plain", DUE),
    ],
)
def test_nobody_is_asked_to_wait_without_need(name: str, options: ScheduleOptions, tmp_path: Path) -> None:
    """Only a plan that is due, has something in it, and cannot be made."""
    path = unzip_golden("v6_plain" if name == "v6_fresh_compacted" else name, tmp_path)
    table = open_table(path)
    if name == "v6_fresh_compacted":
        request(table, PLAN_NOW)
        run_all(table)
        options = replace(options, strategy=TriggerStrategy.TIME_ELAPSED, max_delta_seconds=0)
    begin_write(table)
    request(table, options)
    assert table.storage.find(WANTED) is None


def test_options_of_the_command(tmp_path: Path) -> None:
    """`--trigger` asks first; without it the plan is made now."""
    path = str(unzip_golden("v9_plain", tmp_path))

    def said(*options: str) -> str:
        done = CliRunner().invoke(app, ["schedule", path, "--sole-writer", *options])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    assert "of 99 delta commits" in said("--trigger", "num-commits", "--max-delta-commits", "99")
    assert "requested compaction" in said("--trigger", "num-commits", "--max-delta-commits", "1", "--target-io", "1k")
    assert "the limit is 1" in said("--max-pending", "1")
    assert "requested compaction" in said()
