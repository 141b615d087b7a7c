"""`--config FILE`, which every command has: it fills click's `default_map` before the other options are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from .settings import FILE, WRITES, plain, read_file, settings_in, settings_of, variable


def command_of(ctx: Any) -> str:
    """The name of a command within its program: `compact`, `savepoint create`."""
    return " ".join(ctx.command_path.split()[1:])


def fill(ctx: typer.Context, path: str | None) -> str | None:
    """Reads the file into the context of a command; returns its path. UsageError: see `settings_in`."""
    command = command_of(ctx)
    if path is None or command.startswith("config "):
        return path
    commands, known = ctx.find_root().command.commands, settings_of(command, ctx.command.params)  # type: ignore[attr-defined]
    document = read_file(path)
    if "compact" not in commands:  # `timeline`, whose settings have a table of their own
        document = document.get("timeline", {})

    def of_others() -> frozenset[str]:
        return frozenset(name for one, params in _all(commands) for name in settings_of(one, params))

    found = settings_in(document, path, command, known, commands, of_others)
    ctx.default_map = {known[name].name: plain(one.value) for name, one in found.items()}
    ctx.meta[FILE] = {known[name].name: one.where for name, one in found.items()}
    return path


def _all(commands: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for name, one in commands.items():
        yield name, one.params
        yield from ((f"{name} {inner}", two.params) for inner, two in getattr(one, "commands", {}).items())
    if (writes := commands.get(WRITES)) is not None:
        yield WRITES, writes.params


def add_variables(command: str, params: list[Any]) -> None:
    """Each setting may come from an environment variable too."""
    for name, param in settings_of(command, params).items():
        if param.envvar is None and param.param_type_name == "option":
            param.envvar = variable(name)


CONFIG = typer.Option(
    "--config",
    metavar="FILE",
    envvar=FILE,
    show_envvar=False,
    is_eager=True,
    callback=fill,
    help="a TOML file with settings, see `compactor-daemon config show --help`",
)
