"""The log of these packages: events with fields, in Python's `logging` under the name `phantombase`.

Nothing is printed unless the user of the library configures `logging`; commands do (`terminal.console`). structlog's
own configuration, which belongs to the user, is neither read nor changed. Only `reachable.waiting` writes on a
terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from typing import Any

NAME = "phantombase"
"""The logger, and the field of its records that holds the event as a dictionary."""

logging.getLogger(NAME).addHandler(logging.NullHandler())


class _Late:
    """Creates the logger at the first event that counts: importing structlog takes a tenth of a command's start."""

    def __getattr__(self, name: str) -> Any:
        level = logging.getLevelNamesMapping().get(name.upper())
        if level is not None and not logging.getLogger(NAME).isEnabledFor(level):
            return _left_out
        return getattr(_logger(), name)


def _left_out(event: str, **fields: Any) -> None:
    """An event of a level that is not shown."""


def get_logger() -> Any:
    """A logger of structlog: `info("written", rows=3)` is a record with the message `written rows=3`."""
    return _Late()


@contextmanager
def bound(**fields: str | int) -> Iterator[None]:
    """Adds fields to each event of the body."""
    from structlog.contextvars import bound_contextvars  # late, as above

    with bound_contextvars(**fields):
        yield


@cache
def _logger() -> Any:
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(NAME),
        processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _to_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )


def _to_record(logger: Any, method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments of the call of `logging`."""
    error = event.pop("exc_info", None)
    fields = dict(event)
    name = fields.pop("event", "")
    text = " ".join([str(name), *(f"{key}={value}" for key, value in fields.items())])
    return (text,), {"extra": {NAME: {"event": name, **fields}}, "exc_info": error}
