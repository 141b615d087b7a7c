"""The boundary between a command line and Python: errors, imports that no command needs, local paths.

Every error is one line on stderr, or one JSON object with `--json`. Exit codes: 0 done, 1 refused or failed, 2 wrong
usage, 70 a bug, 130 interrupted.

Commands run without pandas, even if it is installed: pyarrow imports it when it first makes an array or a scalar of a
Python value, to recognise values of pandas. A command has none, and the import takes 0.4 s of processor time."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import typer
from typer import BadParameter

from ..errors import PhantombaseError, UsageError
from ..event_log import NAME, get_logger
from ..option import decimal_number


def local_path(text: str) -> Path:
    """The text as a path. BadParameter: a URL, which as a path would be a folder named `s3:`."""
    if "://" in text:
        raise BadParameter(f"{text}: a file or folder of this machine is expected, not a URL")
    return Path(text)


def seconds(least: float) -> Callable[[str], float]:
    """Reads seconds of the command line, `least` or more, where no option dataclass does (`terminal/option_group`)."""

    def read(text: str) -> float:
        try:
            found = decimal_number(text)
        except ValueError:
            found = -1.0
        if found < least:
            raise BadParameter(f"{text!r}: expected seconds, at least {least:g}")
        return found

    return read


_NAME = "pandas"
_COLLECTIONS = (7_000, 10, 20)
"""New objects before a collection of the young generation, such before one of the middle, such before a full one.
Python's default is 700, 10, 10."""


def own_process() -> None:
    """Only for processes of a command; one that runs a user's code must not call it. From now on `import pandas` fails,
    as if it were not installed, and garbage is rarely collected. A full collection visits all file groups of a table:
    a third of the time of a plan of 100,000 (bench.planning); young ones take a twentieth of a command's start."""
    sys.meta_path.insert(0, _Refuses())
    gc.set_threshold(*_COLLECTIONS)


class _Refuses(MetaPathFinder, Loader):
    """Gives a specification and fails at the import: libraries that import pandas late ask for one first."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == _NAME else None

    def exec_module(self, module: ModuleType) -> None:
        raise ModuleNotFoundError("pandas is not loaded in a command of phantombase", name=_NAME)


EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
TRACEBACK = "PHANTOMBASE_TRACEBACK"
"""Environment variable: `1` prints the traceback above the error line."""
_INTERRUPTED = "interrupted. Run the same command again: what is finished is kept, and the rest continues from there."


def run(app: typer.Typer, args: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line (`sys.argv` by default) and exits; an error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # file names need not be valid text
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if args is None else args)
    # Read from the words, not from parsed options: a parse error is reported in this form too.
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        code = typer.main.get_command(app)(words, prog_name=app.info.name, standalone_mode=False)
    except PhantombaseError as error:
        wrong_usage = isinstance(error, UsageError)
        more = f". {error.way_out}" if error.way_out and not error.todo else ""
        _fail(error, f"{error}{more}", EXIT_USAGE if wrong_usage else EXIT_FAILED, as_json)
    except Exception as error:
        _check_output(as_json)
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # of click, or of typer's own click
            _misused(error, " ".join(error.format_message().split()), as_json)
        hint = f"Set {TRACEBACK}=1 to see the traceback, and report it."
        _fail(error, f"internal error: {type(error).__name__}: {error}. {hint}", EXIT_BUG, as_json)
    _check_output(as_json)
    if code == EXIT_INTERRUPTED:
        _fail(KeyboardInterrupt(), _INTERRUPTED, EXIT_INTERRUPTED, as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _check_output(as_json: bool) -> None:
    """Exits if the standard output does not take what was printed, as a full disk. One that was closed has enough."""
    stream: Any = sys.stdout  # None: the process began without one
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BrokenPipeError:
        return
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # it is flushed again at the end of the process
        _fail(error, f"the standard output cannot be written: {error.strerror}", EXIT_FAILED, as_json)


def _misused(error: Any, words: str, as_json: bool) -> NoReturn:
    """Exits with a parse error; a command line without a command shows the help instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    help_ = f" See: {path} --help" if path else ""
    _fail(error, f"{words if words.endswith(('.', '?')) else words + '.'}{help_}", error.exit_code, as_json)


def _fail(error: BaseException, message: str, code: int, as_json: bool) -> NoReturn:
    from rich.console import Console
    from rich.text import Text

    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    cause = getattr(error, "cause", None) or error.__cause__
    if cause is not None and logging.getLogger(NAME).isEnabledFor(logging.DEBUG):
        get_logger().debug("cause", error=repr(cause))
    if as_json:
        print(json.dumps(error_document(error, one_line(message), code)), file=sys.stderr, flush=True)
    else:
        line = Text.assemble(("error:", "bold red"), " ", one_line(message))
        Console(stderr=True, highlight=False).print(line, soft_wrap=True)
    sys.exit(code)


def error_document(error: BaseException, message: str, code: int) -> dict[str, Any]:
    """An error for programs: its class, its exit code, its line, and the parts of the line that it has (pure)."""
    parts = {}
    if isinstance(error, PhantombaseError):
        named = {n: getattr(error, n) for n in ("what", "path", "instant", "expected", "found", "todo")}
        parts = {name: value for name, value in named.items() if value is not None}
        parts |= {"todo": error.advice} if error.advice else {}
    return {"error": message, "type": type(error).__name__, "exit_code": code, **parts}


def one_line(text: str) -> str:
    """The text without line ends and terminal control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split("\n")))
