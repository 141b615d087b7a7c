"""`compactor-daemon` on a storage that takes its time, so that a signal finds the process at any step.

    python -m tests.support.slow_compactor compact TABLE --executor local

Says `ready` and begins when it is given a line; before each call of the storage it waits about `PACE_S` seconds.
With `NO_LOCKS=1` in its environment no lock excludes anybody: storage alone decides."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from phantombase.compactor_daemon.cli.main import main
from phantombase.timeline.storage.local import LocalStorage

PACE_S = 0.008
_SLOW = ("list", "find", "read", "open_input", "open_output", "put_if_absent", "place", "overwrite", "delete")


def slowed(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method after a wait."""

    def call(*arguments: Any, **named: Any) -> Any:
        time.sleep(PACE_S * random.uniform(0.5, 1.5))
        return method(*arguments, **named)

    return call


if __name__ == "__main__":
    for name in _SLOW:
        setattr(LocalStorage, name, slowed(getattr(LocalStorage, name)))
    if os.environ.get("NO_LOCKS") == "1":
        setattr(LocalStorage, "hold", lambda *_: nullcontext(lambda: True))  # noqa: B010
    print("ready", flush=True)
    sys.stdin.readline()
    main()
