"""The frame of commands: options from dataclasses, logs, the report, the exit code.

Each option is defined once: its dataclass has the default, the help and the validation. A command is a function of
dataclasses that returns what it did, and how people read that:

    @command
    def clean_command(at: TableChange, options: CleanOptions) -> CommandResult: ...

On the command line the fields of each dataclass take its place: `--policy`, `--retain`, ... Those of `SharedOptions`
are parameters as they are. `--json` is added."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, TypeAlias, get_origin, get_type_hints

import typer
from rich.console import Console, RenderableType

from ..errors import PhantombaseError
from ..option import NUMBERS
from .console import configure_logging, emit
from .option_group import OptionGroup, Prefix, group_of, marked, shown, title_of, type_of, value_of

_PLACEHOLDERS = {int: "N", float: "NUMBER"}
JSON = Annotated[bool, typer.Option("--json", help="print one JSON document: sizes in bytes, times in seconds")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option", metavar="NAME=VALUE", help="an option of the object store, such as region=eu-west-1"
    ),
]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Its data, and how people read it. `failed`: the exit code, True is 1. `error`: for people, the last line."""

    data: Mapping[str, Any]
    render: Callable[[Any], Iterable[RenderableType]]
    failed: int = False
    error: str = ""


class SharedOptions:
    """A dataclass of parameters that several commands have: arguments in its place, options after the command's own."""

    __slots__ = ()


class Each:
    """Stands for one option dataclass of each of these names: `options: Annotated[dict[str, Any], Each({...})]`. The
    names of their options begin with the name of the dataclass."""

    def __init__(self, kinds: Mapping[str, type]) -> None:
        self.kinds = kinds


class Tries(str):
    """The help of `--dry-run`, where a command's own says more: `Annotated[TableChange, Tries("...")]`."""


Merged: TypeAlias = Callable[[type, Mapping[str, Any], Mapping[str, str]], Mapping[str, Any]]
"""From a dataclass, its typed values by field, and the names of these in errors, to its values from all sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNames:
    """Other names for the options of some dataclasses, which all come by the same parameters, such as `--conf`. `read`:
    from a command's dataclasses, the arguments of these parameters, its other arguments and the typed values of the
    dataclasses by parameter, to the values of the dataclasses, and those of the other arguments that they set."""

    kinds: frozenset[type]
    params: Mapping[str, Any]
    read: Callable[
        [Collection[type], Mapping[str, Any], Mapping[str, Any], Mapping[str, Mapping[str, Any]]],
        tuple[Merged, Mapping[str, Any]],
    ]


def command(
    function: Callable[..., Any], *, json: Any = JSON, names: OtherNames | None = None, quiet: bool = True
) -> Callable[..., Any]:
    """Gives a command an option for each field of the option dataclasses among its parameters. Their values are the
    defaults; a parameter without one has that of the dataclass. A command that returns a `CommandResult` has `--json`,
    and its result is shown. Of several, each takes the place of the one before. `json`: its annotation; `names`: other
    names of the options; `quiet`: see `configure_logging`. UsageError: two values of an option."""
    own, shared, each, shows = _declared(function, json)
    groups = {n: g for n, p in own.items() if (g := group_of(p.annotation, p.default)) is not None}
    flags = [flag for group in groups.values() for flag in group.fields]
    assert len(set(flags)) == len(flags), f"two options of {function.__name__} have the same name"
    kinds = {group.kind for group in groups.values()}
    params: dict[str, inspect.Parameter] = {}
    for name, param in own.items():
        for one in _params(groups[name], names) if name in groups else [param]:
            params.pop(one.name, None)  # an option that two dataclasses add, such as --conf, is listed with the second
            params[one.name] = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        as_json = bool(shows and given.pop("json"))
        if shows:
            configure_logging(as_json, quiet=quiet)
        typed = {name: _typed(group, given) for name, group in groups.items()}
        merged: Merged | None = None
        if names is not None:
            merged, plain = names.read(kinds, {name: given.pop(name, None) for name in names.params}, given, typed)
            given |= plain
        for name, group in groups.items():
            words = {f.name: _option_name(flag) for flag, f in group.fields.items()}
            values = typed[name] if merged is None else merged(group.kind, typed[name], words)
            given[name] = group.built(values, typed[name], words)
        for name, one_each in each.items():
            given[name] = {one: given.pop(one) for one in one_each.kinds}
        for name, kind in shared.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        try:
            found = function(**given)
            return _shown(found, as_json) if shows else found
        except PhantombaseError as error:
            table = given.get("path") or given.get("table") or getattr(given.get("at"), "table", None)
            if isinstance(table, str):
                error.place(table if ":" in table else os.path.abspath(table), table)
            raise

    run.__signature__ = inspect.Signature(list(params.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in params.items()}
    return run


def _shown(found: CommandResult | Iterable[CommandResult], as_json: bool) -> None:
    failed = 0
    for number, done in enumerate([found] if isinstance(found, CommandResult) else found):
        if number:
            Console().clear()  # of a terminal; in a pipe, results follow each other
        emit(done.data, as_json, done.render)
        if done.error and not as_json:
            typer.echo(f"error: {done.error}", err=True)
        failed = done.failed
    if failed:
        raise typer.Exit(int(failed))


def _declared(
    function: Callable[..., Any], json: Any
) -> tuple[dict[str, inspect.Parameter], dict[str, Any], dict[str, Each], bool]:
    """The parameters of a command, its SharedOptions and its Each by name, and whether its result is shown."""
    hints = get_type_hints(function, include_extras=True)
    shows = hints.pop("return", None) in (CommandResult, Iterator[CommandResult])
    own: dict[str, inspect.Parameter] = {}
    last: dict[str, inspect.Parameter] = {}
    shared: dict[str, Any] = {}
    each: dict[str, Each] = {}
    for name, param in inspect.signature(function).parameters.items():
        kind, *marks = marked(hints[name])
        if marks and isinstance(marks[0], Each):
            each[name] = marks[0]
            for word, one_kind in marks[0].kinds.items():
                hint: Any = Annotated[one_kind, Prefix(word)]
                own[word] = _parameter(word, hint, inspect.Parameter.empty)
            continue
        if not (isinstance(kind, type) and issubclass(kind, SharedOptions)):
            own[name] = param.replace(annotation=hints[name])
            continue
        shared[name] = kind
        for one in _fields_of(kind, marks):
            is_argument = any(isinstance(mark, typer.models.ArgumentInfo) for mark in marked(one.annotation))
            (own if is_argument else last)[one.name] = one
    if shows:
        last["json"] = _parameter("json", json, False)
    return {**own, **last}, shared, each, shows


def _fields_of(kind: Any, marks: Collection[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for mark in marks:
        hints["dry_run"] = Annotated[bool, typer.Option("--dry-run", help=mark)]
    for one in fields(kind):
        yield _parameter(one.name, hints[one.name], inspect.Parameter.empty if one.default is MISSING else one.default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typed(group: OptionGroup, given: dict[str, Any]) -> dict[str, Any]:
    """Removes the typed options of a group from a command's arguments; returns their values by field."""
    found = {flag: given.pop(flag) for flag in group.fields}
    typed = {flag: value for flag, value in found.items() if value not in (None, [])}
    return {
        (f := group.fields[flag]).name: value_of(group.kind, f, value, _option_name(flag))
        for flag, value in typed.items()
    }


def _option_name(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"


def _params(group: OptionGroup, names: OtherNames | None) -> list[inspect.Parameter]:
    """The parameters of a group, in the order of the fields. Their default is None: nothing was typed."""
    made = [
        _parameter(flag, _annotation(group.kind, field, getattr(group.default, field.name)), None)
        for flag, field in group.fields.items()
    ]
    if names is not None and group.kind in names.kinds:
        made += [_parameter(name, annotation, None) for name, annotation in names.params.items()]
    return made


def _annotation(kind: type, field: Field[Any], default: Any) -> Any:
    of, several = type_of(kind, field)
    unit = "SIZE" if field.metadata["size"] else "SECONDS" if field.name.endswith("_s") else _PLACEHOLDERS.get(of)
    option = typer.Option(
        help=field.metadata["help"],
        metavar=field.metadata["metavar"] or unit,
        show_default=shown(field, default) or False,
        rich_help_panel=title_of(kind, field),
    )
    python = str if of in NUMBERS or get_origin(of) is tuple else of  # `value_of` reads numbers, from anywhere alike
    plain: Any = list[python] if several else python  # type: ignore[valid-type]
    return Annotated[plain | None, option]
