"""Lists a table's partitions lazily, in order, a few ahead: nothing behind where the planner stops is ever listed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from timeline.errors import MissingFileError
from timeline.layout import HOODIE
from timeline.prefetch import AHEAD
from timeline.storage import Entry, Storage

_PARTITION_MARK = ".hoodie_partition_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A folder, a partition or above some, in which file groups wait for a plan: those whose newest slice is older than
    `since`, an instant time; None: all of them."""

    folder: str
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedPartition:
    """A partition that was come upon, and the entries of its folder."""

    waiting: Waiting
    entries: list[Entry]


class PartitionWalk:
    """Partitions at or under some folders, depth first, folders in the order given and names in theirs.

    A folder that is gone is a partition without entries. `rest`: what was not looked into, in order.
    """

    def __init__(self, storage: Storage, folders: Iterable[Waiting], ahead: int = AHEAD) -> None:
        self._storage = storage
        self._ahead = ahead
        self._todo = deque(folders)

    @property
    def rest(self) -> tuple[Waiting, ...]:
        """Folders still to be looked into."""
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
                    if entries is None or is_partition(entries):
                        yield WalkedPartition(waiting=here, entries=entries or [])
                    else:
                        below = [Waiting(folder=f, since=here.since) for f in subfolders(here.folder, entries)]
                        self._todo.extendleft(reversed(below))
            finally:
                for listing in listings.values():
                    listing.cancel()


def listed_if_there(storage: Storage, folder: str) -> list[Entry] | None:
    """The entries of a folder; None where it is gone."""
    try:
        return storage.list(folder)
    except MissingFileError:
        return None


def first_and_last(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Of each folder the entry that waits longest, and the one for what was written last; those between are in both."""
    first: dict[str, Waiting] = {}
    last: dict[str, Waiting] = {}
    for one in waiting:
        first.setdefault(one.folder, one)
        last.pop(one.folder, None)
        last[one.folder] = one
    return list(dict.fromkeys([*first.values(), *last.values()]))


def is_partition(entries: Iterable[Entry]) -> bool:
    """Whether a folder with these entries is a partition."""
    return any(e.name.startswith(_PARTITION_MARK) and not e.is_folder for e in entries)


def subfolders(folder: str, entries: Iterable[Entry]) -> list[str]:
    """Paths of the folders in a folder which may be partitions or hold some: all but Hudi's own, as Hudi looks."""
    names = [e.name for e in entries if e.is_folder and e.name != HOODIE]
    return [f"{folder}/{name}" if folder else name for name in names]
