"""Command line options made of the fields of an option dataclass, and the same options in a file or under Hudi's names.

One home for each option: its dataclass has default, help and validation. Commands that take them say `@offers(...)`.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable
from dataclasses import Field, fields, replace
from enum import Enum
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from compactor_daemon.cli_options import said_once
from compactor_daemon.hudi_conf import SCHEDULE_CONF, parse_schedule_conf
from compactor_daemon.options import parse_bytes
from timeline.errors import UsageError
from timeline.schedule_options import ScheduleOptions

_CONFIG = Annotated[
    str | None, typer.Option(metavar="FILE", help="a TOML file; its table `schedule` has these options by their names")
]
_CONF = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="an option under Hudi's own name (README)")]


def offers(parameter: str, defaults: ScheduleOptions) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of ScheduleOptions, `--config` and, where it has none, `--conf`.

    It receives what was said as its argument `parameter`. UsageError: something is said twice and differs.
    """
    params = {_flag(f): f for f in fields(ScheduleOptions)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        hints = get_type_hints(command, include_extras=True)

        @functools.wraps(command)
        def run(**given: Any) -> None:
            said = {f.name: _value(f, v) for flag, f in params.items() if (v := given.pop(flag)) not in (None, [])}
            pairs = given.pop("conf") or []
            named = [p for p in pairs if p.partition("=")[0] in SCHEDULE_CONF]
            others = [p for p in pairs if p not in named]
            if "conf" in own:
                given["conf"] = others
            elif others:
                parse_schedule_conf(others)  # refuses them
            in_file = _read(given.pop("config"))
            strategies = said.get("strategies") or in_file.get("strategies") or ()
            given[parameter] = replace(defaults, **said_once(said, parse_schedule_conf(named, strategies), in_file))
            command(**given)

        made = {flag: (_annotation(f, getattr(defaults, f.name)), None) for flag, f in params.items()}
        made |= {"config": (_CONFIG, None), "conf": (_CONF, None)}
        kept = [p.replace(annotation=hints[n]) for n, p in own.items() if n != parameter]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in made.items()
            if name not in own
        ]
        at = next((n for n, p in enumerate(own.values()) if p.name == parameter), len(kept))
        kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept]
        all_of_them = [*kept[:at], *added, *kept[at:]]
        run.__signature__ = inspect.Signature(all_of_them)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in all_of_them}
        return run

    return decorate


def _read(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError("unreadable configuration file", path=path, found=str(error)) from error
    by_name = {_flag(f): f for f in fields(ScheduleOptions)}
    table = document.pop("schedule", {})
    given = {str(name).replace("-", "_"): value for name, value in table.items()} if isinstance(table, dict) else {}
    if isinstance(table, dict) and len(given) < len(table):
        raise UsageError("an option is given twice", path=path, found=", ".join(table))
    unknown = [*document, *(name for name in given if name not in by_name)]
    if unknown or not isinstance(table, dict):
        raise UsageError(
            "not an option in a configuration file",
            path=path,
            expected="[schedule] with " + ", ".join(by_name),
            found=", ".join(unknown) or "no table",
        )
    return {by_name[name].name: _value(by_name[name], value) for name, value in given.items()}


def _flag(field: Field[Any]) -> str:
    """The option's name: without its unit, which the help and the value tell."""
    return str(field.metadata["flag"] or field.name.removesuffix("_s"))


def _kind(field: Field[Any]) -> tuple[type, bool]:
    """The type of the value, or of one of several; whether there may be several."""
    hint = get_type_hints(ScheduleOptions)[field.name]
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    options = [t for t in get_args(hint) if t is not NoneType] or [hint]
    return options[0], False


def _annotation(field: Field[Any], default: Any) -> Any:
    kind, several = _kind(field)
    metavar = "SIZE" if field.metadata["size"] else "SECONDS" if field.name.endswith("_s") else None
    shown = default.value if isinstance(default, Enum) else default
    told = False if default is None or default == () else str(shown).lower() if kind is bool else str(shown)
    option = typer.Option(help=field.metadata["help"], metavar=metavar, show_default=told)
    python = str if field.metadata["size"] else kind
    return Annotated[(list[python] if several else python) | None, option]  # type: ignore[valid-type]


def _value(field: Field[Any], given: Any) -> Any:
    """What was said on the command line or in a file, as the field's value; UsageError where it is none."""
    kind, several = _kind(field)
    if several:
        return tuple(_one(field, kind, v) for v in (given if isinstance(given, list) else [given]))
    return _one(field, kind, given)


def _one(field: Field[Any], kind: type, given: Any) -> Any:
    if isinstance(given, kind) and not (kind is int and isinstance(given, bool)):
        return given
    if field.metadata["size"] and isinstance(given, str):
        return parse_bytes(given)
    if issubclass(kind, Enum):
        try:
            return kind(given)
        except ValueError as error:
            values = ", ".join(m.value for m in kind)
            raise UsageError(f"not a value of {_flag(field)}", expected=values, found=repr(given)) from error
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    raise UsageError(f"not a value of {_flag(field)}", expected=kind.__name__, found=repr(given))
