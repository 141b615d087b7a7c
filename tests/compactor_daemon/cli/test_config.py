"""Settings: a file, then variables, then the command line; each value says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.cli import compact as compact_module
from phantombase.compactor_daemon.cli.fleet_flags import CatalogFlags
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.cli.option_flags import offers
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.terminal.settings import WRITES, read_settings, settings_in
from tests.support.compaction_steps import check_no_strays, open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import one_of, unzip_golden

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


def test_where_a_daemon_listens_is_a_setting_as_its_ports_are(tmp_path: Path) -> None:
    """PHANTOMBASE_METRICS_PORT was followed, PHANTOMBASE_METRICS_HOST was not: the port was open to all networks."""
    file = tmp_path / "f.toml"
    file.write_text('[run]\nserve = 8081\nserve-hudi-clients = ["10.0.0.0/8"]\nserve-allow-actions = true\n')
    variables = {"PHANTOMBASE_METRICS_HOST": "127.0.0.1", "PHANTOMBASE_SERVE_HOST": "10.1.1.1"}
    found = shown("run", "--config", file, **variables)
    params: Any = get_command(app)
    opened = {p.opts[0][2:] for p in params.commands["run"].params if p.name.startswith(("serve", "metrics"))}
    assert len(opened) == 7
    assert opened <= found.keys()
    assert (found["metrics-host"][0], found["serve-host"][0], found["serve"][0]) == ("127.0.0.1", "10.1.1.1", "8081")
    assert found["serve-allow-actions"][0] is True


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
        ("[compact.memory]\nlimit = '1g'", r"not the table of a command.*\[compact.memory\]"),
        ("compact = 3", r"\[compact\] is a table"),
        ("conf = ['hoodie.x=1']", "an option of the command line only"),
        ("[compact]\nprops = 'f'", "an option of the command line only"),
        ("threads = ", "unreadable configuration file"),
        ("bloom = 'x'\njson = 'perhaps'", "not a value of json"),
        ("storage-option = [['secret=1']]", "value of storage-option; at .*; expected a list of texts; found a list"),
        ("[compact]\nlock = true", "not a value of lock; at .*; expected a text or a number; found true or false"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, what: str, tmp_path: Path) -> None:
    """With the file, and what may be meant; nothing is done."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=what) as refused:
        CliRunner().invoke(app, ["compact", str(tmp_path), "--config", str(path)], catch_exceptions=False)
    assert str(path) in str(refused.value)


def test_the_table_of_the_other_program_is_one(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("timeline = 3")
    for program, command in ((app, "status"), (timeline, "show")):
        with pytest.raises(UsageError, match=r"\[timeline\] is a table"):
            CliRunner().invoke(program, [command, "T", "--config", str(path)], catch_exceptions=False)


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


@pytest.mark.parametrize("tables", ["['{}']", "'{}'"])
def test_a_daemon_finds_its_tables_in_the_file(tables: str, tmp_path: Path) -> None:
    """With [schedule] for other commands beside it. One text stands for a list of it, as in the settings of writers."""
    table, file = unzip_golden("v9_pending", tmp_path), tmp_path / "run.toml"
    file.write_text(f"[schedule]\nmax-plans = 2\n[run]\ntables = {tables.format(table)}\n")
    done = CliRunner().invoke(app, ["run", "--once", "--json", "--config", str(file)], catch_exceptions=False)
    assert len(json.loads(done.stdout)["compacted"]) == 1
    for command in ("status", "check", "claims", "history"):  # go by it too
        done = CliRunner().invoke(app, [command, "--json", "--config", str(file)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert command == "claims" or str(table) in done.stdout


def test_a_variable_that_is_nearly_one_of_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, as a name in the file is; others are of other programs."""
    for name, refused in (("PHANTOMBASE_MEMORY_LIMT", True), ("PHANTOMBASE_IMAGE", False)):
        done = CliRunner().invoke(app, ["compact", str(tmp_path)], env={name: "1"})
        assert ("Did you mean PHANTOMBASE_MEMORY_LIMIT" in str(done.exception)) == refused
    monkeypatch.setenv("PHANTOMBASE_BUCKTS", "8")
    with pytest.raises(UsageError, match=r"at PHANTOMBASE_BUCKTS\. Did you mean PHANTOMBASE_BUCKETS"):
        read_settings({}, WRITES, None, tmp_path)
    of_other = {"PHANTOMBASE_SLOTS": "4"}  # of daemons; near to a setting of `timeline`
    monkeypatch.delenv("PHANTOMBASE_BUCKTS")
    table = str(unzip_golden("v9_plain", tmp_path))
    assert CliRunner().invoke(timeline, ["show", table], env=of_other).exit_code == 0
    done = CliRunner().invoke(timeline, ["read", str(tmp_path)], env={"PHANTOMBASE_MEMORY_LIMIT": "5q"})
    assert "not a size for --memory-limit" in str(done.exception)  # where it counts, it is not passed over


def test_the_table_of_a_command_is_above_the_top() -> None:
    found = settings_in(
        {"threads": 1, "compact": {"threads": 2}}, "f", "compact", ["threads"], ["compact"], lambda: frozenset()
    )
    assert (found["threads"].value, found["threads"].where) == (2, "f [compact]")
    both = {"schedule": {"max-plans": 1}, "run": {"max-plans": 2}}
    assert (
        settings_in(both, "f", "run", ["max-plans"], ["run", "schedule"], lambda: frozenset())["max-plans"].value == 2
    )


# The error of a value names the option as it was typed.


DEFAULT = ScheduleOptions()


@offers
def schedule(options: ScheduleOptions = DEFAULT) -> None:
    """A command with the options of a plan."""


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"target_io": "5x"}, "not a size for --target-io"),  # the text is no size
        ({"max_file_slices": 0}, "--max-file-slices must be at least 1"),  # the dataclass names its field
        ({"optimization_interval": 0.0}, "--optimization-interval must be at least 1"),  # with a unit behind it
        ({"off_peak_hours": "22"}, "--off-peak-hours: not a span of hours"),  # or names none
        ({"partition_urgency": ["day=1"], "max_plans": 3}, "--partition-urgency: not an urgency"),
        ({"conf": ["hoodie.compaction.target.io=5x"]}, "not a value of hoodie.compaction.target.io"),
        ({"conf": ["hoodie.compact.inline.max.delta.commits=0"]}, "max-delta-commits must"),  # not typed: without --
    ],
)
def test_the_option_is_named_as_it_was_typed(given: dict[str, object], what: str) -> None:
    names = schedule.__signature__.parameters  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as refused:
        schedule(**{name: given.get(name) for name in names})
    assert refused.value.what.startswith(what), refused.value


def test_an_option_given_twice_shows_both_values() -> None:
    names = schedule.__signature__.parameters  # type: ignore[attr-defined]
    given = {"trigger": "num-commits", "conf": ["hoodie.compact.inline.trigger.strategy=TIME_ELAPSED"]}
    with pytest.raises(UsageError, match=r"expected --trigger=num-commits; found --trigger by --conf=time-elapsed"):
        schedule(**{name: given.get(name) for name in names})


@pytest.mark.parametrize(
    ("tables", "flags", "what"),
    [
        ([], CatalogFlags(), "the tables are named, or found"),
        (["t"], CatalogFlags(root="/r"), "the tables are named, or found"),
        ([], CatalogFlags(root="/r", catalog="hive:h:1"), "the tables are named, or found"),
        (["t"], CatalogFlags(include=("sales_*",)), "--include and --exclude are for tables that are found"),
        (["t"], CatalogFlags(exclude=("sales_*",)), "--include and --exclude are for tables that are found"),
        ([], CatalogFlags(catalog="nessie:h:1"), "unknown kind of catalog"),
    ],
)
def test_tables_are_named_or_found(tables: list[str], flags: CatalogFlags, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        flags.found(tables, flags.pools(None, DEFAULT), StorageOptions())


def test_only_an_unreadable_decision_needs_a_lock(tmp_path: Path) -> None:
    """Who gives one means to take a decision back."""
    path = unzip_golden("v9_pending", tmp_path)
    (instant,) = pending_instants(open_table(path))
    said = CliRunner().invoke(app, ["release", str(path), instant, "--sole-writer"])
    assert "only --unreadable needs a lock" in f"{said.output} {said.exception}"


# What a daemon says: what it serves, and why it requests nothing.


def test_a_daemon_says_what_it_does_and_why_not(tmp_path: Path) -> None:
    """When it starts, and once for the same reason, however often it looks."""
    table = unzip_golden("v9_plain", tmp_path)
    args = ["run", str(table), "--schedule", "--sole-writer", "--once", "--log-level", "debug"]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    (serving,) = [line for line in done.stderr.splitlines() if " serving " in line]
    assert all(word in serving for word in ("tables=1", "requests=True", "version=", "executor=auto"))
    (why,) = [line for line in done.stderr.splitlines() if "not_requested" in line]
    assert "4 of 5 delta commits since" in why


# `compact --schedule`: one command requests a compaction and executes it.


def compact(path: Path, *args: str) -> str:
    """stdout of `compact` in this process."""
    words = ["compact", str(path), "--executor", "local", *args]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def compact_json(path: Path, *args: str) -> dict[str, Any]:
    """The one document of `compact --json`."""
    document = json.loads(compact(path, *args, "--json"))
    assert isinstance(document, dict)
    return document


@one_of("name", "v9_plain", "v6_plain")
def test_one_command_compacts_a_table(name: str, tmp_path: Path) -> None:
    """A plan is requested and executed; a second run has nothing to do and says why; the rows stay."""
    path = unzip_golden(name, tmp_path)
    before = read_table(open_table(path))
    assert "--schedule" in compact(path)
    found = compact_json(path, "--schedule", "--sole-writer")
    (plan,) = found["scheduled"]["plans"]
    (done,) = found["compacted"]
    assert (done["instant"], done["file_groups"]) == (plan["instant"], plan["file_groups"])
    again = compact(path, "--schedule", "--sole-writer")
    assert again.startswith("nothing to do: no compaction is pending, and none was requested: ")
    assert_same_rows(before, read_table(open_table(path)))
    check_no_strays(path)


def test_what_pends_already_is_executed_too(tmp_path: Path) -> None:
    """A plan of an earlier run that died before it was executed."""
    path = unzip_golden("v9_pending", tmp_path)
    (pending,) = open_table(path).load_timeline().pending_merges
    done = compact_json(path, "--schedule", "--sole-writer")["compacted"]
    assert pending.requested_time in [one["instant"] for one in done]
    assert not open_table(path).load_timeline().pending_merges


@pytest.mark.parametrize("name", ["v9_plain", "v9_pending"])
def test_a_dry_run_leaves_no_trace(name: str, tmp_path: Path) -> None:
    """It shows what would be requested and executed."""
    path = unzip_golden(name, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    found = compact_json(path, "--schedule", "--dry-run")
    pending = [i.requested_time for i in open_table(path).load_timeline().pending_merges]
    assert [one["instant"] for one in found["pending"]] == pending
    assert bool(found["scheduled"]["plans"] or pending)
    assert "would" in compact(path, "--schedule", "--dry-run")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "args",
    [
        ("--schedule",),
        ("--schedule", "--sole-writer", "--lock", "storage"),
        ("--schedule", "--sole-writer", "--instant", "20260101000000000"),
        ("--dry-run", "--drop-metadata-table"),
    ],
)
def test_contradictions_leave_no_trace(args: tuple[str, ...], tmp_path: Path) -> None:
    """Writers must be known; one instant cannot be new and named."""
    path = unzip_golden("v9_plain", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        compact(path, *args)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_demo_makes_a_table_where_it_is_told_to(tmp_path: Path) -> None:
    """The folder is the table; a folder with files is refused, and stays as it is."""
    kept = tmp_path / "made" / "orders"
    done = CliRunner().invoke(app, ["demo", "--keep", str(kept)], catch_exceptions=False)
    assert f"timeline show {kept}" in done.stdout
    assert (kept / ".hoodie" / "hoodie.properties").is_file()
    before = sorted(kept.rglob("*"))
    again = CliRunner().invoke(app, ["demo", "--keep", str(kept)])
    assert "the folder is not empty" in str(again.exception)
    assert sorted(kept.rglob("*")) == before

    def fails(*_: Any, **__: Any) -> None:
        if (others := tmp_path / "others" / "more").is_dir():
            (others / "file").write_text("x")
        raise OSError("No space left")

    with mock.patch.object(compact_module, "run_compactions", fails):
        for folder in ("full", "above/full", "empty", "others/more/full"):
            (tmp_path / "empty").mkdir(exist_ok=True)
            CliRunner().invoke(app, ["demo", "--keep", str(tmp_path / folder)])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "made", "others"]
    assert not list((tmp_path / "empty").iterdir())
    assert [one.name for one in (tmp_path / "others").rglob("*")] == ["more", "file"]
