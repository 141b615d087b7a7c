"""The frame of commands: options from dataclasses, the table and its lock, the report and the exit code.

Each option is defined once: its dataclass has the default, the help and the validation. A command is a function of
dataclasses that returns what it did:

    @offers
    def clean_command(at: TableChange, options: CleanOptions) -> CommandResult:
        table, lock = at.open("clean needs to know ...", "A savepoint that ...")
        return CommandResult(at.row(clean_table(table, options, lock, dry_run=at.dry_run)), render_cleaned)

On the command line the fields of each dataclass take its place: `--policy`, `--retain`, ...; those of `TableChange` are
TABLE, `--dry-run`, `--lock`, ... The same options may be given under Hudi's names (`--conf`). `--json` is added.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from rich.console import RenderableType

from phantombase.timeline.codec.output_options import OutputOptions, parse_bytes
from phantombase.timeline.errors import UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import STORAGE, ProcessLock, TableLock, parse_lock, table_lock
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock, check_usable
from phantombase.timeline.option import as_typed
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.boundary import EXIT_FAILED
from phantombase.timeline.terminal.console import configure_logging, emit

from ..hudi_names import contradiction
from ..options import AttemptOptions, ExecuteOptions, print_bytes
from ..services.hudi_conf import KINDS, command_conf, conf_fields

OUTPUT, EXECUTE, ATTEMPT, CLOCK = OutputOptions(), ExecuteOptions(), AttemptOptions(), ClockOptions()
"""The defaults, from the dataclasses that define the options."""

TablePath = Annotated[
    str,
    typer.Argument(metavar="TABLE", parser=full_path, help="base path of the table: the folder that holds .hoodie"),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="an option of the object store, such as region=eu-west-1"),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Lock = Annotated[
    str | None,
    typer.Option(
        metavar="LOCK",
        help="table lock that every writer and scheduler of the table shares: file:PATH, "
        "zookeeper:HOST:PORT[,HOST:PORT]/BASE/PATH/KEY, as Hudi's ZookeeperBasedLockProvider, or storage: in the "
        "table's own storage, on S3, GCS and Azure as Hudi's StorageBasedLockProvider; not on HDFS. {name} in it is "
        "the table's name",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check everything, show what would be done, change nothing")]
SoleWriter = Annotated[
    bool, typer.Option(help="no other process writes to the table, or requests compactions, while this runs")
]


def check_writers_known(lock: str | None, sole_writer: bool, what: str, todo: str) -> None:
    """UsageError unless exactly one is given: a `lock` that all other writers share, or `sole_writer`.

    `what`: the first line of the error, `todo`: its advice.
    """
    if (lock is None) == (not sole_writer):
        raise UsageError(
            what,
            expected="one of --lock and --sole-writer",
            found="both" if sole_writer else "neither",
            todo=todo,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The table that a command changes, under which lock, and whether the command only shows what it would do."""

    table: TablePath
    dry_run: DryRun = False
    lock: Lock = None
    sole_writer: SoleWriter = False
    clock: ClockOptions = CLOCK
    storage_option: StorageOption = None

    def open(self, what: str, todo: str) -> tuple[Table, TableLock]:
        """The table and its lock. UsageError: see `check_writers_known`.

        A dry run takes no lock, so none need be known, and leaves nothing in the table, not even the lock's file.
        """
        if not self.dry_run or (self.lock is not None and self.sole_writer):
            check_writers_known(self.lock, self.sole_writer, what, todo)
        opened = self.opened()
        return opened, self.lock_of(opened)

    def opened(self) -> Table:
        """The table alone."""
        return Table.open(self.table, parse_pairs(self.storage_option)).with_clock(self.clock)

    def lock_of(self, opened: Table) -> TableLock:
        """The lock; that of a dry run is this process's. LockError: its servers cannot be reached."""
        if self.dry_run:
            return ProcessLock(opened.storage.location)
        check_reachable(self.lock)
        return table_lock(opened.storage, self.lock, sole_writer=self.sole_writer)

    def row(self, done: Any) -> dict[str, Any]:
        """The report's data: the table, whether nothing was changed, and what was done, a dataclass or a mapping."""
        return {"table": self.table, "dry_run": self.dry_run, **(done if isinstance(done, dict) else asdict(done))}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did: its data, and how people read it.

    `failed`: the exit code is 1 all the same. `error`: the last line for people, on stderr.
    """

    data: Mapping[str, Any]
    render: Callable[[Any], Iterable[RenderableType]]
    failed: bool = False
    error: str = ""


def check_reachable(lock: str | None) -> None:
    """LockError: the named lock cannot be used. Asked before work whose end needs the lock."""
    named = parse_lock(lock) if lock not in (None, STORAGE) else None
    if isinstance(named, ZooKeeperLock):
        check_usable(named)


def typed_options(ctx: typer.Context, names: Iterable[str]) -> tuple[str, ...]:
    """The options of these parameters that were typed: a file or a variable may have one for other commands."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    typed = (name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
    return tuple(f"--{name.replace('_', '-')}" for name in typed)


def merge_options(names: Mapping[str, str], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Options from several sources in one. `names`: how errors name them.

    UsageError: two sources give an option different values.
    """
    found: dict[str, Any] = {}
    for one in sources:
        if differing := [name for name in one if name in found and found[name] != one[name]]:
            first = differing[0]
            raise contradiction(names[first], _plain(found[first]), f"{names[first]} by --conf", _plain(one[first]))
        found |= one
    return found


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


_TITLES: Mapping[str, str] = {
    "TriggerOptions": "When a compaction is due",
    "UrgencyOptions": "When a compaction is due",
    "BoundOptions": "How much one plan holds",
    "ScheduleOptions": "Which file groups, and minor or major",
    "PickOptions": "Which file groups, and minor or major",
    "StrategyOptions": "Hudi's strategies",
    "OutputOptions": "Merging and writing base files",
    "ExecuteOptions": "Where file slices are compacted",
    "AttemptOptions": "Timeouts",
    "RetryOptions": "Failures",
    "Rules": "Daemon",
    "ClockOptions": "Clock and time zone",
    "CatalogFlags": "Tables of a catalog",
    "ZooKeeperFlags": "ZooKeeper",
    "CleanOptions": "Cleaning",
    "ArchiveOptions": "Archiving",
    "MetadataOptions": "Metadata table",
    "ClusterOptions": "Clustering",
    "OrphanOptions": "Orphan files",
    "WriteOptions": "Writes",
    "CompactionOptions": "Compaction after a write",
    "BackPressure": "Back-pressure",
}
"""By the dataclass that defines the option; its name, so that none is imported for a title alone."""


def group_of(kind: type, field: Field[Any]) -> str | None:
    """The title of the group; None: with the command's own options."""
    owner = next(k for k in kind.__mro__ if field.name in inspect.get_annotations(k))
    return _TITLES.get(owner.__name__)


_CONF = Annotated[
    list[str] | None,
    typer.Option("--conf", "--hoodie-conf", metavar="NAME=VALUE", help="an option under Hudi's own name"),
]
_PROPS = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="a properties file of a Hudi job; what has no meaning here is one warning, --conf wins"
    ),
]


class Only:
    """The fields of an option dataclass that a command offers; the others have their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Prefix:
    """The word before the names of a dataclass's options, where those of several dataclasses would be alike."""

    def __init__(self, word: str) -> None:
        self.word = word


class Tries(str):
    """The help of `--dry-run`, where a command's own says more: `Annotated[TableChange, Tries("...")]`."""


def offers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command an option for each field of the option dataclasses among its parameters.

    Their values are the defaults; a parameter without one has that of the dataclass. Dataclasses whose fields have
    names of Hudi add `--conf` and `--props`. A command that returns a `CommandResult` has `--json`, and its outcome is
    shown. UsageError: an option is given twice with different values.
    """
    own, at, shows = _declared(command)
    groups = {n: g for n, p in own.items() if (g := _group(p.annotation, p.default)) is not None}
    flags = [flag for group in groups.values() for flag in group.fields]
    assert len(set(flags)) == len(flags), f"two options of {command.__name__} have the same name"
    kinds = {group.kind for group in groups.values()}
    params: dict[str, inspect.Parameter] = {}
    for name, param in own.items():
        for one in groups[name].params() if name in groups else [param]:
            params.pop(one.name, None)  # an option that two dataclasses add, such as --conf, is listed with the second
            params[one.name] = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        json = bool(shows and given.pop("json"))
        if shows:
            configure_logging(json)
        typed = {name: group.typed(given) for name, group in groups.items()}
        conf = command_conf(kinds, given.pop("conf", None) or [], given.pop("props", None) or [])
        for name, group in groups.items():
            given[name] = group.built(typed[name], conf.get(group.kind, []))
        if at is not None:
            given[at] = TableChange(**{one.name: given.pop(one.name) for one in fields(TableChange)})
        done = command(**given)
        if not isinstance(done, CommandResult):
            return done
        emit(done.data, json, done.render)
        if done.error and not json:
            typer.echo(f"error: {done.error}", err=True)
        if done.failed:
            raise typer.Exit(EXIT_FAILED)
        return None

    run.__signature__ = inspect.Signature(list(params.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in params.items()}
    return run


def _declared(command: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], str | None, bool]:
    """The parameters of a command, the name of its TableChange, and whether its outcome is shown.

    The fields of the TableChange are parameters too: TABLE in its place, the others after the command's own.
    """
    hints = get_type_hints(command, include_extras=True)
    shows = hints.pop("return", None) is CommandResult
    own: dict[str, inspect.Parameter] = {}
    last: dict[str, inspect.Parameter] = {}
    at = None
    for name, param in inspect.signature(command).parameters.items():
        kind, *marks = _marked(hints[name])
        if kind is not TableChange:
            own[name] = param.replace(annotation=hints[name])
            continue
        at, shared = name, get_type_hints(TableChange, include_extras=True)
        if marks:
            shared["dry_run"] = Annotated[bool, typer.Option("--dry-run", help=marks[0])]
        defaults = {one.name: one.default for one in fields(TableChange) if one.default is not MISSING}
        last = {one: _parameter(one, hint, defaults.get(one, inspect.Parameter.empty)) for one, hint in shared.items()}
        own["table"] = last.pop("table")
    if shows:
        last["json"] = _parameter("json", Json, False)
    return {**own, **last}, at, shows


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The options of one dataclass: their default value, and the offered fields by flag."""

    default: Any
    fields: Mapping[str, Field[Any]]

    @property
    def kind(self) -> type:
        """The dataclass."""
        return type(self.default)

    def params(self) -> list[inspect.Parameter]:
        """The command's parameters, in the order of the fields."""
        many = self.kind in KINDS
        made = [(flag, *_param(self.kind, f, getattr(self.default, f.name), many)) for flag, f in self.fields.items()]
        made += [("conf", _CONF, None), ("props", _PROPS, None)] if many else []
        return [_parameter(*one) for one in made]

    def typed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Removes the typed options from the command's arguments; returns them by field."""
        found = {flag: given.pop(flag) for flag in self.fields}
        typed = {flag: value for flag, value in found.items() if value not in (None, [])}
        return {(f := self.fields[flag]).name: _value(self.kind, f, v, _typed_name(flag)) for flag, v in typed.items()}

    def built(self, typed: Mapping[str, Any], pairs: list[str]) -> Any:
        """The dataclass, built from all sources. `pairs`: options under Hudi's names."""
        sources = [typed, conf_fields(self.kind, pairs, typed) if self.kind in KINDS else {}]
        words = {f.name: _typed_name(flag) for flag, f in self.fields.items()}
        merged = merge_options(words, *sources)
        try:
            return replace(self.default, **merged)
        except UsageError as error:
            raise as_typed(error, self.default, typed, words) from error


def _group(hint: Any, default: Any) -> _Group | None:
    """The options that a parameter stands for; None if the parameter is an option or an argument itself."""
    kind, *marks = _marked(hint)
    if not is_dataclass(kind):
        return None
    default = cast(type, kind)() if default is inspect.Parameter.empty else default
    only = next((mark.names for mark in marks if isinstance(mark, Only)), None)
    prefix = next((f"{mark.word}_" for mark in marks if isinstance(mark, Prefix)), "")
    offered = [f for f in fields(kind) if f.name in only] if only is not None else fields(kind)
    return _Group(default=default, fields={f"{prefix}{_flag(f)}": f for f in offered})


def _marked(hint: Any) -> tuple[Any, ...]:
    """The type, and its marks."""
    return get_args(hint) if get_origin(hint) is Annotated else (hint,)


def from_settings(default: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An option dataclass with the settings that a file gives under the names of its options, and the other settings.

    UsageError: not a value of an option.
    """
    named = {_flag(f).replace("_", "-"): f for f in fields(default)}
    known = {name: value for name, value in given.items() if name.replace("_", "-") in named}
    made = {(f := named[name.replace("_", "-")]).name: _value(type(default), f, v, name) for name, v in known.items()}
    return replace(default, **made), {name: value for name, value in given.items() if name not in known}


def flags_of(kind: type) -> tuple[str, ...]:
    """The names of the parameters that stand for the fields of a dataclass."""
    return tuple(_flag(f) for f in fields(kind))


def _flag(field: Field[Any]) -> str:
    """The option's name, without its unit, which the help and the value show."""
    return str(field.metadata["flag"] or field.name.removesuffix("_s"))


def _typed_name(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"


def _type(kind: type, field: Field[Any]) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several values."""
    hint = get_type_hints(kind)[field.name]
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    options = [t for t in get_args(hint) if t is not NoneType] or [hint]
    return options[0], False


def _param(kind: type, field: Field[Any], default: Any, many: bool) -> tuple[Any, Any]:
    """The annotation of a command's parameter, and its default.

    `many`: there are other sources, so that None means "not typed", and only the help shows the default.
    """
    of, several = _type(kind, field)
    text = field.metadata["size"] or get_origin(of) is tuple
    metavar = field.metadata["metavar"] or (
        "SIZE" if field.metadata["size"] else "SECONDS" if field.name.endswith("_s") else None
    )
    least = None if text else field.metadata["least"]
    many = many or field.metadata["size"] or default == ()
    shown = _shown(field, default) if many else True
    option = typer.Option(
        help=field.metadata["help"],
        metavar=metavar,
        show_default=shown,
        min=least,
        rich_help_panel=group_of(kind, field),
    )
    python = str if text else of
    optional = many or default is None
    plain: Any = list[python] if several else python  # type: ignore[valid-type]
    return Annotated[plain | None if optional else plain, option], None if optional else default


def _shown(field: Field[Any], default: Any) -> str | bool:
    if default is None or default == ():
        return False
    if field.metadata["size"]:
        return print_bytes(default)
    return str(default).lower() if isinstance(default, bool) else str(getattr(default, "value", default))


def _value(kind: type, field: Field[Any], given: Any, name: str) -> Any:
    """The field's value from what was given under this `name`. UsageError: not a value of the field."""
    of, several = _type(kind, field)
    if several:
        return tuple(_one(field, of, v, name) for v in (given if isinstance(given, list) else [given]))
    return _one(field, of, given, name)


def _one(field: Field[Any], kind: Any, given: Any, name: str) -> Any:
    if get_origin(kind) is tuple:
        first, _, second = str(given).partition("=")
        return first, second
    if isinstance(given, kind) and not (kind is int and isinstance(given, bool)):
        return given
    if field.metadata["size"] and isinstance(given, str):
        return parse_bytes(given, name)
    if issubclass(kind, Enum):
        try:
            return kind(given)
        except ValueError as error:
            values = ", ".join(m.value for m in kind)
            raise UsageError(f"not a value of {name}", expected=values, found=repr(given)) from error
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    raise UsageError(f"not a value of {name}", expected=kind.__name__, found=repr(given))
