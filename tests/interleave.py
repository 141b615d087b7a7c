"""Threads of one process that hand over to each other at storage calls only, in an order a seed decides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Self

import pytest

_PACKAGES = ("timeline.", "compactor_daemon.", "writer_hooks.")


class SerialPool:
    """A pool that does everything at once in the caller's thread, so that storage calls come in one order."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, do: Callable[..., Any], *args: Any) -> Iterator[Any]:
        """See `concurrent.futures.Executor.map`."""
        return iter([do(*one) for one in zip(*args, strict=False)])

    def submit(self, do: Callable[..., Any], *args: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`. A death is no result: it goes up at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(do(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None:
        """Nothing runs."""


def serial_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the threads out of everything that is imported by now."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES) and hasattr(module, "ThreadPoolExecutor"):
            monkeypatch.setattr(module, "ThreadPoolExecutor", SerialPool)
