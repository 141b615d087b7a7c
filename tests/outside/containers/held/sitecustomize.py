"""Holds compactions half-way in a container that has this folder on its PYTHONPATH: while the file `HOLD` exists.

A file slice is finished, its `.ok` is there, and nothing happens: a moment for something to happen to the daemon."""

import os
import time
from collections.abc import Callable
from typing import Any

from phantombase.timeline.storage.local import LocalStorage

HOLD = "/tables/hold"
_HOLD_MAX_S = 120.0


def _held(put: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, path: str, *rest: Any) -> Any:
        done = put(self, path, *rest)
        until = time.monotonic() + _HOLD_MAX_S
        while path.endswith(".ok") and os.path.exists(HOLD) and time.monotonic() < until:
            time.sleep(0.05)
        return done

    return call


setattr(LocalStorage, "put_if_absent", _held(LocalStorage.put_if_absent))  # noqa: B010
