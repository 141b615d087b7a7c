"""Removes archived instants from the active timeline.

Files of earlier states go first, so that no completed instant leaves a pending one behind; then completed files, oldest
first, one after the other: a reader sees no gap between the archive and the active timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..instants.state_files import StateFile
from ..storage.contract import Storage


def remove_instants(storage: Storage, files: Sequence[StateFile], check: Callable[[], None]) -> None:
    """Removes these files of archived instants. `check` is called before each step: it raises if the lock is lost.

    A file that is gone counts as removed. After an error the next run removes the rest.
    """
    check()
    storage.delete_all([f.path for f in files if not f.instant.completed])
    for one in sorted((f for f in files if f.instant.completed), key=lambda f: f.instant.requested_time):
        check()
        storage.delete(one.path)
