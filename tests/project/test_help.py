"""Help of every command at 80 columns: no option name, placeholder, default or line is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app as compactor
from phantombase.timeline.cli.main import app as timeline

_APPS = {"timeline": timeline, "compactor-daemon": compactor}


def _commands() -> Iterator[tuple[str, tuple[str, ...], Any]]:
    for name, app in _APPS.items():
        yield from _within(name, (), typer.main.get_command(app))


def _within(app: str, path: tuple[str, ...], command: Any) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    yield app, path, command
    for name, inner in dict(getattr(command, "commands", {})).items():
        yield from _within(app, (*path, name), inner)


_ALL = list(_commands())


@pytest.mark.parametrize(("app", "path", "command"), _ALL, ids=[" ".join((a, *p)) for a, p, _ in _ALL])
def test_nothing_is_cut(app: str, path: tuple[str, ...], command: Any) -> None:
    """Each option with its placeholder and default stands whole in one line."""
    shown = CliRunner().invoke(_APPS[app], [*path, "--help"], env={"COLUMNS": "80"})
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
