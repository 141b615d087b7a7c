"""Settings of commands, and the options that every command has: `-v`, `--log-level`, `--config`.

Settings come from a TOML file (`--config FILE`), environment variables and the command line; each source overrides
those before it:

    lock = "zookeeper:zk1:2181/locks/{name}"     settings that several commands share come first
    [schedule]                                   one table for a command: its options without the dashes;
    max-file-slices = 10                         `run` requests plans with those of [schedule] too
    [run]
    tables = ["/data/orders"]
    [write]                                      writers; plans that they request are those of [schedule], too
    buckets = 8
    [[pool]]                                     rules for the tables of a catalog, one per pattern (`cli/pools`)
    match = "sales_*"

Click checks variables and the file's values (`default_map`) as it checks the command line, and records the source of
each value. `--config` fills `default_map` before the other options are read.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from ..errors import UsageError

PREFIX = "PHANTOMBASE_"
FILE = f"{PREFIX}CONFIG"
"""The variable that names the file if there is no `--config`."""

_PLAIN = frozenset(
    {
        "lock", "sole-writer", "storage-option", "json", "log-level", "slo", "services", "metrics-port", "on-term",
        "retries", "backoff", "foreign-grace", "brief", "listing", "timezone",
    }
)  # fmt: skip
"""Settings among a command's own options; all options of option dataclasses are settings."""

_OF_COMMAND = {"run": frozenset({"schedule", "tables"})}
"""Options that are settings of this command only: in other commands they say what to do now."""

WRITES = "write"
"""The table of writers (`writer(...).config()`), and the name under which their settings are shown; not a command."""

_BESIDE = {"run": ("schedule",), WRITES: ("schedule",)}
"""Tables of other commands that apply to a command too."""

POOLS = "pool"
"""The array of tables that only `run` reads: its names differ from those of command line options."""

_ELSEWHERE = "timeline"
"""The table that contains the tables of the other program's commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """A value, and the table of the file that contains it."""

    value: Any
    where: str


def variable(option: str) -> str:
    """The environment variable of an option: `max-plans` -> `PHANTOMBASE_MAX_PLANS`."""
    return f"{PREFIX}{option.upper().replace('-', '_')}"


def settings_of(command: str, params: Iterable[Any]) -> dict[str, Any]:
    """The parameters of a command that are settings, by name without the leading dashes."""
    found = {}
    for param in params:
        is_option = param.param_type_name == "option"
        name = max(param.opts, key=len).lstrip("-") if is_option else param.name
        is_own = name in _OF_COMMAND.get(command, ())
        if is_own or (is_option and (name in _PLAIN or getattr(param, "rich_help_panel", None) is not None)):
            found[name] = param
    return found


def read_file(path: str) -> Mapping[str, Any]:
    """The document in a file. UsageError: it cannot be read, or is not TOML."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError("unreadable configuration file", path=path, found=str(error)) from error


def settings_in(
    document: Mapping[str, Any],
    path: str,
    command: str,
    names: Iterable[str],
    commands: Iterable[str],
    of_others: Callable[[], frozenset[str]],
) -> dict[str, ShownSetting]:
    """The settings in a file for a command (pure). `names`: its settings; `commands`: all commands of the program.

    `of_others`: the settings of all commands; called only for a name that this command lacks, at the top or in another
    command's table. UsageError: a name that is not a setting, with the closest one.
    """
    known, tables = frozenset(names), frozenset(commands) | {_ELSEWHERE, POOLS, WRITES}
    found: dict[str, ShownSetting] = {}
    top = {name: value for name, value in document.items() if not isinstance(value, dict) and name != POOLS}
    if any(_dashed(name) not in known for name in top):
        _check(top, known | of_others(), path, "on top", also=tables)
    _check({n: v for n, v in document.items() if isinstance(v, dict)}, tables, path, "as a table", also=known)
    for table in (None, *_BESIDE.get(command, ()), command):
        values = top if table is None else _table(document, table)
        where = path if table is None else f"{path} [{table}]"
        given = {_dashed(name): value for name, value in values.items()}
        if len(given) < len(values):
            raise UsageError("a setting is given twice", path=where, found=", ".join(values))
        if table is not None:
            others = frozenset[str]() if table == command or given.keys() <= known else of_others()
            _check(given, known | others, where, f"of {table}")
        found |= {name: ShownSetting(value=value, where=where) for name, value in given.items() if name in known}
    return found


def _table(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The table of a command; that of `savepoint create` is `[savepoint.create]`."""
    found: Any = document
    for name in path.split():
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return {n: v for n, v in found.items() if not isinstance(v, dict)} if isinstance(found, dict) else {}


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _check(
    given: Mapping[str, Any], known: frozenset[str], path: str, where: str, also: frozenset[str] = frozenset()
) -> None:
    for name in given:
        if _dashed(name) in known:
            continue
        near = difflib.get_close_matches(_dashed(name), sorted(known | also), n=1)
        raise UsageError(
            f"not a setting {where}",
            path=path,
            found=name,
            todo=f"Did you mean {near[0]}?" if near else "`compactor-daemon config show COMMAND` lists the settings.",
        )


def plain(value: Any) -> Any:
    """A value of the file in the form of the command line: text, or a list of texts."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if isinstance(value, bool) else str(value)


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
    if "compact" not in commands:  # the program `timeline`, whose settings have a table of their own
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


class LogLevel(Enum):
    """The least important log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level in the standard library."""
        return int(logging.getLevelNamesMapping()[self.name])


_chosen: ContextVar[LogLevel | None] = ContextVar("log_level", default=None)

_OPTIONS = {
    "log_level": (
        LogLevel | None,
        typer.Option(
            "--log-level", help="log lines of this level and worse: debug, info, warning, error", metavar="LEVEL"
        ),
    ),
    "verbose": (bool, typer.Option("--verbose", "-v", help="the same as --log-level debug")),
    "config": (str | None, CONFIG),
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_DEFAULTS: dict[str, Any] = {"log_level": None, "verbose": False, "config": None}


def chosen_level() -> LogLevel | None:
    """The level of the running command; None: none was chosen."""
    return _chosen.get()


def with_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--log-level` and `-v`, which `configure_logging` obeys, and with `--config`."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    added = [
        inspect.Parameter(name, _KEYWORD, default=_DEFAULTS[name], annotation=Annotated[kind, mark])
        for name, (kind, mark) in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def run(*, log_level: LogLevel | None = None, verbose: bool = False, **given: Any) -> Any:
        given.pop("config", None)  # its callback has read it
        token = _chosen.set(LogLevel.DEBUG if verbose else log_level)
        try:
            return command(**given)
        finally:
            _chosen.reset(token)

    params = [*(p.replace(kind=_KEYWORD) for p in own), *added]
    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in params}
    return run
