"""The error boundary of a command line: every error is one line on stderr, or one JSON object with `--json`.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 70 a bug, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, NoReturn

import typer

from ..errors import PhantombaseError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
TRACEBACK = "PHANTOMBASE_TRACEBACK"
"""Environment variable: `1` prints the traceback above the error line."""

_INTERRUPTED = "interrupted. Run the same command again: what is finished is kept, and the rest goes on from there."


def run(app: typer.Typer, args: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line (`sys.argv` by default) and exits; an error becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # file names need not be valid text
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if args is None else args)
    # Looked for here, not in what was parsed: an error of parsing is reported the same way.
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        code = typer.main.get_command(app)(words, prog_name=app.info.name, standalone_mode=False)
    except PhantombaseError as error:
        wrong_usage = isinstance(error, UsageError)
        _fail(error, str(error), EXIT_USAGE if wrong_usage else EXIT_FAILED, as_json)
    except Exception as error:
        if (found := misuse(error)) is not None:
            _misused(error, found, as_json)
        hint = f"Set {TRACEBACK}=1 to see the traceback, and report it."
        _fail(error, f"internal error: {type(error).__name__}: {error}. {hint}", EXIT_BUG, as_json)
    if code == EXIT_INTERRUPTED:
        _fail(KeyboardInterrupt(), _INTERRUPTED, EXIT_INTERRUPTED, as_json)
    sys.exit(code if isinstance(code, int) else 0)


def misuse(error: Any) -> str | None:
    """What is wrong with a command line that could not be parsed, in one line; None: the error is another one."""
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # of click, or of the click within typer
        return " ".join(error.format_message().split())
    return None


def _misused(error: Any, words: str, as_json: bool) -> NoReturn:
    """Ends a command line that could not be parsed; one without a command shows the help instead."""
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
    return {"error": message, "type": type(error).__name__, "exit_code": code, **parts}


def one_line(text: str) -> str:
    """The text without line ends and terminal control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split("\n")))
