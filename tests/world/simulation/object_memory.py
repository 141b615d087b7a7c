"""Storages in memory with the contract of an object store, and with that of HDFS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import md5
from typing import IO

from phantombase.timeline.errors import StorageError
from phantombase.timeline.locks.section import Section
from tests.world.simulation.memory_storage import File, MemoryStorage
from tests.world.simulation.world import Host, WorldLock


class ObjectMemory(MemoryStorage):
    """An object store: times are whole seconds, a folder is a part of names, an output appears when it is closed. Tags
    are those of S3 without KMS: they come back with the same content."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(lambda: clock() // 1000 * 1000)

    @property
    def is_file_system(self) -> bool:
        """See `Storage`."""
        return False

    def _new(self, name: str, data: bytes) -> File:
        found = super()._new(name, data)
        return replace(found, entry=replace(found.entry, tag=md5(data, usedforsecurity=False).hexdigest()))

    def make_folder(self, folder: str) -> None:
        """Nothing: a folder is there with its first object."""

    def delete(self, path: str) -> None:
        """See `Storage`; folders that are empty then have never been."""
        super().delete(path)
        while (path := path.rpartition("/")[0]) and self._node(path) == {}:
            super().delete(path)

    def open_output(self, path: str) -> IO[bytes]:
        """See `Storage`."""
        if self.find(path) is not None:
            raise StorageError("the name is taken", path=path)
        return self._output(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Refused, as by an object store."""
        raise StorageError("an object store gives its objects their times itself", path=path)


class MovingMemory(MemoryStorage):
    """A file system without hard links, as HDFS: what is placed is no more where it was staged."""

    def place(self, source: str, target: str) -> bool:
        """See `Storage`."""
        if not super().place(source, target):
            return False
        self.delete(source)
        return True


# The table lock of a simulated world as a lease, which its holder may lose while it is awake.


class LeaseLock(WorldLock):
    """Sections ask whether they still have it, as the real ones. See `WorldLock`, whose sections ask for nothing."""

    def lose(self, host: Host) -> None:
        """The process in a section loses it there; another may enter."""
        for actor in self._inside:
            if actor.host is host:
                self._inside[actor] = -1
                if self._holder is actor:
                    self._holder = None

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock`."""
        me = self._world.me
        with super().hold(purpose):
            yield Section(purpose=purpose, lock="a lease", is_held=lambda: not self.is_lost(me))
