"""Settings of commands: a TOML file, then environment variables, then the command line, each above the one before.

    lock = "zookeeper:zk1:2181/locks/{name}"     settings that several commands share stand on top
    [schedule]                                   one table for a command: its options without the dashes;
    max-file-slices = 10                         `run` requests plans with those of [schedule] too
    [run]
    tables = ["/data/orders"]
    [write]                                      writers; plans that they request are those of [schedule], too
    buckets = 8
    [[pool]]                                     rules for the tables of a catalog, one table a pattern (`cli/pools`)
    match = "sales_*"

Click reads variables and the file's values (`default_map`) as it reads words of the command line, so they are checked
in the same way, and it keeps which of them a value came from.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

PREFIX = "PHANTOMBASE_"
FILE = f"{PREFIX}CONFIG"
"""The variable that names the file where `--config` does not."""

_PLAIN = frozenset(
    {
        "lock", "sole-writer", "storage-option", "json", "log-level", "slo", "services", "metrics-port", "on-term",
        "retries", "backoff", "foreign-grace", "brief", "listing", "timezone",
    }
)  # fmt: skip
"""Settings among the options that a command has for itself; those of option dataclasses are all settings."""

_OF_COMMAND = {"run": frozenset({"schedule", "tables"})}
"""Settings of one command only: elsewhere they say what to do now."""

WRITES = "write"
"""The table of writers (`writer(...).config()`), and the name by which their settings are shown; no command."""

_BESIDE = {"run": ("schedule",), WRITES: ("schedule",)}
"""Tables of other commands that count for a command too."""

POOLS = "pool"
"""The array of tables that `run` reads by itself: its names are not those of command line options."""

_ELSEWHERE = "timeline"
"""The table whose tables are those of the other program's commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """A value, and the table of the file that it stands in."""

    value: Any
    where: str


def variable(option: str) -> str:
    """The environment variable of an option: `max-plans` -> `PHANTOMBASE_MAX_PLANS`."""
    return f"{PREFIX}{option.upper().replace('-', '_')}"


def settings_of(command: str, params: Iterable[Any]) -> dict[str, Any]:
    """The parameters of a command that are settings, by name without dashes."""
    found = {}
    for param in params:
        is_option = param.param_type_name == "option"
        name = max(param.opts, key=len).lstrip("-") if is_option else param.name
        is_own = name in _OF_COMMAND.get(command, ())
        if is_own or (is_option and (name in _PLAIN or getattr(param, "rich_help_panel", None) is not None)):
            found[name] = param
    return found


def read_file(path: str) -> Mapping[str, Any]:
    """The document. UsageError: it cannot be read, or is no TOML."""
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
    """What a file says to a command (pure). `names`: its settings; `commands`: all commands of the program.

    `of_others`: the settings of all commands; asked only for a name that this command does not have, on top or in the
    table of another one.
    UsageError: a name that is no setting, with the one that may be meant.
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
    """The table of a command; `savepoint create` is `[savepoint.create]`."""
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
    """A value of the file as a command line has it: text, or a list of texts."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if isinstance(value, bool) else str(value)
