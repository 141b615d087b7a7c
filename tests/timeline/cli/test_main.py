"""The `timeline` command: what it prints, what it refuses, how it exits."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from phantombase.timeline.cli.main import app
from phantombase.timeline.cli.render import ShownRows
from phantombase.timeline.dashboard.compactions import recommended_executors
from phantombase.timeline.errors import MissingFileError, NotATableError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.read import export
from phantombase.timeline.read.export import export_stream
from phantombase.timeline.read.table_read import ReadOptions, Scan, plan_read, read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal import console
from phantombase.timeline.terminal.boundary import run
from phantombase.timeline.terminal.command_line import flowing, with_log_options
from phantombase.timeline.terminal.console import configure_logging, emit, progress, reporting
from phantombase.timeline.terminal.settings import LogLevel
from phantombase.timeline.terminal.text_table import human_bytes, human_duration
from phantombase.timeline.view.view import FileSlice
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.places import ROOT, capture_logs

_INSTANT = re.compile(r"\d{17}")


@pytest.fixture(autouse=True)
def _wide_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "PHANTOMBASE_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


def call(*args: str | Path) -> str:
    """stdout of a command that must succeed and say nothing on stderr."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def call_json(*args: str | Path) -> dict[str, Any]:
    """The one JSON document of a command."""
    document = json.loads(call(*args, "--json"))
    assert isinstance(document, dict)
    return document


def fail(capsys: pytest.CaptureFixture[str], *args: str | Path, code: int = 1) -> str:
    """The one error line of a command that must fail, through the error boundary."""
    with pytest.raises(SystemExit) as exit_info:
        run(app, [str(arg) for arg in args])
    printed = capsys.readouterr()
    assert (exit_info.value.code, printed.out) == (code, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def misused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    """The one error line of a command that was called with a wrong argument."""
    return fail(capsys, *args, code=2)


def subprocess_call(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phantombase.timeline.cli.main", *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# --- show --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v6", "v8", "v9"])
def test_show_lists_instants_and_what_pends(version: str, tmp_path: Path) -> None:
    """All instants in order; the pending compaction with its age and plan."""
    data = call_json("show", unzip_golden(f"{version}_pending", tmp_path))
    assert set(data) == {"table", "pending_only", "instants", "pending"}
    assert (
        data["table"].items()
        >= {
            "name": "pending",
            "version": int(version[1:]),
            "type": "MERGE_ON_READ",
            "ordering_fields": ["ts"],
            "metadata_table": False,
        }.items()
    )
    times = [row["instant"] for row in data["instants"]]
    assert times == sorted(times)
    assert [row["action"] for row in data["instants"]].count("deltacommit") == 6
    completions = [row["completion_time"] for row in data["instants"] if row["state"] == "completed"]
    assert all(time is None if version == "v6" else _INSTANT.fullmatch(time) for time in completions)
    (pending,) = data["pending"]
    assert pending["age_s"] is not None
    assert (
        pending.items()
        >= {
            "action": "compaction",
            "state": "requested",
            "heartbeat": "none",
            "heartbeat_age_s": None,
            "problem": None,
        }.items()
    )
    assert pending["plan"]["file_groups"] == 2
    assert pending["plan"]["log_files"] == 4
    # What the plan says is what lies on storage.
    report = call_json("plan", tmp_path / "pending", pending["instant"])
    assert pending["plan"]["log_bytes"] == report["totals"]["log_bytes"] > 0


def test_show_pending_only_and_archived(tmp_path: Path) -> None:
    """--pending leaves out what is completed; --archived adds what left the active timeline."""
    table = unzip_golden("v9_archived", tmp_path)
    plain, pending = call_json("show", table), call_json("show", table, "--pending")
    everything = call_json("show", table, "--archived")
    assert [row["state"] for row in pending["instants"]] == ["requested"]
    assert not any(row["archived"] for row in plain["instants"])
    archived = [row for row in everything["instants"] if row["archived"]]
    assert archived
    assert len(everything["instants"]) == len(plain["instants"]) + len(archived)
    assert max(r["instant"] for r in archived) < plain["instants"][0]["instant"]


def test_show_tells_a_writer_by_its_heartbeat(tmp_path: Path) -> None:
    """A pending write is fresh while its heartbeat file is."""
    table = unzip_golden("v9_plain", tmp_path)
    for time, age_s in (("29990101000000000", 5), ("29990101000000001", 500)):
        (table / f".hoodie/timeline/{time}.deltacommit.inflight").touch()
        beat = table / f".hoodie/.heartbeat/{time}"
        beat.parent.mkdir(exist_ok=True)
        beat.touch()
        os.utime(beat, (beat.stat().st_mtime - age_s,) * 2)
    rows = call_json("show", table)["pending"]
    assert [row["heartbeat"] for row in rows] == ["fresh", "stale"]
    assert 5 <= rows[0]["heartbeat_age_s"] < 100
    text = call("show", table, "--pending")
    assert "not yet begun" in text  # the clock is behind the instant
    assert "stale, 8 min 20 s" in text


def test_show_stays_useful_when_a_plan_is_broken(tmp_path: Path) -> None:
    """One unreadable plan is shown as the problem it is, beside everything else."""
    table = unzip_golden("v6_two_pending", tmp_path)
    first, second = sorted((table / ".hoodie").glob("*.compaction.requested"))
    first.write_bytes(b"")
    rows = call_json("show", table)["pending"]
    assert first.name in rows[0]["problem"]
    assert rows[0]["plan"] is None
    assert rows[1]["plan"]["file_groups"] == 1
    assert second.name.startswith(rows[1]["instant"])
    assert "problem:" in call("show", table)


def test_show_for_people(tmp_path: Path) -> None:
    """Readable instants, sizes with units; what is not recorded is said to be so."""
    text = call("show", unzip_golden("v6_pending", tmp_path))
    assert re.search(r"20261121091052663 +2026-11-21 09:10:52 +compaction +requested +–", text)
    assert "not recorded" in text
    assert re.search(r"compaction requested .* 2 file groups, \d+\.\d KiB of logs +none", text)
    assert "Nothing is pending." in call("show", unzip_golden("v6_plain", tmp_path))
    metadata = call("show", unzip_golden("v9_with_metadata_table", tmp_path))
    assert re.search(r"metadata table +on \(.*files", metadata)


# --- slices ------------------------------------------------------------------------------------------------------


@one_of("version", "v9", "v8", "v6")
def test_slices_show_phantoms_and_plans(version: str, tmp_path: Path) -> None:
    """Each planned group has the slice that is in the plan, and the phantom of the plan's instant."""
    data = call_json("slices", unzip_golden(f"{version}_pending", tmp_path))
    assert {row["partition"] for row in data["slices"]} == {"north", "south"}
    for planned, phantom in zip(data["slices"][::2], data["slices"][1::2], strict=True):
        assert planned["base"] == "file"
        assert planned["base_bytes"] > 0
        assert planned["pending_plan"] == phantom["base_instant"]
        assert phantom.items() >= {"base": "phantom", "base_file": None, "base_bytes": None}.items()
        assert phantom["pending_plan"] is None
        assert phantom["log_files"] > 0
    assert data["totals"]["phantom_slices"] == 2
    assert data["totals"]["log_bytes"] == sum(row["log_bytes"] for row in data["slices"])


def test_slices_of_one_partition_and_replaced_ones(tmp_path: Path) -> None:
    """--partition lists that subtree only; replaced groups say by what."""
    table = unzip_golden("v9_replaced", tmp_path)
    every = call_json("slices", table)["slices"]
    north = call_json("slices", table, "--partition", "north")["slices"]
    assert north == [row for row in every if row["partition"] == "north"]
    assert [row["replaced_by"] is not None for row in north].count(True) == 1
    assert re.search(r"replaced \d{17}", call("slices", table))
    assert re.search(r"in plan \d{17}", call("slices", table))


def test_slices_fit_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 100 columns file ids are shortened and nothing else; in a pipe nothing is."""
    table = unzip_golden("v9_replaced", tmp_path)
    file_id = call_json("slices", table)["slices"][0]["file_id"]
    assert file_id in call("slices", table)
    monkeypatch.setenv("COLUMNS", "100")
    text = call("slices", table)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert re.search(rf"{file_id[:9]}.*….* \d{{17}} .*replaced \d{{17}}", text)
    monkeypatch.setenv("COLUMNS", "50")
    assert max(len(line) for line in call("slices", table).splitlines()) <= 50


# --- plan --------------------------------------------------------------------------------------------------------


def test_plan_has_sizes_as_on_storage(tmp_path: Path) -> None:
    """Every file with its size now; totals add up; executors are advised."""
    table = unzip_golden("v6_pending", tmp_path)
    data = call_json("plan", table, "20261121091052663")
    assert data["state"] == "requested"
    for row in data["operations"]:
        folder = table / row["partition"]
        assert row["base_bytes"] == (folder / row["base_file"]).stat().st_size
        assert [log["bytes"] for log in row["logs"]] == [(folder / log["name"]).stat().st_size for log in row["logs"]]
        assert row["bytes"] == row["base_bytes"] + row["log_bytes"]
    assert data["totals"]["bytes"] == sum(row["bytes"] for row in data["operations"])
    assert data["recommended_executors"] == 2
    assert "2 recommended" in call("plan", table, "20261121091052663")


@given(st.lists(st.integers(0, 1 << 50), max_size=30))
def test_recommended_executors(slice_bytes: list[int]) -> None:
    """As many as the largest slice's duration can keep busy, one fewer could not, and never more than slices."""
    count, largest = recommended_executors(slice_bytes), max(slice_bytes, default=0)
    assert (count == 0) == (not slice_bytes)
    assert count <= len(slice_bytes)
    assert count * largest >= sum(slice_bytes)
    assert count <= 1 or (count - 1) * largest < sum(slice_bytes)


def test_plan_with_a_missing_file_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A planned file that is gone is an error with its path, not a size of zero."""
    table = unzip_golden("v6_pending", tmp_path)
    victim = table / "north" / call_json("plan", table, "20261121091052663")["operations"][0]["logs"][0]["name"]
    victim.unlink()
    assert f"north/{victim.name}" in fail(capsys, "plan", table, "20261121091052663")


def test_plan_of_what_is_no_compaction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error tells which compactions are pending."""
    table = unzip_golden("v6_two_pending", tmp_path)
    message = misused(capsys, "plan", table, "20261121091101969")
    assert "20261121091108780, 20261121091112176" in message
    assert "not a compaction" in misused(capsys, "plan", unzip_golden("v9_plain", tmp_path), "nonsense")


# --- read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v6_pending", "v8_types", "v9_two_pending", "v9_replaced"])
@pytest.mark.parametrize("query", ["snapshot", "read-optimized"])
def test_read_writes_what_hudi_reads(name: str, query: str, tmp_path: Path) -> None:
    """The file has the rows real Hudi reads, and the report says how many."""
    table, output = unzip_golden(name, tmp_path), tmp_path / "out.parquet"
    data = call_json("read", table, "--query", query, "--output", output)
    expected = pq.read_table(f"{table}.expected/{query.replace('-', '_')}.parquet")
    found = pq.read_table(output)
    keys = [name for name in ("_hoodie_record_key", "_hoodie_commit_time") if name in expected.column_names]
    assert found.select(keys).sort_by([(k, "ascending") for k in keys]) == expected.select(keys).sort_by(
        [(k, "ascending") for k in keys]
    )
    assert data.items() >= {"rows": expected.num_rows, "query": query, "bytes": output.stat().st_size}.items()
    assert data["columns"] == found.column_names
    assert pq.ParquetFile(output).num_row_groups <= 1


def test_read_notes_no_bounds_of_floats(tmp_path: Path) -> None:
    """Arrow leaves NaN out of them, and Spark would pass over rows with it."""
    output = tmp_path / "rows.parquet"
    call_json("read", unzip_golden("v9_types", tmp_path), "--output", output)
    group = pq.read_metadata(output).row_group(0)
    chunks = [group.column(n) for n in range(group.num_columns)]
    assert {c.physical_type for c in chunks if c.statistics is None} == {"DOUBLE", "FLOAT"}
    assert all(c.statistics is None for c in chunks if c.physical_type in ("DOUBLE", "FLOAT"))


def test_read_columns_partition_and_as_of(tmp_path: Path) -> None:
    """The options arrive: columns, partition, and a point in time that people can write."""
    table, output = unzip_golden("v9_plain", tmp_path), tmp_path / "out.parquet"
    data = call_json("read", table, "--columns", "p, id", "--partition", "south", "--output", output)
    assert data["columns"] == ["id", "p"]
    assert set(pq.read_table(output)["p"].to_pylist()) == {"south"}
    first = call_json("show", table)["instants"][0]["instant"]
    readable = f"{first[:4]}-{first[4:6]}-{first[6:8]} {first[8:10]}:{first[10:12]}:{first[12:14]}.{first[14:]}"
    past = call_json("read", table, "--as-of", readable, "--output", output, "--overwrite")
    assert past["as_of"] == first
    assert set(pq.read_table(output)["_hoodie_commit_time"].to_pylist()) == {first}


def test_read_writes_what_the_ending_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or refuses, before anything is read, what such a file cannot hold."""
    table, files = unzip_golden("v9_plain", tmp_path), [tmp_path / f"out.{end}" for end in ("parquet", "csv", "jsonl")]
    for output in files:
        call_json("read", table, "--output", output)
    wanted = pq.read_table(files[0])
    nulls = {"strings_can_be_null": True, "quoted_strings_can_be_null": False}
    found = csv.read_csv(files[1], convert_options=csv.ConvertOptions(column_types=wanted.schema, **nulls))
    assert found.to_pylist() == wanted.to_pylist()
    plain = ["id", "city", "fare", "n", "ok"]
    lines = [json.loads(line) for line in files[2].read_text().splitlines()]
    assert [{name: one[name] for name in plain} for one in lines] == wanted.select(plain).to_pylist()
    assert list(lines[0]) == wanted.column_names
    types = unzip_golden("v9_types", tmp_path)
    for end, held in ("csv", "no lists, structs, maps or bytes"), ("json", "no bytes"):
        assert held in misused(capsys, "read", types, "--output", tmp_path / f"types.{end}")
        assert not (tmp_path / f"types.{end}").exists()


def test_read_refuses_bad_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output that is there, has no folder, is a folder, or would lie in the table."""
    table, output = unzip_golden("v6_plain", tmp_path), tmp_path / "out.parquet"
    output.write_text("precious")
    assert "--overwrite" in misused(capsys, "read", table, "--output", output)
    assert output.read_text() == "precious"
    assert "no such folder" in misused(capsys, "read", table, "--output", tmp_path / "none" / "x.parquet")
    assert "plain file" in misused(capsys, "read", table, "--output", tmp_path, "--overwrite")
    assert "cannot write the output" in fail(capsys, "read", table, "--output", tmp_path / f"{400 * 'x'}.csv")
    assert "inside the table" in misused(capsys, "read", table, "--output", table / "north" / "x.parquet")
    assert call("read", table, "--output", output, "--overwrite").startswith(
        f"{pq.read_table(output).num_rows} rows of "
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "to a terminal" in misused(capsys, "read", table, "--output", "-")


def _break_slices(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """The second slice of a read vanishes under it, the first `failures` times."""
    original, state = Scan.slice_batches, {"calls": 0, "left": failures}

    def slice_batches(self: Scan, slice_: FileSlice) -> Iterator[pa.RecordBatch]:
        state["calls"] += 1
        if slice_ == self.slices[1] and state["left"]:
            state["left"] -= 1
            raise MissingFileError("no such file", path=slice_.file_id)
        yield from original(self, slice_)

    monkeypatch.setattr(Scan, "slice_batches", slice_batches)


def test_read_starts_over_when_a_file_vanished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner in the middle of a read costs time, not rows."""
    table, output = unzip_golden("v9_pending", tmp_path), tmp_path / "out.parquet"
    _break_slices(monkeypatch, failures=2)
    data = call_json("read", table, "--output", output)
    expected = pq.read_table(f"{table}.expected/snapshot.parquet")
    assert data["rows"] == pq.read_table(output).num_rows == expected.num_rows
    assert not list(tmp_path.glob(".*"))


def test_a_failed_read_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither half an output nor a temporary file; what was there before stays."""
    table, output = unzip_golden("v9_pending", tmp_path), tmp_path / "out.parquet"
    output.write_text("precious")
    _break_slices(monkeypatch, failures=1_000)
    fail(capsys, "read", table, "--output", output, "--overwrite")
    assert output.read_text() == "precious"
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """An output that cannot be written is told from a table that cannot be read."""
    table, output = unzip_golden("v9_pending", tmp_path), tmp_path / "out.parquet"
    command = (
        f'ulimit -f 1; exec "{sys.executable}" -m phantombase.timeline.cli.main read "{table}" --output "{output}"'
    )
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: cannot write the output; at .*out\.parquet; found .*\n", done.stderr)
    assert not output.exists()
    assert not list(tmp_path.glob(".*"))


# --- errors and exit codes ---------------------------------------------------------------------------------------


def test_refusals_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a table, copy-on-write with a log file, a partition or column that is not there, a time that is none."""
    table, output = unzip_golden("v6_plain", tmp_path), tmp_path / "out.parquet"
    assert "[b]nowhere[/b]" in fail(capsys, "show", tmp_path / "[b]nowhere[/b]")
    assert "not a Hudi table" in fail(capsys, "slices", tmp_path)
    assert "nowhere" in misused(capsys, "slices", table, "--partition", "nowhere")
    assert "no such column" in misused(capsys, "read", table, "--columns", "id,nope", "--output", output)
    assert "not a point in time" in misused(capsys, "read", table, "--as-of", "soon", "--output", output)
    properties = table / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("MERGE_ON_READ", "COPY_ON_WRITE"))
    assert "a log file in a COPY_ON_WRITE table" in fail(capsys, "read", table, "--output", output)
    assert not output.exists()


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """What typer refuses never reaches a table."""
    for args in (["nope"], ["read"], ["read", ".", "--query", "[x]", "--output", "o"], []):
        with pytest.raises(SystemExit) as exit_info:
            run(app, args)
        assert exit_info.value.code == 2
        capsys.readouterr()


def test_misuse_and_errors_are_one_line_or_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A typo names what is near, and the help; with --json the same parts are an object on stderr."""
    assert "Did you mean" in misused(capsys, "shwo", "t") or "Possible" in misused(capsys, "shwo", "t")
    typo = misused(capsys, "show", "t", "--pendin")
    assert "--pending" in typo
    assert typo.endswith("show --help\n")
    for args, code, kind in ((["show", str(tmp_path)], 1, "NotATableError"), (["show", "t", "--pendin"], 2, None)):
        with pytest.raises(SystemExit) as exit_info:
            run(app, [*args, "--json"])
        printed = capsys.readouterr()
        error = json.loads(printed.err)
        assert (printed.out, exit_info.value.code, error["exit_code"]) == ("", code, code)
        assert kind in (None, error["type"])
    assert "--json" not in error["error"]


def test_an_interruption_says_that_the_command_can_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 130, and one line."""

    def interrupted(*_: object, **__: object) -> Table:
        raise KeyboardInterrupt

    monkeypatch.setattr(Table, "open", interrupted)
    assert "Run the same command again" in fail(capsys, "show", "t", code=130)


def test_the_level_of_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command takes `--log-level`; lines below it are not written."""
    for level, seen in (("info", True), ("error", False)):

        def work() -> None:
            configure_logging(json=False)
            get_logger().info("at work")

        with_log_options(work)(log_level=LogLevel(level))
        assert ("at work" in capsys.readouterr().err) is seen


def test_a_bug_exits_with_70_and_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with type and message; the traceback on request."""

    def broken(*_: object, **__: object) -> Table:
        raise RuntimeError("lost [my]\nway\x1b[31m")

    monkeypatch.setattr(Table, "open", broken)
    message = fail(capsys, "show", "t", code=70)
    assert "RuntimeError: lost [my] way [31m" in message
    assert "PHANTOMBASE_TRACEBACK=1" in message
    monkeypatch.setenv("PHANTOMBASE_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        run(app, ["show", "t"])
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert printed.splitlines()[-1].startswith("error: internal error: RuntimeError")


def test_real_processes(tmp_path: Path) -> None:
    """The command as people run it: exit codes, clean streams, long lines left whole, the traceback switch."""
    table = unzip_golden("v9_pending", tmp_path)
    good = subprocess_call("slices", table, "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert len(json.loads(good.stdout)["slices"]) == 4
    long = tmp_path / ("x" * 200)
    bad = subprocess_call("show", long)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.count("\n") == 1
    assert str(long) in bad.stderr
    traced = subprocess_call("show", long, PHANTOMBASE_TRACEBACK="1")
    assert traced.returncode == 1
    assert NotATableError.__name__ in traced.stderr
    assert subprocess_call("slices").returncode == 2


@pytest.mark.parametrize("command", ["show", "slices", "plan", "read"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command's help has examples, and its brackets survive."""
    with pytest.raises(SystemExit) as exit_info:
        run(app, [command, "--help"])
    text = capsys.readouterr().out
    assert exit_info.value.code == 0
    assert f"timeline {command} /data/trips" in text
    assert "[b]" not in text


# --- console -----------------------------------------------------------------------------------------------------


def test_human_numbers() -> None:
    """Sizes and durations as people say them."""
    sizes = [human_bytes(n) for n in (0, 1023, 1024, 1536, 1_048_575, 5 << 30, 3 << 50, None)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "3.0 PiB", None]
    seconds = [human_duration(s) for s in (0, 0.34, 9.96, 75, 3600, 5400, 90_061, -75)]
    assert seconds == ["0.0 s", "0.3 s", "10 s", "1 min 15 s", "1 h", "1 h 30 min", "1 d 1 h", "-1 min 15 s"]


def test_help_paragraphs_flow_and_examples_do_not() -> None:
    """Only paragraphs without indented lines are joined."""
    assert flowing("One\n    two.\n\n    Ex:\n      a\n      b") == "One two.\n\nEx:\n  a\n  b"


def test_progress_without_a_terminal_logs_now_and_then() -> None:
    """Quick work says nothing; long work one line every ten seconds."""
    times = iter([0.0, 4.0, 9.0, 11.0, 15.0, 22.0])
    with capture_logs() as logs, progress(5, "reading slices", clock=lambda: next(times)) as bar:
        for rows in range(1, 6):
            bar.advance(1, rows=rows)
    assert [(e["event"], e["done"], e["rows"], e["seconds"]) for e in logs] == [
        ("progress", 3, 3, 11.0),
        ("progress", 5, 5, 22.0),
    ]
    assert logs[0]["total"] == 5


def test_progress_that_starts_anew_is_shown_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new description, another total, or a count that goes back: what is shown adds up to what was reported."""
    shown: list[list[int]] = []

    class Bar:
        def advance(self, done: int = 0, **numbers: int) -> None:
            shown[-1].append(done)

    @contextmanager
    def progress(total: int, description: str) -> Iterator[Bar]:
        shown.append([total])
        yield Bar()

    monkeypatch.setattr(console, "progress", progress)
    with reporting() as report:
        for step in (("a", 0, 3), ("a", 2, 3), ("b", 1, 3), ("b", 0, 3), ("b", 1, 3), ("b", 1, 2)):
            report(*step)
    assert shown == [[3, 0, 2], [3, 1], [3, 0, 1], [2, 1]]


def test_logs_go_to_stderr_with_those_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object a line, ours and the standard library's; debug only with `-v`."""
    for _ in range(2):  # twice: no line is doubled
        configure_logging(json=True)
    get_logger().debug("hidden")
    get_logger().info("seen", rows=3)
    logging.getLogger("kazoo.client").warning("lost %s", "session")
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.err.splitlines()]
    assert [(e["event"], e["level"]) for e in lines] == [("seen", "info"), ("lost session", "warning")]
    assert lines[1]["logger"] == "kazoo.client"
    assert printed.out == ""
    with_log_options(partial(configure_logging, json=False))(verbose=True)
    get_logger().debug("shown")
    assert "shown" in capsys.readouterr().err


def test_read_shows_rows_that_match(tmp_path: Path) -> None:
    """Without Hudi's own columns; what does not fit into the width is named."""
    table = unzip_golden("v9_pending", tmp_path)
    full = read_table(Table.open(str(table)))
    wide = call("read", table, "--filter", "fare > 90 and p = 'north'", "--limit", "3")
    assert wide.startswith("3 rows\n")
    assert "_hoodie" not in wide
    assert "column" not in wide
    found = call_json("read", table, "--filter", "fare > 90", "--columns", "fare,id", "--limit", "1000")
    over = full.filter(pc.greater(full["fare"], 90))
    assert sorted(row["id"] for row in found["rows"]) == sorted(over["id"].to_pylist())
    assert found["columns"] == ["id", "fare"]
    assert not found["more"]
    assert call_json("read", table)["more"]
    assert len(call_json("read", table)["rows"]) == 20
    data = {"columns": ["a", "b", "c"], "more": True, "rows": [{"a": "x" * 30, "b": None, "c": 1}]}
    narrow = io.StringIO()
    Console(width=36, file=narrow).print(ShownRows(data, every_column=True))
    assert "1 row and more; --limit shows them" in narrow.getvalue()
    assert "1 column more; --columns chooses: c" in narrow.getvalue()


def test_read_writes_arrow(tmp_path: Path) -> None:
    """A file by its name, and a stream to stdout."""
    table, output = unzip_golden("v9_pending", tmp_path), tmp_path / "out.arrow"
    call("read", table, "--output", output, "--limit", "7")
    with pa.ipc.open_file(output) as file:
        assert file.read_all().num_rows == 7
    command = [sys.executable, "-m", "phantombase.timeline.cli.main", "read", str(table), "--output", "-"]
    streamed = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    assert_same_rows(pa.ipc.open_stream(streamed).read_all(), read_table(Table.open(str(table))))


def test_a_stream_whose_read_failed_fails_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Arrow stream that merely stops would pass for a shorter table."""
    table = Table.open(str(unzip_golden("v9_pending", tmp_path)))
    _break_slices(monkeypatch, failures=1)
    monkeypatch.setattr(export, "_ROW_GROUP_ROWS", 1)
    sent = io.BytesIO()
    with pytest.raises(MissingFileError):
        export_stream(plan_read(table, ReadOptions()), sent)
    stream = pa.ipc.open_stream(sent.getvalue())
    assert stream.read_next_batch().num_rows
    with pytest.raises((pa.ArrowInvalid, OSError)):
        stream.read_all()


def test_an_error_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the width of a terminal is exported."""
    monkeypatch.setenv("COLUMNS", "40")
    sentence = "not served: a table: " + ", ".join(["a reason"] * 20)
    emit({}, False, lambda _: [Text(sentence, no_wrap=True)])
    assert capsys.readouterr().out == f"{sentence}\n"


@pytest.mark.parametrize("more", [[], ["--json"], ["--help"]])
def test_an_output_that_takes_nothing(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file on a full disk."""
    table = unzip_golden("v9_pending", tmp_path)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            run(app, ["show", str(table), *more])
        monkeypatch.undo()
    assert ended.value.code == 1
    assert "the standard output cannot be written: No space left on device" in capsys.readouterr().err


def test_show_calls_a_compaction_one(tmp_path: Path) -> None:
    """On the timeline it is a `commit`."""
    table = unzip_golden("v9_compacted_cleaned", tmp_path)
    shown = CliRunner().invoke(app, ["show", str(table)]).stdout
    assert "  compaction " in shown
    assert "  commit " not in shown
