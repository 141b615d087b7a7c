"""Nothing is requested that `compact` would refuse: such file groups are left out and shown, the others compacted."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import PhantombaseError, UnsupportedError
from phantombase.timeline.planning.notes import LeftOut
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import Scheduled
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.planning.universal import Picking
from phantombase.timeline.read.slice_log import check_slice
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.view.view import FileGroup, GroupKey, latest_slice
from tests.support.builders import block
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage
from tests.support.golden_tables import unzip_golden
from tests.support.refused_tables import NO_COLUMNS, UNKNOWN_INDEX, digest, evolves_on_read, schedule, written_instant
from tests.support.tables import one_of

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
    assert "nothing to plan" in done.why
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

    monkeypatch.setattr("phantombase.timeline.planning.survey.check_slice", fail)
    one = replace(PLAN_NOW, max_file_slices=1)  # blocks that are known are not checked again
    assert "some day another rule" in schedule(path, one).why
