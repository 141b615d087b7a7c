"""Lists a table's partitions lazily, in order, a few ahead: partitions after the planner's stop are never listed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..format.table_config import TableConfig
from ..prefetch import AHEAD
from ..storage.contract import Entry, Storage, listed_if_there
from ..view.partition_folders import is_partition, subfolders


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A folder (a partition, or above partitions) in which file groups wait for a plan: groups whose newest slice is
    older than `since`, an instant time; None: all groups."""

    folder: str
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedPartition:
    """A partition found by the walk, and the entries of its folder."""

    waiting: Waiting
    entries: list[Entry]


class PartitionWalk:
    """Partitions at or under some folders, depth first; folders in the order given, names in alphabetical order.

    A missing folder counts as a partition without entries. `rest`: folders not visited yet, in order.
    """

    def __init__(self, storage: Storage, config: TableConfig, folders: Iterable[Waiting], ahead: int = AHEAD) -> None:
        self._storage, self._config = storage, config
        self._ahead = ahead
        self._todo = deque(folders)

    @property
    def rest(self) -> tuple[Waiting, ...]:
        """Folders not visited yet."""
        return tuple(self._todo)

    def __iter__(self) -> Iterator[WalkedPartition]:
        listings: dict[Waiting, Future[list[Entry] | None]] = {}
        with ThreadPoolExecutor(self._ahead) as pool:
            try:
                while self._todo:
                    for number in range(min(self._ahead, len(self._todo))):
                        if (ahead := self._todo[number]) not in listings:
                            listings[ahead] = pool.submit(listed_if_there, self._storage, ahead.folder)
                    here = self._todo.popleft()
                    entries = listings.pop(here).result()
                    if entries is None or is_partition(entries, self._config):
                        yield WalkedPartition(waiting=here, entries=entries or [])
                    else:
                        below = [Waiting(folder=f, since=here.since) for f in subfolders(here.folder, entries)]
                        self._todo.extendleft(reversed(below))
            finally:
                for listing in listings.values():
                    listing.cancel()


def first_and_last(waiting: Iterable[Waiting]) -> list[Waiting]:
    """For each folder the entry that waits longest, and the one for the last writes; entries in between add nothing."""
    first: dict[str, Waiting] = {}
    last: dict[str, Waiting] = {}
    for one in waiting:
        first.setdefault(one.folder, one)
        last.pop(one.folder, None)
        last[one.folder] = one
    return list(dict.fromkeys([*first.values(), *last.values()]))
