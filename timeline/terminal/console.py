"""Terminal code that all commands share: output, progress, logging.

The result is written to stdout (one JSON document with `--json`), all other output to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.text import Text

from ..event_log import NAME, get_logger
from .settings import CHOSEN

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_PIPE_COLUMNS = 1000
_LOG_INTERVAL_S = 10.0
Data = TypeVar("Data", bound=Mapping[str, Any])


# --- results -----------------------------------------------------------------------------------------------------


def emit(data: Data, json_flag: bool, render: Callable[[Data], Iterable[RenderableType]]) -> None:
    """Prints the result on stdout: `data` as one JSON document, or as rendered by `render`."""
    if json_flag:
        print(json.dumps(data, indent=2), flush=True)
        return
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_COLUMNS  # in a pipe each line is a row, so that grep and cut work; nothing is shortened
    for item in render(data):
        # In a pipe an error is one line of any length: so a log does not split it.
        console.print(item, soft_wrap=isinstance(item, Text) and _is_line(item, console))


# --- progress and logs -------------------------------------------------------------------------------------------


class ShownProgress(Protocol):
    """Receives the progress of a long operation."""

    def advance(self, done: int = 0, **numbers: int) -> None:
        """Adds `done` finished steps; `numbers` are other counts so far (`rows=120_000`)."""
        ...


@contextmanager
def progress(total: int, description: str, *, clock: Callable[[], float] = time.monotonic) -> Iterator[ShownProgress]:
    """Progress on stderr: a bar on a terminal, else periodic log lines; quick operations log nothing."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield _LoggedProgress(total, description, clock)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # late: few commands need it
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as bar:
        yield _BarProgress(bar, total, description)


class Report(Protocol):
    """Shows the progress of an operation: `done` of `total` steps; `numbers` are other counts so far."""

    def __call__(self, description: str, done: int, total: int, **numbers: int) -> None:
        """Reports a change; any number of calls is allowed."""
        ...


@contextmanager
def reporting() -> Iterator[Report]:
    """Progress of an operation that names its own steps: one bar after the other, a new one if the count restarts."""
    with ExitStack() as shown:
        at, bar = ("", 0, 0), None

        def report(description: str, done: int, total: int, **numbers: int) -> None:
            nonlocal at, bar
            if bar is None or at[:2] != (description, total) or done < at[2]:
                shown.close()
                bar, at = shown.enter_context(progress(total, description)), (description, total, 0)
            bar.advance(done - at[2], **numbers)
            at = (description, total, done)

        yield report


@contextmanager
def steps_of(verb: str) -> Iterator[Callable[[str, int, int], None]]:
    """Progress of work on instants: takes the instant, the finished and all steps, and shows `clustering INSTANT`."""
    with reporting() as report:
        yield lambda instant, done, total: report(f"{verb} {instant}", done, total)


class _BarProgress:
    def __init__(self, bar: RichProgress, total: int, description: str) -> None:
        self._bar = bar
        self._task = bar.add_task(description, total=total, numbers="")

    def advance(self, done: int = 0, **numbers: int) -> None:
        shown = "  ".join(f"{value:,} {name}" for name, value in numbers.items())
        self._bar.update(self._task, advance=done, numbers=shown)


class _LoggedProgress:
    def __init__(self, total: int, description: str, clock: Callable[[], float]) -> None:
        self._log = get_logger().bind(task=description, total=total)
        self._clock = clock
        self._started = self._said = clock()
        self._done = 0

    def advance(self, done: int = 0, **numbers: int) -> None:
        self._done += done
        now = self._clock()
        if now - self._said >= _LOG_INTERVAL_S:
            self._said = now
            self._log.info("progress", done=self._done, seconds=round(now - self._started, 1), **numbers)


def configure_logging(json: bool, *, quiet: bool = True) -> None:
    """Logs go to stderr, as text or as one JSON object per line; no other code configures logging. `--log-level` and
    `-v` choose the level; libraries use it too, but never below info. The default is info; on a terminal it is warning,
    where bars and results are enough, unless `quiet` is False (daemons)."""
    usual = logging.WARNING if quiet and sys.stderr.isatty() else logging.INFO
    chosen = CHOSEN.get()
    level = chosen.number if chosen is not None else usual
    logging.getLogger(NAME).setLevel(level)
    root = logging.getLogger()
    root.setLevel(max(level, logging.INFO) if chosen is not None else logging.WARNING)
    for handler in [one for one in root.handlers if isinstance(one, _Printed)]:
        root.removeHandler(handler)
    root.addHandler(_Printed(json, colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ))


class _Printed(logging.Handler):
    """Prints events, and the records of libraries (kazoo, py4j) in the same form."""

    def __init__(self, json: bool, *, colors: bool) -> None:
        super().__init__()
        self._json, self._colors = json, colors

    @cached_property
    def _steps(self) -> list[Any]:
        """The processors from an event to its line; made for the first event, since many commands log nothing."""
        from structlog import dev, processors

        if self._json:
            return [processors.format_exc_info, processors.JSONRenderer()]
        return [dev.ConsoleRenderer(colors=self._colors, exception_formatter=dev.plain_traceback)]

    def emit(self, record: logging.LogRecord) -> None:
        library = {"event": record.getMessage(), "logger": record.name}
        event: Any = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **getattr(record, NAME, library),
        }
        if record.exc_info:
            event["exc_info"] = record.exc_info
        for step in self._steps:
            event = step(None, record.levelname.lower(), event)
        # Looked up for each line: stderr may have been replaced since the last one.
        print(event, file=sys.stderr, flush=True)


def _is_line(text: Text, console: Console) -> bool:
    """Whether it is written on one line, however long: what is to be copied, and in a file what a terminal crops."""
    return bool(text.no_wrap) and (text.overflow == "ignore" or not console.is_terminal)
