"""`compactor-daemon config show`: the settings of a command, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.errors import UsageError
from phantombase.timeline.terminal.command import CommandResult, command
from phantombase.timeline.terminal.help_page import shown_default
from phantombase.timeline.terminal.option_group import OptionGroup, shown
from phantombase.timeline.terminal.settings import (
    FILE,
    WRITES,
    ShownSetting,
    plain,
    read_settings,
    settings_of,
    variable,
)
from phantombase.timeline.terminal.text_table import Column, RowsTable

config_app = typer.Typer(
    name="config",
    add_completion=False,
    help="Show the settings of a command, and where each value comes from.",
    no_args_is_help=True,
)


@config_app.callback()
def config() -> None:
    """There will be more than one command."""


@config_app.command()
@command
def show(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[COMMAND]", help="a command, such as `run`, or `write` for writers")
    ] = "run",
) -> CommandResult:
    """Show every setting of a command, `run` by default, with its value and where that comes from.

    A value comes from the first of: the command line, the variable PHANTOMBASE_NAME (NAME is the option in capitals,
    dashes as underscores), the file of `--config` or PHANTOMBASE_CONFIG, the default.

    The file is TOML. Settings that several commands share are on top. A table, such as [compact], has the options of
    that command by their names without dashes in front; those of [schedule] count for `run` too, and [run] may have
    `tables`. [write] has those of writers, `writer(...).config()`. A name that is no setting is an error.

    Examples: `compactor-daemon config show compact`, `compactor-daemon config show run --config fleet.toml`
    """
    return CommandResult({"command": name, "settings": _rows(ctx, name)}, _render)


def _rows(ctx: typer.Context, command: str) -> list[dict[str, Any]]:
    root = ctx.find_root()
    if command == WRITES:
        writers: Any = import_module("phantombase.writer_hooks.write.settings")  # above this package: by its name
        return list(_rows_of(writers.SETTINGS, ctx.params.get("config"), writers.PAGES))
    found: Any = root.command
    for name in command.split():
        found = getattr(found, "commands", {}).get(name) if found is not None else None
    if found is None or hasattr(found, "commands"):
        raise UsageError("no such command", found=command, todo="`compactor-daemon --help` lists the commands.")
    path = f"{root.info_name} {command}"
    with type(ctx)(found, parent=root, info_name=command) as inner:
        config = next(p for p in found.params if p.name == "config")
        given = ctx.params.get("config") or config.consume_value(inner, {})[0]
        config.callback(inner, config, given)
        assert inner.command_path == path
        return [_row(inner, name, param) for name, param in settings_of(command, found.params).items()]


def _row(ctx: Any, name: str, param: Any) -> dict[str, Any]:
    value, source = param.consume_value(ctx, {})
    kind = source.name.lower() if source is not None else "default"
    where = {"environment": variable(name), "default_map": ctx.meta.get(FILE, {}).get(param.name)}.get(kind, "default")
    return _told(name, shown_default(param) if where == "default" else value, where)


def _rows_of(groups: Mapping[str, OptionGroup], config: str | None, pages: Path) -> Iterator[dict[str, Any]]:
    found = read_settings(groups, WRITES, config, pages).found
    for group in groups.values():
        for flag, field in group.fields.items():
            name = flag.replace("_", "-")
            default = ShownSetting(value=shown(field, getattr(group.default, field.name)), where="default")
            one = found.get(name, default)
            yield _told(name, plain(one.value), one.where)


def _told(name: str, value: Any, where: str) -> dict[str, Any]:
    if name == "storage-option" and value:  # keys of an object store are no output
        value = [f"{str(one).partition('=')[0]}=..." for one in ([value] if isinstance(value, str) else value)]
    return {"name": name, "value": value if value not in ("", ()) else None, "from": where}


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    name = Column("setting", lambda r: r["name"])
    value = Column("value", lambda r: None if r["value"] is None else _text(r["value"]))
    yield RowsTable(f"settings of {data['command']}", (name, value, "from"), data["settings"])


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
