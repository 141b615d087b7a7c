"""The error boundary of a command line, and commands that are loaded when they are called.

`--help` of a command line names its commands without importing what they need: that takes most of a start.
Exit codes: 0 done, 1 refused or failed with one line `error: ...`, 2 wrong usage, 70 a bug, 130 interrupted.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import PhantombaseError

EXIT_FAILED = 1
EXIT_BUG = 70
TRACEBACK = "PHANTOMBASE_TRACEBACK"
"""Environment variable: `1` prints the traceback above the error line."""


# --- commands that are loaded when they are called -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command: a function, or a typer app, `name` of `module`.

    `text`: the first paragraph of its help; `panel`: the title above it on the page of the command line.
    """

    module: str
    name: str
    panel: str
    text: str


def lazy_command(package: str, module: str, name: str, panel: str, text: str) -> LazyCommand:
    """A command of a module of a package."""
    return LazyCommand(module=f"{package}.{module}", name=name, panel=panel, text=text)


def lazy_app(commands: Mapping[str, LazyCommand], **settings: Any) -> typer.Typer:
    """A typer app of these commands, in this order. `settings`: as for `typer.Typer`."""

    class Group(_LazyGroup):
        lazy = commands

    app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, **settings)

    @app.callback()
    def group(
        version: Annotated[
            bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        """The options of the whole command line."""

    return app


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"phantombase {version('phantombase')}")
        raise typer.Exit


class _LazyGroup(TyperGroup):
    lazy: Mapping[str, LazyCommand] = {}
    _listing = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded(self.lazy, self.rich_markup_mode)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The page names the commands by `text`."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Loads the command, unless only its name and text are shown."""
        if self._listing and cmd_name in self.lazy:
            lazy = self.lazy[cmd_name]
            return TyperCommand(name=cmd_name, help=lazy.text, rich_help_panel=lazy.panel)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in their order."""
        return list(self.lazy)


class _Loaded(MutableMapping[str, Any]):
    """The commands by name; each is loaded when it is asked for."""

    def __init__(self, lazy: Mapping[str, LazyCommand], markup: Any) -> None:
        self._lazy = lazy
        self._markup = markup
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._load(self._lazy[name], name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lazy)

    def __len__(self) -> int:
        return len(self._lazy)

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("commands are added where the command line is defined")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are removed where the command line is defined")

    def _load(self, lazy: LazyCommand, name: str) -> Any:
        found = getattr(import_module(lazy.module), lazy.name)
        app = found
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=self._markup, pretty_exceptions_enable=False)
            app.command(name)(found)
        command = typer.main.get_command(app)
        command.name = name
        for one in _with_inner(command):
            one.help = flowing(one.help or "")
        return command


def _with_inner(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _with_inner(inner)


def flowing(text: str) -> str:
    """Help from a docstring, with paragraphs that may wrap anywhere; indented lines are kept."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if "\n " in p else p.replace("\n", " ") for p in paragraphs)


# --- the error boundary --------------------------------------------------------------------------------------------


def run(app: typer.Typer, args: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line (`sys.argv` by default) and exits; an error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # file names need not be valid text
            stream.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(app)
        command.help = flowing(command.help or "")
        command(args)
    except PhantombaseError as error:
        _fail(error, str(error), EXIT_FAILED)
    except Exception as error:
        hint = f"Set {TRACEBACK}=1 to see the traceback, and report it."
        _fail(error, f"internal error: {type(error).__name__}: {error}. {hint}", EXIT_BUG)
    sys.exit(0)


def _fail(error: BaseException, message: str, code: int) -> NoReturn:
    from rich.console import Console
    from rich.text import Text

    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    line = Text.assemble(("error:", "bold red"), " ", one_line(message))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)
    sys.exit(code)


def one_line(text: str) -> str:
    """The text without line ends and terminal control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split("\n")))
