"""Commands that are loaded when they are called, with their help pages and the options that all of them have.

`--help` loads no command, since the imports of commands take most of the start. The main page names the commands; the
pages of the commands are read from a file, which `python -m tests.project.option_reference` writes."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import UsageError
from .option_group import HelpPage, help_of, page, read_pages
from .settings import (
    CHOSEN,
    FILE,
    LogLevel,
    ShownSetting,
    check_variables,
    names_in,
    plain,
    read_file,
    settings_in,
    settings_of,
    variable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command: the function or typer app `name` of `module`. `panel`: the title above it on the main page."""

    module: str
    name: str
    panel: str


_OTHER_WORDS = {"stitch": "cluster", "clustering": "cluster", "compaction": "compact", "cleaning": "clean"}
"""Words by which users look for a command, and the command's name."""


def lazy_commands(package: str, panels: Mapping[str, Sequence[str]]) -> dict[str, LazyCommand]:
    """Commands of a package, by name. `panels`: by title, `module.function`; the function has the command's name, which
    may end with `_command`, or with `_app`."""
    found = ((panel, *where.split(".")) for panel, commands in panels.items() for where in commands)
    return {
        name.removesuffix("_command").removesuffix("_app").replace("_", "-"): LazyCommand(
            module=f"{package}.{module}", name=name, panel=panel
        )
        for panel, module, name in found
    }


def lazy_app(commands: Mapping[str, LazyCommand], pages: Path, **settings: Any) -> typer.Typer:
    """A typer app of these commands, in this order. `pages`: file of their help; `settings`: as for `typer.Typer`."""

    class Group(_LazyGroup):
        lazy, help_file = commands, pages

    app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, **settings)

    @app.callback()
    def group(
        version: Annotated[
            bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        """The options of the command line."""

    return app


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from ..codec.avro_decode import native

        module = "" if native is None else f"phantombase-native {native.__version__}"
        parquet = module if hasattr(native, "RowGroup") else "pyarrow"
        print(f"phantombase {version('phantombase')} (decodes Avro by {module or 'numpy'}, Parquet by {parquet})")
        raise typer.Exit


class _LazyGroup(TyperGroup):
    lazy: Mapping[str, LazyCommand] = {}
    help_file: Path

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Loaded(self.lazy)

    def pages(self) -> dict[str, HelpPage]:
        return read_pages(self.help_file.read_text()) if self.help_file.exists() else {}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the main page, which has the first paragraph of each command's page, without loading any."""
        pages = self.pages()
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.lazy.items():
            text = pages[name].text.split("\n\n")[0] if name in pages else ""
            groups.setdefault(command.panel, []).append((name, text.replace("`", "")))
        completion = "--install-completion, --show-completion"
        options = [("--version", "show the version and exit"), (completion, "for the shell that runs this")]
        sections = {**groups, "Options": [*options, ("--help", "show this page and exit; each command has one")]}
        usage = f"{ctx.command_path} COMMAND ..."
        formatter.write(page(usage, flowing(self.help or ""), sections, _width()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolves a command; with `--help` prints its stored page and exits without loading it."""
        words = args[: args.index("--")] if "--" in args else args
        if "--help" in words and args[0] in self.lazy:
            pages = self.pages()
            name = next((n for n in (" ".join(words[:2]), words[0]) if n in pages), None)
            if name is not None:
                print(pages[name].shown(f"{ctx.command_path} {name}", _width()), end="")
                raise typer.Exit
        if (meant := _OTHER_WORDS.get(args[0])) in self.lazy:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")  # as typer says of similar names
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _params_of(super().get_params, ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.lazy)


class _Loaded(Mapping[str, Any]):
    def __init__(self, lazy: Mapping[str, LazyCommand]) -> None:
        self._lazy = lazy

    def __getitem__(self, name: str) -> Any:
        return _load(self._lazy[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lazy)

    def __len__(self) -> int:
        return len(self._lazy)


@cache
def _load(lazy: LazyCommand, name: str) -> Any:
    """The command: made once a process, as the types of its options cost 50 ms."""
    found = getattr(import_module(lazy.module), lazy.name)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        app.info = found.info
        for one in found.registered_commands:
            app.command(one.name)(with_log_options(one.callback))  # type: ignore[arg-type]
        app.callback()(lambda: None)
    else:
        app.command(name)(with_log_options(found))
    command = typer.main.get_command(app)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = flowing(one.help or "")
        one.format_help = partial(_write_help, one)
        one.get_params = partial(_params_of, one.get_params)
        settings = settings_of(name if one is command else f"{name} {one.name}", one.params)
        for setting, param in settings.items():  # each may come from an environment variable, too
            if param.envvar is None and param.param_type_name == "option":
                param.envvar = variable(setting)
    return command


def _params_of(inherited: Callable[[Any], list[Any]], ctx: Any) -> list[Any]:
    """The parameters of a command, with that of `--help`."""
    for param in (params := inherited(ctx)):
        if "process_value" not in vars(param):
            param.process_value = partial(_processed, param, param.process_value)
    return params


def _processed(param: Any, process: Callable[[Any, Any], Any], ctx: Any, given: Any) -> Any:
    """What typer makes of a value. From 0.29 on it makes an adapter of pydantic for each parameter, given or not: a
    tenth of a second for each command. Nothing, and what has the type already, as texts and defaults do, need none."""
    asked = getattr(param, "type_descriptor", None)
    if asked is None or (param.required and not given):
        return process(ctx, given)
    if given is None:
        given = () if getattr(param, "multiple", False) or param.nargs == -1 else None
    elif asked.parameter_info.parser is not None:
        return process(ctx, given)
    elif asked.annotation == list[str] and isinstance(given, list | tuple):
        given = list(given)
    elif type(given) is not asked.annotation:
        return process(ctx, given)
    return given if param.callback is None else param.callback(ctx, param, given)


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    formatter.write(help_of(command).shown(ctx.command_path, _width()))


def _width() -> int:
    return shutil.get_terminal_size().columns


def flowing(text: str) -> str:
    """Help from a docstring, with paragraphs that may wrap anywhere; indented lines are kept."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if "\n " in p else p.replace("\n", " ") for p in paragraphs)


def fill(ctx: typer.Context, path: str | None) -> str | None:
    """Reads the file into the context of a command; returns its path. UsageError: see `settings_in`."""
    command = " ".join(ctx.command_path.split()[1:])  # within its program: `compact`, `savepoint create`
    program: Any = ctx.find_root().command
    known = settings_of(command, ctx.command.params)
    check_variables(known)
    if path is None or command.startswith("config "):
        return path
    document = read_file(path)
    if "compact" not in program.commands:  # the program `timeline`, whose settings have a table of their own
        document = document.get("timeline", {})
        if not isinstance(document, dict):
            raise UsageError("not a setting on top", path=path, found="timeline", todo="[timeline] is a table.")

    pages = program.pages()
    found = settings_in(document, path, command, known, {**pages, **program.lazy}, lambda: names_in(pages))
    ctx.default_map = {known[name].name: _given(known[name], one, name) for name, one in found.items()}
    ctx.meta[FILE] = {known[name].name: one.where for name, one in found.items()}
    return path


def _given(param: Any, one: ShownSetting, name: str) -> Any:
    """A value of the file as click takes it. One text for an option that may be repeated is a list of it."""
    value, several, expected = one.value, getattr(param, "multiple", False) or param.nargs == -1, ""
    found = repr(value)
    if getattr(param, "is_flag", False):
        expected = "" if str(value).lower() in ("true", "false", "on", "off", "yes", "no") else "true or false"
    else:
        each = value if several and isinstance(value, list) else [value]
        if wrong := next((text for one, text in _NO_TEXTS.items() if any(isinstance(v, one) for v in each)), ""):
            expected, found = "a list of texts" if several else "a text or a number", wrong  # a list may have secrets
    if expected:
        raise UsageError(f"not a value of {name}", path=one.where, expected=expected, found=found)
    given = plain(value)
    return [given] if several and not isinstance(given, list) else given


_NO_TEXTS = {bool: "true or false", list: "a list", dict: "a table"}


def _added(
    *,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level", help="log lines of this level and worse: debug, info, warning, error", metavar="LEVEL"
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="the same as --log-level debug")] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar=FILE,
            show_envvar=False,
            is_eager=True,
            callback=fill,
            help="a TOML file with settings, see `compactor-daemon config show --help`",
        ),
    ] = None,
) -> None:
    """The options that every command has."""


def with_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--log-level` and `-v`, which `configure_logging` obeys, and with `--config`."""
    both = [p for one in (command, _added) for p in inspect.signature(one, eval_str=True).parameters.values()]
    params = [param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in both]

    @wraps(command)
    def run(*, log_level: LogLevel | None = None, verbose: bool = False, **given: Any) -> Any:
        given.pop("config", None)  # its callback has read it
        token = CHOSEN.set(LogLevel.DEBUG if verbose else log_level)
        try:
            return command(**given)
        finally:
            CHOSEN.reset(token)

    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in params}
    return run
