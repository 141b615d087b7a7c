"""Version 6: a plan on which writes have put logs loses the file groups without such logs, and no row of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.attempt.attempt import open_attempt
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.unschedule import Unscheduled, unschedule
from phantombase.timeline.errors import ConflictError, MalformedError, PhantombaseError, UsageError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import died_or_ended
from tests.support.golden_tables import LOCK, one_of, unzip_golden

PARTITIONS = ("p0", "p1", "p2")


def batch(ts: int, *partitions: str) -> pa.Table:
    ids = [f"{p}-{n}" for p in partitions for n in range(3)]
    return pa.table({"id": ids, "p": [i[:2] for i in ids], "ts": pa.array([ts] * len(ids), pa.int64())})


def planned(path: Path, version: int = 6) -> str:
    """A file group in each of three partitions, all in a plan."""
    writer(batch(1, *PARTITIONS)).table("t", version=version).key("id").partition("p").ordering("ts").upsert(str(path))
    writer(batch(2, *PARTITIONS)).upsert(str(path))
    instant = schedule_compaction(open_table(path), LOCK).instant
    assert instant is not None
    return instant


def damage(path: Path, partition: str) -> Path:
    (base,) = (path / partition).glob("*.parquet")
    base.write_bytes(base.read_bytes()[:100])
    return base


def times(path: Path, *partitions: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for partition in partitions:
        rows = read(str(path), partition=partition).to_arrow()
        found |= dict(zip(rows["id"].to_pylist(), rows["ts"].to_pylist(), strict=True))
    return found


def groups(path: Path, instant: str) -> list[str]:
    return sorted(o.partition_path for o in open_table(path).compaction_plan(instant).operations)


def all_at(ts: int, *partitions: str) -> dict[str, int]:
    return {f"{p}-{n}": ts for p in partitions for n in range(3)}


def test_the_groups_without_logs_of_the_plan_are_free(tmp_path: Path) -> None:
    """One of them is damaged, so that the plan could never be executed. The others are compacted, and planned again."""
    path = tmp_path / "t"
    instant = planned(path)
    kept = damage(path, "p2")
    writer(batch(3, "p0")).upsert(str(path))
    with pytest.raises(MalformedError):
        run_all(open_table(path))
    done = unschedule(open_table(path), instant, LOCK)
    assert done == Unscheduled(instant=instant, file_groups=2, attempts=done.attempts, kept=1)
    assert groups(path, instant) == ["p0"]
    assert times(path, "p0", "p1") == all_at(3, "p0") | all_at(2, "p1")
    run_all(open_table(path))
    assert times(path, "p0", "p1") == all_at(3, "p0") | all_at(2, "p1")
    # The next planning looks at what was taken out, though nothing was written to it since; the damaged one stays out.
    again = schedule_compaction(open_table(path), LOCK, ScheduleOptions(strategy=TriggerStrategy.ALWAYS))
    assert groups(path, str(again.instant)) == ["p0", "p1"]  # the log on the plan is one on the new base file now
    assert again.notes is not None
    assert [one.partition for one in again.notes.unmergeable] == ["p2"]
    run_all(open_table(path))
    writer(batch(4, "p2")).insert_overwrite(str(path))
    assert times(path, *PARTITIONS) == all_at(3, "p0") | all_at(2, "p1") | all_at(4, "p2")
    assert kept.exists()


def test_where_all_have_logs_the_plan_must_be_executed(tmp_path: Path) -> None:
    """The error names what works: an overwrite of the partition that cannot be merged, then the rest is compacted."""
    path = tmp_path / "t"
    instant = planned(path)
    writer(batch(3, *PARTITIONS)).upsert(str(path))
    damage(path, "p2")
    with pytest.raises(ConflictError, match=r"file of this instant.*Execute.*insert_overwrite"):
        unschedule(open_table(path), instant, LOCK)
    assert groups(path, instant) == list(PARTITIONS)
    writer(batch(4, "p2")).insert_overwrite(str(path))
    run_all(open_table(path))
    assert times(path, *PARTITIONS) == all_at(3, "p0", "p1") | all_at(4, "p2")
    writer(batch(5, *PARTITIONS)).upsert(str(path))
    assert times(path, *PARTITIONS) == all_at(5, *PARTITIONS)


def test_from_version_8_on_the_whole_plan_goes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, 9)
    writer(batch(3, "p0")).upsert(str(path))
    assert unschedule(open_table(path), instant, LOCK).kept == 0
    assert open_table(path).load_timeline().pending_compactions == ()
    assert times(path, *PARTITIONS) == all_at(3, "p0") | all_at(2, "p1", "p2")


def test_a_dry_run_tells_it_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path)
    writer(batch(3, "p0")).upsert(str(path))
    done = unschedule(open_table(path), instant, LOCK, dry_run=True)
    assert (done.file_groups, done.kept) == (2, 1)
    assert groups(path, instant) == list(PARTITIONS)


def test_an_attempt_on_the_plan_of_before_decides_nothing(tmp_path: Path) -> None:
    """One that was open is dead; one that read the plan right before it was narrowed is none."""
    path = tmp_path / "t"
    instant = planned(path)
    writer(batch(3, "p0")).upsert(str(path))
    table = open_table(path)
    open_attempt(table, instant, AttemptOptions())
    narrowed: list[Unscheduled] = []

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith("/open") and not narrowed:
            narrowed.append(unschedule(open_table(path), instant, LOCK))
        return call.do()

    with pytest.raises(ConflictError, match=r"just unscheduled.*removed from it"):
        open_attempt(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, AttemptOptions())
    assert narrowed
    run_all(open_table(path))
    assert times(path, *PARTITIONS) == all_at(3, "p0") | all_at(2, "p1", "p2")


def test_died_at_every_call_no_row_is_lost(tmp_path: Path) -> None:
    """The plan is whole or narrowed, and in either case it can be narrowed again, or executed."""
    origin = tmp_path / "t"
    instant = planned(origin)
    writer(batch(3, "p0")).upsert(str(origin))
    sizes = set[int]()
    for path in died_or_ended(origin, lambda storage: unschedule(open_table(path_of(storage), storage), instant, LOCK)):
        assert times(path, *PARTITIONS) == all_at(3, "p0") | all_at(2, "p1", "p2")
        sizes.add(len(groups(path, instant)))
        if groups(path, instant) != ["p0"]:
            unschedule(open_table(path), instant, LOCK)
        run_all(open_table(path))
        assert times(path, *PARTITIONS) == all_at(3, "p0") | all_at(2, "p1", "p2")
    assert sizes == {1, 3}


def path_of(storage: Storage) -> Path:
    return Path(storage.base_path)


# `--dry-run`: everything is checked and shown, and the table stays as it is.


def call(path: Path, *words: str) -> dict[str, Any]:
    """The document of a command of one table."""
    command, *rest = words
    args = [*command.split(), str(path), *rest, "--json"]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def traces(path: Path) -> dict[Path, int]:
    """All files with their times."""
    return {p: p.stat().st_mtime_ns for p in path.rglob("*")}


def test_every_command_that_changes_a_table_has_a_dry_run() -> None:
    """They are those that take a lock."""
    group: Any = typer.main.get_command(app)
    commands = [(name, inner) for name, one in group.commands.items() for inner in _within(one)]
    takes = [(name, {option for param in command.params for option in param.opts}) for name, command in commands]
    changing = {name: options for name, options in takes if "--lock" in options}
    assert {name for name, options in changing.items() if "--dry-run" not in options} <= {"run"}
    assert len(changing) > 8


@one_of("name", "v9_with_metadata_table", "v6_with_metadata_table")
def test_no_dry_run_asks_who_writes(name: str, tmp_path: Path) -> None:
    """It takes no lock."""
    path = unzip_golden(name, tmp_path)
    before = traces(path)
    newest = max(open_table(path).load_timeline().completed_writes)
    first = min(open_table(path).load_timeline().completed_writes)
    for words in (
        ["clean"],
        ["archive"],
        ["cluster"],
        ["metadata"],
        ["savepoint create"],
        ["rollback", newest],
        ["restore", "--to", first],
        ["schedule"],
    ):
        call(path, *words, "--dry-run")
    assert traces(path) == before


def _within(command: Any) -> list[Any]:
    return list(getattr(command, "commands", {}).values()) or [command]


@one_of("name", "v6_pending", "v9_pending")
def test_what_would_be_done_and_nothing_is(name: str, tmp_path: Path) -> None:
    """Then the same command does what it showed."""
    path = unzip_golden(name, tmp_path)
    (pending,) = (i.requested_time for i in open_table(path).load_timeline().pending_merges)
    before = traces(path)
    assert call(path, "release", pending, "--dry-run")["failures"] == 0
    shown = call(path, "savepoint create", "--dry-run")
    with pytest.raises(UsageError, match="no such savepoint"):
        call(path, "savepoint delete", shown["instant"], "--dry-run")
    assert traces(path) == before
    made = call(path, "savepoint create", "--sole-writer")
    assert (made["instant"], made["files"]) == (shown["instant"], shown["files"])
    kept = traces(path)
    assert call(path, "savepoint delete", made["instant"], "--dry-run")["deleted"] == made["instant"]
    assert traces(path) == kept


def test_a_plan_that_would_be_taken_back(tmp_path: Path) -> None:
    """Refused, or shown, as without `--dry-run`."""
    path = unzip_golden("v9_plain", tmp_path)
    call(path, "schedule", "--sole-writer")
    (pending,) = (i.requested_time for i in open_table(path).load_timeline().pending_merges)
    before = traces(path)
    shown = call(path, "unschedule", pending, "--dry-run")
    assert traces(path) == before
    done = call(path, "unschedule", pending, "--sole-writer")
    assert (shown["instant"], shown["file_groups"]) == (done["instant"], done["file_groups"])


def test_a_write_that_would_be_taken_back(tmp_path: Path) -> None:
    """The newest; another one is refused in a dry run too."""
    path = unzip_golden("v9_plain", tmp_path)
    writes = sorted(open_table(path).load_timeline().completed_writes)
    before = traces(path)
    with pytest.raises(PhantombaseError):
        call(path, "rollback", writes[0], "--dry-run")
    shown = call(path, "rollback", writes[-1], "--dry-run")
    assert (shown["rollback"], shown["dry_run"]) == ("", True)
    assert traces(path) == before
