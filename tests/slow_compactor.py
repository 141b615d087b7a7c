"""`compactor-daemon` on a storage that takes its time, so that a signal finds the process at any step.

    python -m tests.slow_compactor compact TABLE --executor local

Says `ready` when it begins; before each call of the storage it waits `PACE_S` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from compactor_daemon.cli import main
from timeline.local_storage import LocalStorage

PACE_S = 0.008
_SLOW = ("list", "find", "read", "open_input", "open_output", "put_if_absent", "place", "overwrite", "delete")


def slowed(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method after a wait."""

    def call(*arguments: Any) -> Any:
        time.sleep(PACE_S)
        return method(*arguments)

    return call


if __name__ == "__main__":
    for name in _SLOW:
        setattr(LocalStorage, name, slowed(getattr(LocalStorage, name)))
    print("ready", flush=True)
    main()
