"""The table lock of a simulated world as a lease, which its holder may lose while it is awake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from phantombase.timeline.locks.section import Section
from tests.world.simulation.world import Host, WorldLock


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
