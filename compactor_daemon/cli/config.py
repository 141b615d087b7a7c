"""`compactor-daemon config`: the settings of a command or a table, and where each value comes from; sets those of a
table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, StorageOption, command
from phantombase.timeline.terminal.option_group import OptionGroup, shown, shown_default
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

from ..services.options import LOCK, PREFIX, change_policies, policy_names, read_policies
from .option_flags import TableChange, check_reachable, offers

config_app = typer.Typer(
    name="config",
    add_completion=False,
    help="Show the settings of a command or a table, and where each value comes from; set those of a table.",
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
        str,
        typer.Argument(
            metavar="[COMMAND]", help="a command, such as `run`, `write` for writers, or the path of a table"
        ),
    ] = "run",
    storage_option: StorageOption = None,
) -> CommandResult:
    """Show every setting of a command, `run` by default, with its value and where that comes from.

    A value comes from the first of: the command line, the variable PHANTOMBASE_NAME (NAME is the option in capitals,
    dashes as underscores), the file of `--config` or PHANTOMBASE_CONFIG, the default.

    The file is TOML. Settings that several commands share are on top. A table, such as [compact], has the options of
    that command by their names without dashes in front; those of [schedule] count for `run` too, and [run] may have
    `tables`. [write] has those of writers, `writer(...).config()`. A name that is no setting is an error.

    Of a table, given by its path, these are the options that can be kept in it (`config set`): they count where command
    line, environment and file give none.

    Examples: `compactor-daemon config show compact`, `compactor-daemon config show run --config fleet.toml`,
    `compactor-daemon config show lake/orders`"""
    if "/" in name or Path(name, HOODIE).is_dir():
        return CommandResult({"command": "run", "settings": _rows_of_table(ctx, name, storage_option)}, _render)
    return CommandResult({"command": name, "settings": _rows(ctx, name)}, _render)


def _rows_of_table(ctx: typer.Context, path: str, storage_option: list[str] | None) -> list[dict[str, Any]]:
    """The settings of daemons that a table may have, with those that it has."""
    storage = Table.open(full_path(path), parse_pairs(storage_option), reading=True).storage
    values = read_policies(storage).values
    rows = {row["name"]: row for row in _rows(ctx, "run")}
    found = (rows.get(name, _told(name, None, "default")) for name in policy_names())
    return [
        _told(row["name"], values[row["name"]], "table") if row["from"] == "default" and row["name"] in values else row
        for row in found
    ]


_TODO = "Another process may change the same file. --dry-run needs neither."


@config_app.command("set")
@offers
def set_command(
    at: TableChange,
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="options of `run`, without the dashes")],
) -> CommandResult:
    """Keep options in a table: they count for all processes that care for it, where none is given to them.

    Daemons obey a change within five minutes, and with the next request, service or compaction. The values are checked
    as those of the commands are. `services` are those that `maintain` runs. Several values are separated by blanks.
    `foreign-grace` and `heartbeat-expiry` must be the same for all: a process that was given another value is refused.

    Examples: `compactor-daemon config set lake/orders freshness=10m codec=zstd --sole-writer`,
    `compactor-daemon config set lake/orders clean-retain=48 services=clean,archive --lock LOCK`"""
    changes: dict[str, str | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError("not a policy of a table", expected="NAME=VALUE", found=pair)
        changes[name.strip().removeprefix(PREFIX).replace("_", "-")] = value.strip()
    return _changed(at, changes)


@config_app.command("unset")
@offers
def unset_command(
    at: TableChange, names: Annotated[list[str], typer.Argument(metavar="NAME...", help="options to be removed")]
) -> CommandResult:
    """Remove options from a table: the defaults count again. One that cannot be read is removed, too.

    Example: `compactor-daemon config unset lake/orders freshness --sole-writer`"""
    return _changed(at, {name.removeprefix(PREFIX).replace("_", "-"): None for name in names})


def _changed(at: TableChange, changes: Mapping[str, str | None]) -> CommandResult:
    check_reachable(changes.get(LOCK))
    table, lock = at.open("config", _TODO)
    if LOCK in changes and at.sole_writer:  # the table's own may be one that no process can take
        lock = ProcessLock(table.storage.location)
    values = change_policies(table, lock, changes, dry_run=at.dry_run).values
    return CommandResult(at.row({"policies": dict(values)}), _render_policies)


def _render_policies(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield "the table would have these options:" if data["dry_run"] else "the table has these options:"
    yield from (f"{name} = {value}" for name, value in sorted(data["policies"].items()))


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
