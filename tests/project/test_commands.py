"""What holds for every command of both programs: dry runs, errors as JSON, exit codes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.dashboard.overview import as_json, overview
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.read.pins import HeldPin, PinOptions
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.boundary import run
from tests.project.every_command import APPS, every_command, offers
from tests.support.compaction_steps import run_all
from tests.support.golden_tables import unzip_golden
from tests.support.places import traces
from tests.support.servers.hive_metastore import MemoryMetastore

_SERVING = {("timeline", "serve"), ("compactor-daemon", "run")}
"""They run until they are stopped. What `run` would request and execute: `schedule` and `compact` with `--dry-run`."""

_ALL = [found for found in every_command() if (found[0], *found[1]) not in _SERVING]
_each = pytest.mark.parametrize(("app", "words", "command"), _ALL, ids=[" ".join((a, *w)) for a, w, _ in _ALL])
_each_with_table = pytest.mark.parametrize(
    ("app", "words", "command"),
    [found for found in _ALL if any("TABLE" in (p.metavar or "") for p in found[2].params)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else "",
)


NOWHERE = "hive:127.0.0.1:1"


class Ended:
    """How a command ended: exit code, standard output, and standard error without log lines."""

    def __init__(self, capsys: pytest.CaptureFixture[str], app: str, *args: object) -> None:
        with pytest.raises(SystemExit) as ended:
            run(APPS[app], [str(arg) for arg in args])
        self.code = ended.value.code
        printed = capsys.readouterr()
        self.out = printed.out
        self.err = "\n".join(line for line in printed.err.splitlines() if '"event"' not in line)

    def error(self, code: int) -> dict[str, Any]:
        """The one JSON object of an error."""
        assert (self.code, self.out) == (code, ""), self.err
        found: dict[str, Any] = json.loads(self.err)
        assert found["exit_code"] == code
        assert "\n" not in found["error"]
        return found


def arguments(app: str, words: tuple[str, ...], command: Any, table: Path) -> list[str]:
    """What a command must be given, by its placeholders; KeyError: one that this does not know yet."""
    timeline = Table.open(str(table)).load_timeline()
    completed = sorted(i.requested_time for i in timeline.completed)
    compactions = [i.requested_time for i in timeline.instants if i.family == "commit"]
    name = " ".join(words)
    instant = {"rollback": completed[-1], "savepoint delete": completed[0]}.get(name, compactions[-1])
    own = {
        "restore": ["--to", completed[0]],
        "pins": ["--release", "copy"],
        "sync": ["--to", NOWHERE],
        "check": ["--patience", "1e9"],
        "partition-ttl": ["--days-retain", "1"],
    }
    given = list(own.get(name, []))
    for param in command.params:
        meta = re.sub(r"[\[\].]", "", param.metavar or "")
        if meta != "COMMAND" and (param.required or meta == "TABLE"):
            value = {
                "TABLE": str(table),
                "INSTANT": instant,
                "FILE": f"{table}/.hoodie/hoodie.properties",
                "TEXT": "a text",
                "NAME=VALUE": "codec=zstd",
                "NAME": "codec",
            }[meta]
            given += [value] if param.param_type_name == "argument" else [param.opts[0], value]
    return given


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """With a pending compaction, a savepoint and a pin."""
    path = unzip_golden("v9_pending", tmp_path)
    opened = Table.open(str(path))
    first = min(i.requested_time for i in opened.load_timeline().completed)
    create_savepoint(opened, table_lock(opened.storage, None), first, user="u", comment="")
    HeldPin(opened.storage, PinOptions.of("copy", "2h"), "")
    return path


def _tear_a_compaction(table: Path) -> None:
    """The pending one is completed, and its completed file is emptied."""
    run_all(opened := Table.open(str(table)))
    (done,) = (i for i in opened.load_timeline().completed if i.action == "commit")
    file = table / opened.instant_path(done)
    file.write_bytes(b"")
    os.utime(file, (file.stat().st_mtime - 200, file.stat().st_mtime - 200))


def _traces(table: Path) -> dict[Path, int]:
    """Where a pin is, a file comes and goes that asks the storage for its time."""
    asked = table / ".hoodie/.phantombase/tmp"
    return {path: time for path, time in traces(table).items() if path != asked}


@_each_with_table
def test_a_dry_run_changes_nothing(
    app: str,
    words: tuple[str, ...],
    command: Any,
    table: Path,
    capsys: pytest.CaptureFixture[str],
    memory_metastore: MemoryMetastore,
) -> None:
    """No command without `--dry-run` changes the table; one with it needs no lock for it."""
    if words == ("repair",):
        _tear_a_compaction(table)
    before = _traces(table)
    flags = ["--dry-run"] if offers(command, "--dry-run") else []
    given = [memory_metastore.where if one == NOWHERE else one for one in arguments(app, words, command, table)]
    ended = Ended(capsys, app, *words, *given, *flags, "--json")
    assert ended.code == 0, ended.err
    settings = as_json(overview(Table.open(str(table))).table)
    assert json.loads(ended.out).get("table", str(table)) in (str(table), settings)
    assert _traces(table) == before


@_each
def test_wrong_usage_is_one_json_object(
    app: str, words: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Ended(capsys, app, *words, "--no-such-option", "--json").error(2)
    assert "--no-such-option" in found["error"]
    assert f"{app} {' '.join(words)} --help" in found["error"]


@_each_with_table
def test_a_wrong_path_is_one_json_object(
    app: str, words: tuple[str, ...], command: Any, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the path, and nothing appears there."""
    given = [word.replace(str(table), str(tmp_path / "none")) for word in arguments(app, words, command, table)]
    sole = ["--sole-writer"] if offers(command, "--sole-writer") else []
    ended = Ended(capsys, app, *words, *given, *sole, "--json")
    if words == ("check",):  # what it shows of a table that cannot be read
        assert (ended.code, str(tmp_path / "none") in ended.out) == (2, True)
    else:
        found = ended.error(1)
        assert (found["what"], found["path"]) == ("no such folder", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@_each_with_table
def test_an_interrupt_says_what_to_do_next(
    app: str,
    words: tuple[str, ...],
    command: Any,
    table: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = arguments(app, words, command, table)

    def interrupted(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalStorage, "read", interrupted)
    sole = ["--sole-writer"] if offers(command, "--sole-writer") else []
    assert "Run the same command again" in Ended(capsys, app, *words, *given, *sole, "--json").error(130)["error"]


@pytest.mark.parametrize(("said", "near"), [("stitch", "cluster"), ("compaction", "compact"), ("clen", "clean")])
def test_an_unknown_command_is_an_error_that_names_the_near_one(said: str, near: str) -> None:
    done = CliRunner().invoke(APPS["compactor-daemon"], [said, "TABLE"])
    assert done.exit_code == 2
    assert f"No such command '{said}'. Did you mean '{near}'?" in " ".join(done.output.split())
