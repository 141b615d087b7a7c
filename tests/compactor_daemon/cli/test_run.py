"""What a daemon says: what it serves, and why it requests nothing."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from tests.support.golden_tables import unzip_golden


def test_a_daemon_says_what_it_does_and_why_not(tmp_path: Path) -> None:
    """When it starts, and once for the same reason, however often it looks."""
    table = unzip_golden("v9_plain", tmp_path)
    args = ["run", str(table), "--schedule", "--sole-writer", "--once", "--log-level", "info"]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    (serving,) = [line for line in done.stderr.splitlines() if " serving " in line]
    assert all(word in serving for word in ("tables=1", "requests=True", "version=", "executor=auto"))
    (why,) = [line for line in done.stderr.splitlines() if "not_requested" in line]
    assert "4 of 5 delta commits since" in why
