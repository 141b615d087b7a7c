"""Help of every command at 80 columns: no option name, placeholder, default or line is cut."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.timeline.terminal.command_line import pages_of
from phantombase.timeline.terminal.help_page import written
from tests.project.every_command import APPS, every_page
from tests.project.option_reference import HELP


@pytest.mark.parametrize("app", APPS)
def test_the_kept_pages_are_those_of_the_commands(app: str) -> None:
    """`python -m tests.project.option_reference` has been run since an option or a text changed."""
    assert HELP[app].read_text() == written(pages_of(APPS[app]))


def test_nothing_is_cut() -> None:
    """Each option with its placeholder and default stands whole in one line."""
    for app, path, command in every_page():
        is_whole(app, path, command)


def is_whole(app: str, path: tuple[str, ...], command: Any) -> None:
    """Asserts it of the help of one command."""
    shown = CliRunner().invoke(APPS[app], [*path, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    text = shown.stdout
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    lines = [line.split() for line in text.splitlines()]
    for param in command.params:
        names = [one for one in param.opts if one.startswith("-")]
        assert all(any(name in (w.rstrip(",") for w in line) for line in lines) for name in names), names
        if param.metavar:
            assert param.metavar in text
        if isinstance(param.show_default, str):
            assert any(f"[default: {param.show_default}]" in line for line in text.splitlines())
    if path and not hasattr(command, "commands"):
        assert all(word in text for word in ("--log-level LEVEL", "-v, --verbose", "--help"))
