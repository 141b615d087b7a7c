"""Each way out that an error or `status` names works: from the state that the error comes from, the words that it
prints are run, and the table is served again with all rows that it had.

What other tests hold: an instant in the future (tests/timeline/instants/test_future.py), a torn completed file
(restoring/test_torn_commit.py and repair/test_torn_compaction.py below tests/compactor_daemon), a plan with logs
(tests/compactor_daemon/undo/test_narrowed.py)."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import ConflictError, PhantombaseError, PressureError
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import one_of
from tests.support.places import ROOT
from tests.support.selection import deep

PROPERTY = "hoodie.table.timeline.timezone"
PARTITIONS = ("p0", "p1", "p2")


def batch(ts: int, *partitions: str) -> pa.Table:
    ids = [f"{p}-{n}" for p in partitions for n in range(3)]
    return pa.table({"id": ids, "p": [i[:2] for i in ids], "ts": pa.array([ts] * len(ids), pa.int64())})


def made(path: Path, version: int) -> None:
    """Three partitions, each with a base file and a log."""
    writer(batch(1, *PARTITIONS)).table("t", version=version).key("id").partition("p").ordering("ts").upsert(str(path))
    writer(batch(2, *PARTITIONS)).upsert(str(path))


def rows(path: Path) -> dict[str, int]:
    found = read(str(path)).to_arrow()
    return dict(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))


def at(ts: int, *partitions: str) -> dict[str, int]:
    return {f"{p}-{n}": ts for p in partitions for n in range(3)}


def run(*words: str, code: int = 0) -> str:
    """What a command prints, its error included."""
    done = CliRunner().invoke(daemon, list(words))
    if isinstance(done.exception, PhantombaseError):
        assert code, done.exception
        return str(done.exception)
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def named(text: str, path: Path) -> list[str]:
    """The first command in an error's advice, or a finding's, for this table; without the lock that a finding names."""
    found = re.search(r"`compactor-daemon ([^`]*?)(?: --lock\s+LOCK)?`", text)
    assert found, text
    return [str(path) if word == "TABLE" else word for word in found[1].split()]


def damage(path: Path, partition: str) -> None:
    (base,) = (path / partition).glob("*.parquet")
    base.write_bytes(base.read_bytes()[:100])


def served(path: Path, expected: dict[str, int]) -> None:
    """It is read, written, compacted and read again."""
    assert rows(path) == expected
    writer(batch(7, "p0")).upsert(str(path))
    run("compact", str(path), "--schedule", "--sole-writer", "--executor", "local")
    assert rows(path) == expected | at(7, "p0")


@pytest.mark.parametrize("version", [6, 9])
def test_a_plan_with_a_damaged_file_is_unscheduled(version: int, tmp_path: Path) -> None:
    """On version 6 what was not written since; then `schedule` names the file, and an overwrite ends it."""
    path = tmp_path / "t"
    made(path, version)
    instant = re.findall(r"\d{17}", run("schedule", str(path), "--sole-writer"))[0]
    writer(batch(3, "p0")).upsert(str(path))
    damage(path, "p2")
    run("compact", str(path), "--executor", "local", code=1)
    run("unschedule", str(path), instant, "--sole-writer")
    said = run("compact", str(path), "--schedule", "--sole-writer", "--executor", "local", code=1)
    assert "p2/" in said
    writer(batch(4, "p2")).insert_overwrite(str(path))
    served(path, at(3, "p0") | at(2, "p1") | at(4, "p2"))


def test_a_plan_of_version_6_whose_damaged_file_was_written_since(tmp_path: Path) -> None:
    """The error of `unschedule` names insert_overwrite, then `compact`."""
    path = tmp_path / "t"
    made(path, 6)
    instant = re.findall(r"\d{17}", run("schedule", str(path), "--sole-writer"))[0]
    writer(batch(3, *PARTITIONS)).upsert(str(path))
    damage(path, "p2")
    said = run("unschedule", str(path), instant, "--sole-writer", code=1)
    assert "insert_overwrite" in said
    writer(batch(4, "p2")).insert_overwrite(str(path))
    run("compact", str(path), "--executor", "local")
    served(path, at(3, "p0", "p1") | at(4, "p2"))


def lost(path: Path, name: str) -> None:
    """A file of `p2`; there is one."""
    (found,) = (path / "p2").glob(name)
    found.unlink()


@pytest.mark.parametrize(
    ("version", "name"), [(6, "*.parquet"), (9, ".*log*"), deep(6, ".*log*"), deep(9, "*.parquet")]
)
def test_a_plan_with_a_lost_file_after_a_restore_to_before_it_was_written(
    version: int, name: str, tmp_path: Path
) -> None:
    """A state before the plan alone may be one that has the file."""
    path = tmp_path / "t"
    writer(batch(1, "p0", "p1")).table("t", version=version).key("id").partition("p").ordering("ts").upsert(str(path))
    writer(batch(1, "p2")).upsert(str(path))
    writer(batch(2, *PARTITIONS)).upsert(str(path))
    before, after = sorted(Table.open(str(path)).load_timeline().completed_writes)[:2]
    run("schedule", str(path), "--sole-writer")
    lost(path, name)
    said = run("compact", str(path), "--executor", "local", code=1)
    assert "to an instant before it was written, `compactor-daemon restore TABLE --to INSTANT`" in said
    is_base = name == "*.parquet"
    run("restore", str(path), "--to", before if is_base else after, "--sole-writer")
    served(path, at(1, "p0", "p1") if is_base else at(1, *PARTITIONS))


@pytest.mark.parametrize(
    ("version", "how"),
    [(6, "delete_partition"), (9, "delete_partition"), (6, "insert_overwrite"), deep(9, "insert_overwrite")],
)
def test_a_partition_of_a_plan_with_a_lost_file_is_written_anew_or_deleted(
    version: int, how: str, tmp_path: Path
) -> None:
    """Also on version 6 with logs on all of the plan, where neither `compact` nor `unschedule` works at first."""
    path = tmp_path / "t"
    made(path, version)
    (instant,) = set(re.findall(r"\d{17}", run("schedule", str(path), "--sole-writer")))
    writer(batch(3, *PARTITIONS)).upsert(str(path))
    lost(path, "*.parquet")
    left = at(3, "p0", "p1")
    if how == "delete_partition":
        with pytest.raises(PhantombaseError, match=r"or unschedule it.*by insert_overwrite first"):
            writer(batch(1, "p2").slice(0, 0)).delete_partition(str(path), ["p2"])
        if version == 9:
            run("unschedule", str(path), instant, "--sole-writer")
        else:
            assert "insert_overwrite" in run("unschedule", str(path), instant, "--sole-writer", code=1)
            writer(batch(4, "p2")).insert_overwrite(str(path))
            run("compact", str(path), "--executor", "local")
        writer(batch(1, "p2").slice(0, 0)).delete_partition(str(path), ["p2"])
        served(path, left)
    else:
        said = run("compact", str(path), "--executor", "local", code=1)
        assert "by insert_overwrite" in said
        writer(batch(4, "p2")).insert_overwrite(str(path))
        run("compact", str(path), "--executor", "local")
        served(path, left | at(4, "p2"))


@one_of("version", 9, 6)
def test_a_write_in_the_future_is_rolled_back(version: int, tmp_path: Path) -> None:
    """By the command in the error; its rows can be written again."""
    path = tmp_path / "t"
    made(path, version)
    names = sorted(f.name.partition(".")[0] for f in path.rglob("*.deltacommit"))
    year = str(datetime.now().year + 1)
    for file in [f for f in path.rglob("*") if f.is_file()]:
        name, data = file.name, file.read_bytes()
        for old in names[-1].split("_"):
            name, data = name.replace(old, year + old[4:]), data.replace(old.encode(), (year + old[4:]).encode())
        if name != file.name:
            file.write_bytes(data)
            file.rename(file.with_name(name))
    with pytest.raises(PhantombaseError) as refused:
        writer(batch(3, "p0")).upsert(str(path))
    run(*named(str(refused.value), path), "--sole-writer")
    assert rows(path) == at(1, *PARTITIONS)
    writer(batch(2, *PARTITIONS)).upsert(str(path))
    served(path, at(2, *PARTITIONS))


@one_of("version", 9, 6)
def test_a_table_that_says_utc_and_is_not(version: int, tmp_path: Path, local_zone: Callable[[str], None]) -> None:
    """The error names the property; with LOCAL and the writers' zone it goes on."""
    path = tmp_path / "t"
    local_zone("America/Caracas")
    made(path, version)
    properties = path / ".hoodie/hoodie.properties"

    def says(value: str) -> None:
        kept = [line for line in properties.read_text().splitlines() if not line.startswith(PROPERTY)]
        properties.write_text("\n".join([*kept, f"{PROPERTY}={value}", ""]))

    says("UTC")
    local_zone("UTC")
    said = run("schedule", str(path), "--sole-writer", code=1)
    assert f"{PROPERTY}=UTC" in said
    assert "set it to LOCAL" in said
    says("LOCAL")
    run("schedule", str(path), "--sole-writer", "--timezone", "America/Caracas")
    local_zone("America/Caracas")
    run("compact", str(path), "--executor", "local")
    served(path, at(2, *PARTITIONS))


@one_of("version", 6, 9)
def test_a_removed_partition_is_declared(version: int, tmp_path: Path) -> None:
    """By delete_partition, which the guide and the error name."""
    path = tmp_path / "t"
    made(path, version)
    run("compact", str(path), "--schedule", "--sole-writer", "--executor", "local")
    shutil.rmtree(path / "p2")
    with pytest.raises(PhantombaseError, match="delete_partition"):
        rows(path)
    writer(batch(1, "p2").slice(0, 0)).delete_partition(str(path), ["p2"])
    served(path, at(2, "p0", "p1"))


def test_nothing_requests_a_plan(tmp_path: Path) -> None:
    """`status` says who would, and a run that does not request says so; what they name compacts the table."""
    path = tmp_path / "t"
    made(path, 9)
    for ts in range(3, 7):
        writer(batch(ts, "p0")).upsert(str(path))
    said = run("status", str(path))
    assert "due" in said
    assert "compactor-daemon schedule" in said
    assert "a run without --schedule requests none" in run("run", str(path), "--once", "--executor", "local")
    run("run", str(path), "--once", "--executor", "local", "--schedule", "--sole-writer")
    served(path, at(6, "p0") | at(2, "p1", "p2"))


def test_a_full_file_group_is_compacted(tmp_path: Path) -> None:
    """No plan is pending or due, so that a daemon, which the error named, did nothing."""
    path = tmp_path / "t"
    made(path, 6)
    again = writer(batch(3, *PARTITIONS)).back_pressure(action="fail", stop_trigger=1)
    with pytest.raises(PressureError) as full:
        again.upsert(str(path))
    assert "wait_s" not in str(full.value)
    run(*named(str(full.value), path), "--sole-writer", "--executor", "local")
    again.upsert(str(path))
    served(path, at(3, *PARTITIONS))


@pytest.mark.parametrize(("version", "action"), [(6, "replacecommit"), (9, "clustering")])
def test_status_names_what_ends_a_clustering_that_cannot_be_read(version: int, action: str, tmp_path: Path) -> None:
    """It named `cluster`, which ended in an error."""
    path = tmp_path / "t"
    writer(batch(1, "p0")).table("t", version=version).key("id").partition("p").ordering("ts").upsert(str(path))
    for n in range(2):
        rows_ = pa.table({"id": [f"more{n}"], "p": ["p1"], "ts": pa.array([1], pa.int64())})
        writer(rows_).option(small_file_bytes=0).bulk_insert(str(path))
    run("cluster", str(path), "--sole-writer", "--min-file-num", "2")
    (inflight,) = (path / ".hoodie").rglob(f"*.{action}.inflight")
    instant = inflight.name[:17]
    for done in (path / ".hoodie").rglob(f"{instant}*.replacecommit"):
        done.unlink()
    inflight.write_bytes(b"torn")
    newest = sorted(Table.open(str(path)).load_timeline().completed_writes)[-1]
    said = run("status", str(path))
    words = [newest if word == "INSTANT" else word for word in named(said[said.index(f"{action} {instant}") :], path)]
    assert words[0] == "restore"
    run(*words, "--sole-writer")
    assert rows(path) == at(1, "p0") | {"more0": 1, "more1": 1}
    writer(batch(7, "p0")).upsert(str(path))


@pytest.mark.parametrize("action", ["clean", "restore"])
def test_status_names_what_ends_an_action_whose_plan_is_torn(action: str, tmp_path: Path) -> None:
    """It named the command of the action, which ended in an error; or, of a restore, Hudi's alone."""
    path = tmp_path / "t"
    made(path, 9)
    run("compact", str(path), "--schedule", "--sole-writer", "--executor", "local")
    writer(batch(3, *PARTITIONS)).upsert(str(path))
    writes = sorted(Table.open(str(path)).load_timeline().completed_writes)
    options = {"clean": ["--retain", "1", "--floor", "0"], "restore": ["--to", writes[-2]]}
    run(action, str(path), "--sole-writer", *options[action])
    (done,) = (path / ".hoodie/timeline").glob(f"*.{action}")
    done.unlink()
    for file in (path / ".hoodie/timeline").glob(f"{done.name[:17]}.{action}.*"):
        if file.name.endswith(".requested"):
            file.write_bytes(b"torn")
        os.utime(file, (time.time() - 130,) * 2)
    said = run("status", str(path))
    if action == "clean":
        assert "remove all files of this clean" in said
        return
    words = [writes[-2] if word == "INSTANT" else word for word in named(said[said.index("It has begun") :], path)]
    run(*words, "--sole-writer")
    served(path, at(2, *PARTITIONS))


@pytest.mark.parametrize("left", [None, b"\\u00", *map(deep, (b"", b"#properties\n"))])
@one_of("version", 9, 6)
def test_lost_settings_are_those_of_a_table_like_it(version: int, left: bytes | None, tmp_path: Path) -> None:
    path, like = tmp_path / "t", tmp_path / "like"
    made(path, version)
    made(like, version)
    properties = path / ".hoodie/hoodie.properties"
    properties.unlink() if left is None else properties.write_bytes(left)
    with pytest.raises(PhantombaseError, match="Without one, make a table of the same version and settings"):
        made(path, version)
    shutil.copy(like / ".hoodie/hoodie.properties", properties)
    served(path, at(2, *PARTITIONS))


def test_partition_values_that_are_no_paths_are_changed(tmp_path: Path) -> None:
    """Or encoded, as far as that helps: an encoded table does not ask for it again."""

    def write(value: str, name: str, encoded: str) -> None:
        rows = pa.table({"id": ["a"], "p": [value], "ts": [1]})
        described = writer(rows).table("t").key("id").partition("p").ordering("ts")
        described.conf({"hoodie.datasource.write.partitionpath.urlencode": encoded}).upsert(str(tmp_path / name))

    for value in ("../x", "..", ".hoodie", "a:b"):
        with pytest.raises(PhantombaseError, match="or create the table with URL encoding"):
            write(value, "plain", "false")
    for value in ("..", ".hoodie"):
        with pytest.raises(PhantombaseError, match=r"\. Change the values\.$"):
            write(value, "encoded", "true")
    for value in ("../x", "a:b", "x"):
        write(value, "encoded", "true")


@pytest.mark.parametrize("damaged", ["", "*.deltacommit", *map(deep, ("hoodie.properties", "timeline"))])
@one_of("version", 9, 6)
def test_a_damaged_metadata_table_is_built_again(version: int, damaged: str, tmp_path: Path) -> None:
    """By the command in the error of a write; nothing is pending, and the command still does it."""
    path, hoodie = tmp_path / "t", tmp_path / "t/.hoodie/metadata/.hoodie"
    described = writer(batch(1, *PARTITIONS)).table("t", version=version).key("id").partition("p").ordering("ts")
    described.conf({"hoodie.metadata.enable": "true"}).upsert(str(path))
    writer(batch(2, *PARTITIONS)).upsert(str(path))
    if not damaged or (damaged == "timeline" and version == 6):
        shutil.rmtree(hoodie.parent)
    elif damaged == "timeline":
        shutil.rmtree(hoodie / damaged)
    else:
        max(hoodie.rglob(damaged)).write_bytes(b"")
    with pytest.raises(PhantombaseError) as refused:
        writer(batch(4, "p1")).option(heartbeat_s=0.01).upsert(str(path))
    run(*named(str(refused.value), path), "--sole-writer")
    assert Table.open(str(path)).config.metadata_partitions == ("files",)
    assert rows(path) == at(2, *PARTITIONS)
    dead_s = 0.1  # the write that failed could not be rolled back without the metadata table; its process is this one
    while Table.open(str(path)).load_timeline().pending_writes:
        with suppress(ConflictError):  # on a slow machine this one counts as dead, too
            writer(batch(2, "p1")).option(heartbeat_s=0.01, heartbeat_expiry_s=dead_s).upsert(str(path))
    served(path, at(2, *PARTITIONS))


def timeline_folder(path: Path) -> Path:
    return path / Table.open(str(path)).config.timeline_folder


@one_of("version", 9, 6)
def test_a_half_way_rollback_of_a_write_that_is_to_stay_is_removed(version: int, tmp_path: Path) -> None:
    """By hand, with the names in the error: another write was built upon it meanwhile, as Hudi's would be."""
    path = tmp_path / "t"
    made(path, version)
    last = max(Table.open(str(path)).load_timeline().completed_writes)
    kept = tmp_path / "kept"
    shutil.copytree(path, kept)
    run("rollback", str(path), last, "--sole-writer")
    (plan,) = timeline_folder(path).glob("*.rollback.requested")
    writer(batch(3, "p0")).upsert(str(kept))
    shutil.copy(plan, timeline_folder(kept))
    with pytest.raises(PhantombaseError, match="the rollback of a completed write is in progress") as refused:
        writer(batch(4, "p0")).upsert(str(kept))
    said = run(*named(str(refused.value), kept), "--sole-writer", code=1)
    found = re.search(r"remove (\S+) and (\S+) by hand, in this order", said)
    assert found, said
    for name in found.groups():
        (kept / name).unlink(missing_ok=True)
    served(kept, at(3, "p0") | at(2, "p1", "p2"))


@pytest.mark.parametrize("torn", ["requested", "completed"])
@one_of("version", 9, 6)
def test_a_clean_that_cannot_be_read_goes(version: int, torn: str, tmp_path: Path) -> None:
    """One that has begun without its plan goes as a whole; the record of a completed one alone."""
    path, cleaning = tmp_path / "t", ("--policy", "commits", "--retain", "1", "--floor", "0", "--sole-writer")
    made(path, version)
    for ts in (3, 4):
        writer(batch(ts, *PARTITIONS)).upsert(str(path))
        run("compact", str(path), "--schedule", "--sole-writer", "--executor", "local")
    run("clean", str(path), *cleaning)
    files = {file.name.rpartition(".")[2]: file for file in timeline_folder(path).glob("*.clean*")}
    assert len(files) == 3
    if torn == "completed":
        files["clean"].write_bytes(b"torn")
        said = run("archive", str(path), "--min-instants", "2", "--max-instants", "3", "--sole-writer", code=1)
        assert "or remove it: then `compactor-daemon clean TABLE` completes the clean once more" in said
        files["clean"].unlink()
        assert "finished clean" in run("clean", str(path), *cleaning)
    else:
        files["clean"].unlink()
        files["requested"].write_bytes(b"torn")
        said = run("clean", str(path), *cleaning, code=1)
        assert "remove all files of this clean from the timeline" in said
        files["inflight"].unlink()
        files["requested"].unlink()
    served(path, at(4, *PARTITIONS))


@one_of("version", 6, 9)
def test_a_savepoint_that_cannot_be_read_is_made_anew(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, version)
    run("savepoint", "create", str(path), "--sole-writer")
    (record,) = timeline_folder(path).glob("*.savepoint")
    record.write_bytes(b"torn")
    said = run("clean", str(path), "--sole-writer", code=1)
    run(*named(said, path), "--sole-writer")
    found = re.search(r"`(savepoint create TABLE --instant \d+)`", said)
    assert found, said
    run(*[str(path) if word == "TABLE" else word for word in found[1].split()], "--sole-writer")
    run("clean", str(path), "--sole-writer")
    served(path, at(2, *PARTITIONS))


@one_of("version", 6, 9)
def test_of_two_plans_over_one_file_group_one_is_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, version)
    run("schedule", str(path), "--sole-writer")
    (plan,) = timeline_folder(path).glob("*.compaction.requested")
    time = plan.name.partition(".")[0]
    shutil.copy(plan, plan.with_name(plan.name.replace(time, str(int(time) + 1))))
    with pytest.raises(PhantombaseError, match="file group in two pending compaction plans") as refused:
        rows(path)
    found = re.search(r"compactor-daemon unschedule TABLE (\d+)", str(refused.value))
    assert found, refused.value
    run("unschedule", str(path), found[1], "--sole-writer")
    served(path, at(2, *PARTITIONS))


def test_a_time_in_the_future_is_set_back(tmp_path: Path) -> None:
    """Of a completed file on version 6; the command as it is printed."""
    path = tmp_path / "t"
    made(path, 6)
    file = max(timeline_folder(path).glob("*.deltacommit"))
    os.utime(file, (file.stat().st_mtime + 9000,) * 2)
    with pytest.raises(PhantombaseError, match="`timeline repair-times TABLE --all`"):
        writer(batch(3, "p0")).upsert(str(path))
    assert CliRunner().invoke(timeline_app, ["repair-times", str(path), "--all"]).exit_code == 0
    served(path, at(2, *PARTITIONS))


def _texts() -> Iterator[tuple[str, str]]:
    """(file, text) of all strings in the packages, with X for what is filled in, and of the guides."""
    for package in ("timeline", "compactor_daemon", "writer_hooks", "pyspark_phantombase"):
        for file in sorted((ROOT / package).rglob("*.py")):
            filled = set[ast.AST]()
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    filled |= set(ast.walk(node))
                    parts = (v.value if isinstance(v, ast.Constant) else "X" for v in node.values)
                    yield str(file), "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in filled:
                    yield str(file), node.value
    for file in sorted((ROOT / "docs").rglob("*.md")):
        yield str(file), file.read_text()


_APPS: dict[str, Any] = {"compactor-daemon": get_command(daemon), "timeline": get_command(timeline_app)}
_WRONG: Any = typer.BadParameter.__base__
"""The error of words that do not parse: of the click that typer brings, which has no public name."""
_ARGUMENT = r"[A-Z]+|\d+|--[a-z-]+|create|delete|list"
_FILLED = {"TABLE": "/data/my trips", "INSTANT": "20260101120000000", "X": "20260101120000000"}


def _commands(file: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands that a text names, in backticks or without them, each with its words."""
    for app, words in re.findall(r"`(compactor-daemon|timeline) ([a-z][^`\n]*)`", text):
        yield app, shlex.split(words.partition(" | ")[0])
    if file.endswith(".py"):
        for app, words in re.findall(rf"(?<!`)(compactor-daemon|timeline) ([a-z-]+(?: (?:{_ARGUMENT})\b)*)", text):
            if words.split()[0] in _APPS[app].commands:
                yield app, words.split()


def test_every_command_that_an_advice_names_parses() -> None:
    """In errors, findings and guides: as it is printed, with a table whose path has a space. A name alone is a name,
    and so are the options behind it in the guides."""
    wrong, seen = [], set[str]()
    for file, text in _texts():
        for app, words in _commands(file, text):
            command, above = _APPS[app], _APPS[app].make_context(app, [], resilient_parsing=True)
            rest = words[: words.index("--config")] if "--config" in words else words  # it would be read
            while rest and (below := getattr(command, "commands", {}).get(rest[0])) is not None:
                command, rest = below, rest[1:]
            seen.add(" ".join(words))
            options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
            if rest and "--help" not in rest and not (file.endswith(".md") and rest[0] in options):
                try:
                    command.make_context(app, [_FILLED.get(word, word) for word in rest], parent=above)
                except _WRONG as error:
                    wrong.append((file, " ".join(words), error.format_message()))
            elif unknown := {word for word in rest if word.startswith("-")} - options:
                wrong.append((file, " ".join(words), str(unknown)))
    assert wrong == []
    assert len(seen) > 80
