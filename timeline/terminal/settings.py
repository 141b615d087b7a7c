"""Settings: the values of options that come from a file and from variables, for commands and for writers.

They come from a TOML file (`--config FILE`), environment variables and the command line; each source overrides those
before it:

    lock = "zookeeper:zk1:2181/locks/{name}"     settings that several commands share come first
    [schedule]                                   one table for a command: its options without the dashes;
    max-file-slices = 10                         `run` requests plans with those of [schedule] too
    [run]                                        `status`, `check`, `claims` and `history` go by it
    tables = ["lake/orders"]
    [write]                                      writers; plans that they request are those of [schedule], too
    buckets = 8
    [[pool]]                                     rules for the tables of a catalog, one per pattern (`cli/pools`)
    match = "sales_*"

Those of writers are read here into their option dataclasses (`read_settings`); those of commands by click, which checks
them as it checks the command line (`command_line`)."""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import UsageError, reason_of
from .option_group import OPTIONS, HelpPage, OptionGroup, read_pages, type_of, value_of

PREFIX = "PHANTOMBASE_"
FILE = f"{PREFIX}CONFIG"
"""The variable that names the file if there is no `--config`."""

_PLAIN = frozenset(
    {
        "lock", "sole-writer", "storage-option", "json", "log-level", "slo", "services", "on-term", "brief", "listing",
        "timezone", "metrics-port", "metrics-host", "serve", "serve-host", "serve-token-file", "serve-hudi-clients",
        "serve-allow-actions", "memory-limit", "spill-dir",
    }
)  # fmt: skip
"""Settings among a command's own options; all options of option dataclasses are settings."""
_TYPED = frozenset({"conf", "hoodie-conf", "props"})
"""Hudi's names are given on the command line, or in files of their own."""
_OF_COMMAND = {"run": frozenset({"schedule", "tables"})}
"""Options that are settings of this command only: in other commands they say what to do now."""
_OF_DEPLOYMENT = frozenset({f"{PREFIX}TABLES"})
"""Named as a setting of the file, and no variable of it: with `deploy/compose.yaml` it names a folder."""
WRITES = "write"
"""The table of writers (`writer(...).config()`), and the name under which their settings are shown; not a command."""
_BESIDE = {
    "run": ("schedule",),
    "status": ("schedule", "run"),
    "check": ("schedule", "run"),
    "claims": ("run",),
    "history": ("run",),
    WRITES: ("schedule",),
}
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


def check_variables(own: Iterable[str]) -> None:
    """UsageError: a variable of the environment that is nearly that of a setting of one of the programs. Others may be
    of a deployment or of tests. `own`: the settings that are asked for, which need no look at the others."""
    known = {FILE, *map(variable, own)}
    if not (given := [name for name in os.environ if name.startswith(PREFIX) and name not in known]):
        return
    for pages in Path(__file__).parents[2].glob("*/cli/help.json"):
        known |= set(map(variable, names_in(read_pages(pages.read_text()))))
    for name in given:
        near = difflib.get_close_matches(name, known - _OF_DEPLOYMENT, n=1, cutoff=0.93)
        if name not in known and near:
            raise UsageError("not a variable of a setting", path=name, todo=f"Did you mean {near[0]}?")


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
    except (OSError, ValueError) as error:
        todo = "Check its path, and that this user may read it."
        found = reason_of(error)
        if isinstance(error, UnicodeDecodeError):
            found, todo = f"a byte that is not UTF-8, at {error.start}", "Save it as UTF-8."
        elif isinstance(error, ValueError):
            todo = "Mend that line: the file is TOML."
        raise UsageError("unreadable configuration file", path=path, found=found, todo=todo) from error


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
    command's table. UsageError: a name that is not a setting, with the closest one."""
    known, named = frozenset(names), frozenset(commands)
    tables = frozenset(name.split()[0] for name in named) | {_ELSEWHERE, POOLS, WRITES}
    found: dict[str, ShownSetting] = {}
    top = {name: value for name, value in document.items() if not isinstance(value, dict) and name != POOLS}
    if any(_dashed(name) not in known for name in top):
        _check(top, known | of_others(), path, "on top", also=tables)
    _check({n: v for n, v in document.items() if isinstance(v, dict)}, tables, path, "as a table", also=known)
    inner = (
        f"{t} {n}" for t, one in document.items() if isinstance(one, dict) for n in one if isinstance(one[n], dict)
    )
    if wrong := next((name for name in inner if name not in named and not name.startswith(f"{_ELSEWHERE} ")), None):
        raise UsageError(
            "not the table of a command",
            path=path,
            found=f"[{wrong.replace(' ', '.')}]",
            expected="[COMMAND], with its options",
        )
    for table in (None, *_BESIDE.get(command, ()), command):
        values = top if table is None else _table(document, table)
        where = path if table is None else f"{path} [{table}]"
        given = {_dashed(name): value for name, value in values.items()}
        if len(given) < len(values):
            raise UsageError(
                "a setting is given twice",
                path=where,
                found=", ".join(values),
                todo="Keep one: - and _ are the same in a name.",
            )
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
            todo="It is an option of the command line only."
            if _dashed(name) in _TYPED
            else f"[{name}] is a table."
            if name in near
            else f"Did you mean {near[0]}?"
            if near
            else "`compactor-daemon config show COMMAND` lists the settings.",
        )


def plain(value: Any) -> Any:
    """A value of the file in the form of the command line: text, or a list of texts."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """`values`: dataclasses by name. `found`: the settings that file and variables give, by their own names."""

    values: Mapping[str, Any]
    found: Mapping[str, ShownSetting]


def read_settings(groups: Mapping[str, OptionGroup], command: str, path: str | None, pages: Path) -> ReadSettings:
    """Fills option dataclasses from the file at this path, else the one that `FILE` names, and from variables above it.
    `command`: the table of the file; `pages`: the help of the program, by which settings of other commands are known.
    UsageError: the file cannot be read, a name is no setting, or a value is wrong."""
    known = {_dashed(flag): (group.kind, field) for group in groups.values() for flag, field in group.fields.items()}
    check_variables(known)
    found: dict[str, ShownSetting] = {}
    if path := path or os.environ.get(FILE):
        help_of = read_pages(pages.read_text())
        found = settings_in(read_file(path), path, command, known, help_of, lambda: names_in(help_of))
    for name, (kind, field) in known.items():
        if text := os.environ.get(variable(name)):
            value = text.split() if type_of(kind, field)[1] else text
            found[name] = ShownSetting(value=value, where=variable(name))
    return ReadSettings(values={name: _filled(group, found) for name, group in groups.items()}, found=found)


def _filled(group: OptionGroup, found: Mapping[str, ShownSetting]) -> Any:
    given = {field.name: (name, field) for flag, field in group.fields.items() if (name := _dashed(flag)) in found}
    where = next((found[name].where for name, _ in given.values()), None)
    try:
        values = {}
        for own, (name, field) in given.items():
            where = found[name].where
            values[own] = value_of(group.kind, field, plain(found[name].value), name)
        return group.built(values, values, {own: name for own, (name, _) in given.items()})
    except UsageError as error:
        raise error.at(where) from error


def names_in(pages: Mapping[str, HelpPage]) -> frozenset[str]:
    """The names of the settings of all commands, by their pages: see `settings_of`."""
    found: set[str] = set()
    for command, page in pages.items():
        options = {title: rows for title, rows in page.sections.items() if title not in ("Arguments", "Commands")}
        for title, rows in options.items():
            names = [match[1] for text, _ in rows if (match := re.search(r"--([a-z0-9-]+)", text))]
            found |= {name for name in names if title != OPTIONS or name in _PLAIN}
        found |= _OF_COMMAND.get(command, frozenset())
    return frozenset(found)


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        return int(logging.getLevelNamesMapping()[self.name])


CHOSEN: ContextVar[LogLevel | None] = ContextVar("log_level", default=None)
"""That of the running command."""
