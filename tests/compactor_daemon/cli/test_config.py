"""Settings: a file, then variables, then the command line; each value says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import UsageError
from phantombase.timeline.terminal.settings import settings_in
from tests.support.golden_tables import unzip_golden

_FILE = """
timezone = "UTC"
threads = 3
[schedule]
max-file-slices = 10
[run]
tables = ["T"]
max_concurrent = 2
[compact]
memory-limit = "256m"
[savepoint.create]
lock = "storage"
[timeline]
timezone = "LOCAL"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "phantombase.toml"
    path.write_text(_FILE)
    return path


def shown(command: str, *words: str | Path, **variables: str) -> dict[str, tuple[Any, str]]:
    """Value and origin of each setting of a command."""
    args = ["config", "show", command, *map(str, words), "--json"]
    done = CliRunner().invoke(app, args, env=variables, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return {row["name"]: (row["value"], row["from"]) for row in json.loads(done.stdout)["settings"]}


def test_each_value_says_where_it_comes_from(file: Path) -> None:
    """A variable is above the file, the file's table of a command above its top."""
    found = shown("compact", "--config", file, PHANTOMBASE_THREADS="5", PHANTOMBASE_BLOOM="off")
    assert found["threads"] == ("5", "PHANTOMBASE_THREADS")
    assert found["bloom"] == ("off", "PHANTOMBASE_BLOOM")
    assert found["memory-limit"] == ("256m", f"{file} [compact]")
    assert found["timezone"] == ("UTC", str(file))
    assert found["codec"] == ("zstd", "default")
    by_variable = shown("compact", PHANTOMBASE_CONFIG=str(file))
    assert by_variable["memory-limit"] == found["memory-limit"]


def test_a_daemon_requests_with_the_settings_of_schedule(file: Path) -> None:
    found = shown("run", "--config", file)
    assert found["max-file-slices"] == ("10", f"{file} [schedule]")
    assert found["tables"] == (["T"], f"{file} [run]")
    assert found["max-concurrent"][0] == "2"
    assert shown("savepoint create", "--config", file)["lock"] == ("storage", f"{file} [savepoint create]")


def test_keys_of_a_store_are_not_shown() -> None:
    found = shown("compact", PHANTOMBASE_STORAGE_OPTION="secret_key=x17")
    assert found["storage-option"] == (["secret_key=..."], "PHANTOMBASE_STORAGE_OPTION")


def test_what_says_what_to_do_now_is_no_setting() -> None:
    """A variable must not turn every `compact` into a request, or drop a metadata table."""
    names = shown("compact").keys()
    assert not names & {"schedule", "dry-run", "instant", "drop-metadata-table", "help", "config"}
    assert {"schedule", "tables", "lock", "services"} <= shown("run").keys()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("thread = 3", "Did you mean threads"),
        ("[compct]\nthreads = 3", "Did you mean compact"),
        ("[compact]\nmemory_limt = '1g'", "Did you mean memory-limit"),
        ("[compact]\nmemory-limit = '1g'\nmemory_limit = '2g'", "given twice"),
        ("[compact]\nschedule = true", "not a setting of compact"),
        ("threads = ", "unreadable configuration file"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, what: str, tmp_path: Path) -> None:
    """With the file, and what may be meant; nothing is done."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=what) as refused:
        CliRunner().invoke(app, ["compact", str(tmp_path), "--config", str(path)], catch_exceptions=False)
    assert str(path) in str(refused.value)


def test_a_setting_of_other_commands_may_stand_on_top(file: Path, tmp_path: Path) -> None:
    """`status` has no threads; one file serves all commands of both programs."""
    table = unzip_golden("v9_pending", tmp_path)
    for program, words in ((app, ("status", "--brief")), (timeline, ("show",)), (app, ("compact",))):
        command, *rest = words
        done = CliRunner().invoke(program, [command, str(table), *rest, "--config", str(file)], catch_exceptions=False)
        assert done.exit_code == 0, done.output


def test_the_command_line_is_on_top(file: Path, tmp_path: Path) -> None:
    """The file says at most ten slices; a word of the command line wins without an error."""
    table = unzip_golden("v9_plain", tmp_path)
    for words, picked in (((), 2), (("--max-file-slices", "1"), 1)):
        args = ["schedule", str(table), "--dry-run", "--json", "--config", str(file), *words]
        done = CliRunner().invoke(app, args, catch_exceptions=False)
        assert len(json.loads(done.stdout)["picked"]) == picked


def test_a_daemon_finds_its_tables_in_the_file(tmp_path: Path) -> None:
    """With [schedule] for other commands beside it."""
    table, file = unzip_golden("v9_pending", tmp_path), tmp_path / "run.toml"
    file.write_text(f"[schedule]\nmax-plans = 2\n[run]\ntables = [{str(table)!r}]\n")
    done = CliRunner().invoke(app, ["run", "--once", "--json", "--config", str(file)], catch_exceptions=False)
    assert len(json.loads(done.stdout)["compacted"]) == 1


def test_the_table_of_a_command_is_above_the_top() -> None:
    found = settings_in(
        {"threads": 1, "compact": {"threads": 2}}, "f", "compact", ["threads"], ["compact"], lambda: frozenset()
    )
    assert (found["threads"].value, found["threads"].where) == (2, "f [compact]")
    both = {"schedule": {"max-plans": 1}, "run": {"max-plans": 2}}
    assert (
        settings_in(both, "f", "run", ["max-plans"], ["run", "schedule"], lambda: frozenset())["max-plans"].value == 2
    )
