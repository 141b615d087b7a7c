"""A storage that asks before each change: `GuardedStorage`.

A section under the table lock changes the table through it; its question is whether the lock is still held
(`table.exclusive`). Reads cost nothing more. The question is asked once for each call, so files that are removed
together by `delete_all` cost one. A lock file and a lease answer from memory; ZooKeeper's lock makes two requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .contract import Storage
from .forwarding import ForwardingStorage, PrefixStorage
from .snapshot import without_snapshot


@dataclass(frozen=True, slots=True)
class GuardedStorage(ForwardingStorage):
    """`check`: raises if nothing may be changed. An output is asked about once: it is shown by another call."""

    storage: Storage
    check: Callable[[], None]

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        """Another process receives the storage itself."""
        return unguarded, (self.storage,)

    def _changing(self, *paths: str, adds: bool = False) -> None:
        self.check()


def unguarded(storage: Storage) -> Storage:
    """The same place without a guard, and without a snapshot."""
    storage = without_snapshot(storage)
    if isinstance(storage, GuardedStorage):
        return storage.storage
    if isinstance(storage, PrefixStorage):
        return replace(storage, storage=unguarded(storage.storage))
    return storage


def check_guard(storage: Storage) -> None:
    """Asks the guard of a storage, if there is one: after a change that another process may have preceded."""
    if isinstance(storage, GuardedStorage):
        storage.check()
    elif isinstance(storage, ForwardingStorage):
        check_guard(storage.storage)
