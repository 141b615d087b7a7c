"""`docs/reference/options.md`, made of the option dataclasses and of what the commands take; and the pages of `--help`.

`python -m tests.project.option_reference` writes them; `tests/project/test_docs.py` compares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from itertools import chain
from typing import Any, get_args, get_type_hints

import typer

from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.daemon.dispatch import Rules
from phantombase.compactor_daemon.daemon.past_writes import ReplayOptions
from phantombase.compactor_daemon.hudi_names import NameKind, hudi_names
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.compactor_daemon.services.hudi_conf import _KNOWN, SCHEDULE_CONF
from phantombase.compactor_daemon.services.options import Service
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerOptions, UrgencyOptions
from phantombase.timeline.planning.limits import BoundOptions, PickOptions
from phantombase.timeline.planning.strategies import StrategyOptions
from phantombase.timeline.terminal.option_group import HelpPage, help_of, written
from phantombase.timeline.terminal.settings import WRITES
from phantombase.writer_hooks.options import BackPressure, CompactionOptions, WriteOptions
from phantombase.writer_hooks.write.settings import SETTINGS
from tests.project.every_command import APPS
from tests.support.places import ROOT

PAGE = ROOT / "docs/reference/options.md"
NAMES_PAGE = ROOT / "docs/reference/hudi-names.md"
HELP = {name: ROOT / name.replace("-", "_") / "cli/help.json" for name in APPS}
"""What `--help` of the commands shows without loading them."""

_PARTS: Mapping[str, tuple[type, ...]] = {
    "When a compaction is due": (TriggerOptions, UrgencyOptions),
    "How much one plan holds": (BoundOptions,),
    "Which file groups, and minor or major": (PickOptions,),
    "Hudi's strategies": (StrategyOptions,),
    "Archiving": (ArchiveOptions,),
    "Clock and time zone": (ClockOptions,),
    "Merging and writing base files": (OutputOptions,),
    "Where file slices are compacted": (ExecuteOptions,),
    "Timeouts": (AttemptOptions,),
    "Failures": (RetryOptions,),
    "Daemon": (Rules,),
    "Replay": (ReplayOptions,),
}
"""Options of commands."""

_WRITES: Mapping[str, tuple[type, ...]] = {
    "Writes": (WriteOptions,),
    "Compaction after a write": (CompactionOptions,),
    "Back-pressure": (BackPressure,),
}
"""Options of writers."""

_EVERYWHERE = {"--log-level", "--verbose", "--config"}
"""Options of every command."""

_FLAGS = {"poll_s": "poll-interval", "claim_wait_s": "wait", "strategy": "trigger", "strategies": "strategy"}
"""Fields whose option on the command line has another name."""

_MEANINGS = {
    "backoff_max_s": "longest wait after a failure",
    "sweep_s": "how often a daemon cleans up behind completed instants whose executor died",
    "heartbeat_s": "how often the heartbeat of the write is refreshed",
    "heartbeat_expiry_s": "seconds without a heartbeat after which a writer counts as dead",
    "output": "how base files are written: see above",
    "schedule": "when and what is requested: see above",
}
"""Of fields whose dataclass does not say it."""

_HEAD = """# Options

This page is generated from the code by `python -m tests.project.option_reference`; a test compares it. Each option
has one home: a field of a frozen dataclass, which checks its value. The command line, variables, the file of
`--config`, Hudi's names (`--conf NAME=VALUE`, `.conf({...})`) and the Python interface all fill the same fields.

- **Field** is the name in Python. **Option** is the name on the command line, and without dashes that in the file;
  those of writers stand in its table `[write]`. A dash: Python only.
- A value comes from the first of: the command line; the variable `PHANTOMBASE_NAME`, the option in capitals with
  underscores; the [file of `--config`](../guides/daemon.md#settings-in-a-file) or `PHANTOMBASE_CONFIG`; the default.
  `compactor-daemon config show COMMAND` prints each with where it comes from. An option and Hudi's name for it that
  say two things are an error. Every command also takes `--config FILE`, `--log-level LEVEL` and `-v`.
- `ScheduleOptions` has the fields of the first four parts, and `incremental`.
- Defaults are those of the fields. One differs: `compactor-daemon schedule` and `schedule(...)` request at once, by
  the trigger `always`.
- `from phantombase import ScheduleOptions, ExecuteOptions, OutputOptions, AttemptOptions, ReadOptions`. Writers take
  the fields of `WriteOptions` by `.option(...)`, and those of the others by the method of the same subject.
- Sizes are in bytes and may be written like `512m` or `2g`. Names that end in `_s` are in seconds. Numbers are read as
  Java reads them, under every name: `1_0`, ` 1 ` and `infinity` are errors.
"""


def reference() -> str:
    """The whole page."""
    commands = {f"{app} {name}": command for app, name, command in _commands()}
    params = {p.opts[0]: p for command in reversed(commands.values()) for p in command.params}
    of_writers = {f"--{name.replace('_', '-')}": field for name, field in _settings_of_writers().items()}
    lines = [_HEAD]
    for title, options in {**_PARTS, **_WRITES}.items():
        offered = params if title in _PARTS else of_writers
        lines += [f"## {title}", "", *_part(options, commands if title in _PARTS else {}, offered), ""]
    lines += ["## Options of several commands", "", *_shared_part(commands), ""]
    lines += ["## Options of one command", "", *_of_one(commands), ""]
    return "\n".join(lines)


_NAMES_HEAD = """# Hudi's names

This page is generated from `compactor_daemon/hudi_names.tsv` by `python -m tests.project.option_reference`; a test
compares it. It has each configuration of Hudi 0.15.0 and 1.2.0, and some of Hudi's data source. At one of the values
in the second column a name changes no row: they are Hudi's defaults, and what phantombase does anyway. A name of
cleaning, archiving or the metadata table turns that on, as with Hudi. How to give them:
[Working with Hudi](../guides/hudi.md#hudis-names-for-options).
"""
_NAMES_PARTS = {
    NameKind.SET: ("Followed", "says"),
    NameKind.ONLY: ("Refused with another value", "why"),
    NameKind.WISH: ("Not done here, with one warning", "why"),
    NameKind.CLIENT: ("Of Hudi's client, with the same warning", "why"),
}


def names_reference() -> str:
    """The page of Hudi's names."""
    lines = [_NAMES_HEAD]
    for kind, (title, last) in _NAMES_PARTS.items():
        lines += [f"## {title}", "", f"| name | usual values | {last} |", "| --- | --- | --- |"]
        for name, one in hudi_names().items():
            if one.kind is kind and name == one.name:
                names = ", ".join(f"`{n}`" for n in (name, *one.alternatives))
                usual = ", ".join(f"`{value}`" if value else "none" for value in dict.fromkeys(one.agreeing))
                lines.append(f"| {names} | {_cell(usual)} | {_cell(one.why)} |")
        lines.append("")
    return "\n".join(lines)


def _part(options: tuple[type, ...], commands: Mapping[str, Any], offered: Mapping[str, Any]) -> Iterator[str]:
    taken = {name: _taken(options, command) for name, command in commands.items()}
    some = {name: "" if _is_part(options, of) else f" (`{'`, `'.join(of)}`)" for name, of in taken.items() if of}
    by = f" Commands: {', '.join(f'`{name}`{which}' for name, which in some.items())}." if some else ""
    yield f"Python: {', '.join(f'`{one.__name__}`' for one in options)}.{by}"
    yield ""
    yield "| field | option | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for one in options:
        hints = get_type_hints(one)
        for field in fields(one):
            param = offered.get(_flag(field))
            name = _flag(field) if one in chain(*_PARTS.values()) else _flag(field).lstrip("-")
            flag = f"`{name}`" if param is not None else "–"
            meaning = _help(one, field) or getattr(param, "help", None) or _MEANINGS[field.name]
            parts = (_cell(meaning), _values(hints[field.name]), _hudi(one, field))
            yield f"| `{field.name}` | {flag} | {_default(field)} | {'; '.join(p for p in parts if p)} |"


def _taken(options: tuple[type, ...], command: Any) -> list[str]:
    """The options of a part that a command takes: under the name, and with the meaning."""
    meanings = {_flag(f): _help(one, f) for one in options for f in fields(one)}
    return [p.opts[0] for p in command.params if meanings.get(p.opts[0]) in ("", p.help)]


def _is_part(options: tuple[type, ...], taken: Sequence[str]) -> bool:
    """Whether these are a part, or most of it."""
    return 2 * len(taken) >= sum(len(fields(one)) for one in options)


def _flag(field: Field[Any]) -> str:
    name = field.metadata.get("flag") or _FLAGS.get(field.name) or field.name.removesuffix("_s")
    return f"--{name.replace('_', '-')}"


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "see there"
    value: Any = field.default
    if field.name == "threads":
        return "the cores"
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _values(hint: Any) -> str:
    """The values of an enum."""
    kind = next((t for t in (hint, *get_args(hint)) if isinstance(t, type) and issubclass(t, Enum)), None)
    return ", ".join(f"`{member.value}`" for member in kind) if kind is not None else ""


def _help(options: type, field: Field[Any]) -> str:
    """Its help, or what the docstring of its dataclass says of it."""
    if text := field.metadata.get("help"):
        return str(text)
    doc = " ".join((options.__doc__ or "").split())
    found = re.search(rf"`{field.name}`: (.*?)(?=(?:[.;] `[a-z_]+`:)|\.?$)", doc)
    return found[1] if found else ""


def _hudi(options: type, field: Field[Any]) -> str:
    """Hudi's names for it."""
    known = {OutputOptions: _KNOWN, TriggerOptions: SCHEDULE_CONF, StrategyOptions: SCHEDULE_CONF}.get(options, {})
    names = [f"`{name}`" for name, (target, _) in known.items() if target == field.name]
    return f"Hudi: {', '.join(names)}" if names else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def pages(app: str) -> dict[str, HelpPage]:
    """The help of each command; that of the settings of writers is kept for their names alone."""
    commands = typer.main.get_command(APPS[app]).commands.items()  # type: ignore[attr-defined]
    inner = ((f"{name} {n}", one) for name, of in commands for n, one in getattr(of, "commands", {}).items())
    found = {name: help_of(one) for name, one in (*commands, *inner)}
    if app != "compactor-daemon":
        return found
    rows = [(f"--{name.replace('_', '-')}", "") for name in _settings_of_writers()]
    return {**found, WRITES: HelpPage(usage="", text="", sections={"Settings": rows})}


def _settings_of_writers() -> dict[str, Field[Any]]:
    return {name: field for group in SETTINGS.values() for name, field in group.fields.items()}


def _commands() -> Iterator[tuple[str, str, Any]]:
    for app, typed in APPS.items():
        for name, command in typer.main.get_command(typed).commands.items():  # type: ignore[attr-defined]
            yield app, name, command


def _own(command: Any) -> Iterator[tuple[str, str]]:
    """(option, meaning) of the options that are in no part of this page."""
    covered = _EVERYWHERE.union(*(_taken(part, command) for part in _PARTS.values()))
    for param in command.params:
        if param.opts[0].startswith("--") and param.opts[0] not in covered:
            yield param.opts[0], _cell(param.help or "")


def _shared() -> set[tuple[str, str]]:
    """(option, meaning) that several commands take, by name the one that most take; not those of one service, which are
    with its command."""
    of_services = set().union(*_of_services().values())
    taken = Counter(chain.from_iterable(_own(command) for _, _, command in _commands()))
    several = (one for one, count in reversed(taken.most_common()) if count > 1 and one not in of_services)
    return set(dict(several).items())


def _of_services() -> dict[str, set[tuple[str, str]]]:
    """(option, meaning) of each service, under the names by which commands of several services take them."""
    services = {str(service.value) for service in Service}
    found = ((name, command.params) for _, name, command in _commands() if name in services)
    return {name: {(f"--{name}-{p.opts[0].lstrip('-')}", _cell(p.help or "")) for p in of} for name, of in found}


def _shared_part(commands: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| option | meaning | commands |", "| --- | --- | --- |")
    for name, meaning in sorted(_shared()):
        takers = [f"`{one}`" for one, command in commands.items() if (name, meaning) in _own(command)]
        most = len(takers) > len(commands) // 2
        others = [f"`{one}`" for one in commands if f"`{one}`" not in takers]
        shown = f"all but {', '.join(others)}" if most and others else "all" if most else ", ".join(takers)
        yield f"| `{name}` | {meaning} | {shown} |"


def _of_one(commands: Mapping[str, Any]) -> Iterator[str]:
    """Options that one command takes."""
    services = _of_services()
    several = [
        f"`{name}`" for name, of in commands.items() if any(not set(_own(of)).isdisjoint(s) for s in services.values())
    ]
    prefixes = ", ".join(f"`--{name}-...`" for name in services)
    yield f"{' and '.join(several)} also take the options of the services, as {prefixes}."
    yield from ("", "| command | option | meaning |", "| --- | --- | --- |")
    elsewhere = _shared().union(*services.values())
    for name, command in commands.items():
        own = (one for one in _own(command) if one not in elsewhere)
        yield from (f"| `{name}` | `{option}` | {meaning} |" for option, meaning in own)


def main() -> None:
    """Writes the page, and the help of each program."""
    PAGE.write_text(reference())
    NAMES_PAGE.write_text(names_reference())
    for name, path in HELP.items():
        path.write_text(written(pages(name)))


if __name__ == "__main__":
    main()
