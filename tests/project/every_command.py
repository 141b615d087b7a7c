"""Every command of both programs, found in the programs themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from phantombase.compactor_daemon.cli.main import app as compactor
from phantombase.timeline.cli.main import app as timeline

APPS = {"timeline": timeline, "compactor-daemon": compactor}
NO_NUMBERS = ("1_0", "\N{FULLWIDTH DIGIT ONE}", " 1", "1 ", "0x10", "infinity", "nan", "1,0", "9" * 5000, "1e999", "")
"""Texts that Python alone takes for numbers, and others that no one should."""


def every_page() -> list[tuple[str, tuple[str, ...], Any]]:
    """Program, words and command of all that has a help page: the programs, their commands, groups of commands."""
    return [found for name, app in APPS.items() for found in _within(name, (), typer.main.get_command(app))]


def every_command() -> list[tuple[str, tuple[str, ...], Any]]:
    """Those that do something."""
    return [found for found in every_page() if not hasattr(found[2], "commands")]


def offers(command: Any, option: str) -> bool:
    """Whether a command takes it."""
    return any(option in param.opts for param in command.params)


def _within(app: str, path: tuple[str, ...], command: Any) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    yield app, path, command
    for name, inner in dict(getattr(command, "commands", {})).items():
        yield from _within(app, (*path, name), inner)
