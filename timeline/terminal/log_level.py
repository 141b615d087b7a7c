"""The options that every command has: `-v`, `--log-level`, `--config`; and the level that was chosen."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from typing import Annotated, Any

import typer

from .config_option import CONFIG


class LogLevel(Enum):
    """The least important log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """As the standard library counts levels."""
        return int(logging.getLevelNamesMapping()[self.name])


_chosen: ContextVar[LogLevel | None] = ContextVar("log_level", default=None)

_OPTIONS = {
    "log_level": (
        LogLevel | None,
        typer.Option(
            "--log-level", help="log lines of this level and worse: debug, info, warning, error", metavar="LEVEL"
        ),
    ),
    "verbose": (bool, typer.Option("--verbose", "-v", help="the same as --log-level debug")),
    "config": (str | None, CONFIG),
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_DEFAULTS: dict[str, Any] = {"log_level": None, "verbose": False, "config": None}


def chosen_level() -> LogLevel | None:
    """The level of the command that runs; None: none was chosen."""
    return _chosen.get()


def with_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--log-level` and `-v`, which `configure_logging` obeys, and with `--config`."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    added = [
        inspect.Parameter(name, _KEYWORD, default=_DEFAULTS[name], annotation=Annotated[kind, mark])
        for name, (kind, mark) in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def run(*, log_level: LogLevel | None = None, verbose: bool = False, **given: Any) -> Any:
        given.pop("config", None)  # its callback has read it
        token = _chosen.set(LogLevel.DEBUG if verbose else log_level)
        try:
            return command(**given)
        finally:
            _chosen.reset(token)

    params = [*(p.replace(kind=_KEYWORD) for p in own), *added]
    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in params}
    return run
