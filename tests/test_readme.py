"""README stays true: what it shows is run, what it lists exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from compactor_daemon.cli import app as compactor
from tests.golden_tables import unzip_golden
from tests.zookeeper import ZooKeeper, wait_until
from timeline.cli import app as timeline
from timeline.read import read_table
from timeline.table import Table
from writer_hooks import Writer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def commands() -> list[str]:
    """The command lines README shows in indented blocks, without their comments."""
    lines = re.findall(r"^    (\S.*)$", README, re.MULTILINE)
    return [
        line.split("  #")[0].strip() for line in lines if line.startswith(("compactor-daemon", "bash", "timeline "))
    ]


def run(line: str, table: Path) -> subprocess.CompletedProcess[str]:
    """A shown command line on a real table."""
    words = [str(table) if w == "/data/orders" else w for w in shlex.split(line)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.spark
def test_the_shown_commands_run(tmp_path: Path) -> None:
    """Schedule and compact, exactly as shown, through the installed commands and Spark."""
    table = unzip_golden("v9_plain", tmp_path)
    shown = [c for c in commands() if c.startswith(("compactor-daemon schedule", "compactor-daemon compact"))]
    assert len(shown) == 3
    for line in shown:
        done = run(line, table)
        assert done.returncode == 0, done.stderr
    assert "requested" not in run("timeline show /data/orders --pending", table).stdout


def test_the_shown_fleet_runs(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """A daemon and `status` as shown, but for tables, ZooKeeper's hosts, and Spark."""
    orders, rides = (unzip_golden(name, tmp_path / name) for name in ("v9_pending", "v6_pending"))
    shown_ones = [c for c in commands() if c.startswith(("compactor-daemon run", "compactor-daemon status"))]
    alone, daemon, status = sorted(shown_ones, key=lambda c: "--zookeeper" in c)
    planner = unzip_golden("v9_plain", tmp_path / "planner")
    done = run(f"{alone} --once --executor local", planner)
    assert done.returncode == 0, done.stderr

    def words(line: str) -> list[str]:
        hosts = re.sub(r"zk1:2181[,a-z0-9:]*", zookeeper.hosts, line)
        command, *rest = shlex.split(hosts.replace("/data/orders", str(orders)).replace("/data/rides", str(rides)))
        return [str(Path(sys.executable).with_name(command)), *rest]

    process = subprocess.Popen([*words(daemon), "--executor", "local"])
    try:
        wait_until(
            lambda: not any(Table.open(str(t)).load_timeline().pending_compactions for t in (orders, rides)), 180
        )
        shown = subprocess.run(words(status), capture_output=True, text=True, timeout=300, check=False)
        assert shown.returncode == 0, shown.stderr
        assert "No compaction is pending." in shown.stdout
        process.terminate()
        assert process.wait(180) == 0
    finally:
        process.kill()


def test_the_python_example_runs(tmp_path: Path) -> None:
    """The snippets, the reading one on a real table."""
    table = unzip_golden("v9_pending", tmp_path)
    reading, writing = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict[str, object] = {"df": pa.table({"id": ["a"], "zone": ["z"], "ts": [1]})}
    exec(reading.replace("/data/orders", str(table)), scope)
    assert scope["rows"].num_rows > 0  # type: ignore[attr-defined]
    exec(writing.replace("/data/rides", str(tmp_path / "rides")), scope)
    assert read_table(Table.open(str(tmp_path / "rides"))).num_rows == 1


def test_listed_methods_and_examples_exist() -> None:
    """Each method of a write that README names, and each example."""
    section = README.partition("## Writing")[2].partition("\n### ")[0]
    named = set(re.findall(r"^\| (?:`\.[a-z_]+\([^|]*\)`[, ]*)+", section, re.MULTILINE))
    methods = {m for cell in named for m in re.findall(r"\.([a-z_]+)\(", cell)}
    assert len(methods) > 12
    assert all(callable(getattr(Writer, m, None)) for m in methods)
    assert set(re.findall(r"`([a-z_]+\.py)`", section)) == {
        p.name for p in (ROOT / "deploy/examples").glob("*.py") if p.name != "rides.py"
    }


def test_listed_commands_and_options_exist() -> None:
    """Each command of the table, each option of `compact` and `schedule`, and none of theirs is missing."""
    groups = {"timeline": timeline, "compactor-daemon": compactor}
    found: dict[str, Any] = {}
    for name, app in groups.items():
        group = typer.main.get_command(app)
        found |= {f"{name} {command}": value for command, value in group.commands.items()}  # type: ignore[attr-defined]
    listed = set(re.findall(r"^\| `((?:timeline|compactor-daemon) [a-z-]+)", README, re.MULTILINE))
    assert listed == set(found)
    offered = {
        command: {o for p in found[f"compactor-daemon {command}"].params for o in p.opts if o.startswith("--")}
        for command in ("compact", "schedule", "run")
    }
    for command, elsewhere in (
        ("compact", {"--instant", "--json"}),
        ("schedule", {"--json", "--sole-writer"}),
        ("run", {"--json"} | offered["compact"] | {o for o in offered["schedule"] if "zookeeper" not in o}),
    ):
        section = README.partition(f"### Options of `{command}`")[2].partition("\n##")[0]
        cells = re.findall(r"^\| (`--[^|]+)\|", section, re.MULTILINE)
        shown = {option for cell in cells for option in re.findall(r"--[a-z0-9-]+", cell)} - {
            "--sole-writer",
            "--no-incremental",
        }
        assert shown == offered[command] - elsewhere


def test_the_two_commands_exist() -> None:
    """And the test command is what continuous integration runs."""
    scripts = [c.split()[1] for c in commands() if c.startswith("bash")]
    assert scripts == ["deploy/demo.sh", "deploy/test.sh"]
    assert all((ROOT / s).is_file() for s in scripts)
    assert "bash deploy/test.sh" in (ROOT / ".ci" / "run").read_text()


def test_set_up_says_what_is_missing(tmp_path: Path) -> None:
    """Without Java the scripts stop with the sentence README promises."""
    environment = {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / "deploy" / "demo.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "phantombase needs Python >= 3.11 and Java 17 or newer: no Java 17 was found" in done.stderr
