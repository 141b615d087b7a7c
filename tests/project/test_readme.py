"""README's commands as a user runs them: the installed commands, Spark, the scripts. `test_docs` runs the rest."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from phantombase import Writer
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

README = (ROOT / "README.md").read_text()
FLEET = (ROOT / "docs/guides/fleet.md").read_text()
WRITING = (ROOT / "docs/guides/writing.md").read_text()


def commands(page: str) -> list[str]:
    """The command lines in the blocks of a page, without their comments."""
    lines = re.findall(r"^(?:\$ )?((?:compactor-daemon|bash|timeline) .*)$", page, re.MULTILINE)
    return [line.split("  #")[0].strip() for line in lines]


def run(line: str, table: Path) -> subprocess.CompletedProcess[str]:
    """A shown command line on a real table."""
    words = [str(table) if w == "/data/orders" else w for w in shlex.split(line)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def test_the_shown_commands_run(tmp_path: Path) -> None:
    """One command compacts a table, exactly as shown, through the installed commands."""
    table = unzip_golden("v9_plain", tmp_path)
    shown = [c for c in commands(README) if c.startswith("compactor-daemon")]
    assert [line.split()[1] for line in shown] == ["compact"]
    for line in shown:
        done = run(line, table)
        assert done.returncode == 0, done.stderr
    assert "requested" not in run("timeline show /data/orders --pending", table).stdout


def test_the_shown_fleet_runs_until_it_is_stopped(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """The daemon as shown, but for tables, ZooKeeper's hosts, and Spark."""
    orders, rides = (unzip_golden(name, tmp_path / name) for name in ("v9_pending", "v6_pending"))
    (daemon,) = [c for c in commands(FLEET) if c.startswith("compactor-daemon run /data/orders ")]
    hosts = re.sub(r"zk1:2181[,a-z0-9:]*", zookeeper.hosts, daemon)
    command, *rest = shlex.split(hosts.replace("/data/orders", str(orders)).replace("/data/rides", str(rides)))
    process = subprocess.Popen([str(Path(sys.executable).with_name(command)), *rest, "--executor", "local"])
    try:
        wait_until(
            lambda: not any(Table.open(str(t)).load_timeline().pending_compactions for t in (orders, rides)), 180
        )
        process.terminate()
        assert process.wait(180) == 0
    finally:
        process.kill()


def test_listed_methods_and_examples_exist() -> None:
    """Each method of a write that the guide names, and each example."""
    named = set(re.findall(r"^\| (?:`\.[a-z_]+\([^|]*\)`[, ]*)+", WRITING, re.MULTILINE))
    methods = {m for cell in named for m in re.findall(r"\.([a-z_]+)\(", cell)}
    assert len(methods) > 12
    assert all(callable(getattr(Writer, m, None)) for m in methods)
    assert set(re.findall(r"`([a-z_]+\.py)`", WRITING)) == {
        p.name for p in (ROOT / "deploy/examples").glob("*.py") if p.name != "rides.py"
    }


def test_the_two_commands_exist() -> None:
    """And the test command is what continuous integration runs."""
    scripts = [c.split()[1] for c in commands(README) if c.startswith("bash")]
    assert scripts == ["deploy/demo.sh", "deploy/test.sh"]
    assert all((ROOT / s).is_file() for s in scripts)
    assert "bash deploy/test.sh" in (ROOT / ".ci" / "run").read_text()


def test_set_up_says_what_is_missing(tmp_path: Path) -> None:
    """Without Java the scripts stop with one sentence that says so."""
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
