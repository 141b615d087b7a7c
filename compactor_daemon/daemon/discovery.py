"""Finds the tables of a lake while a daemon runs, and gives it those that it is to serve.

A round lists the tables, joins the fleet, and assigns this daemon's part. Rounds come every poll, and at once when a
daemon comes or goes. A listing that fails leaves the tables as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger

from ..lake.lanes import Lane, Lanes
from ..lake.listing import Listing
from ..lake.members import Members
from ..lake.shares import serves
from .loop import Assigned, Daemon
from .served_table import Served

_log = get_logger()


@dataclass(slots=True, kw_only=True)
class Discovery:
    """See the module. `open_late`: makes the served table of a path; `members` None: this daemon is alone."""

    listing: Listing
    lanes: Lanes
    daemon: Daemon
    open_late: Callable[[str, Lane], Served]
    members: Members | None = None
    trouble: str | None = None
    """Why the last listing failed."""
    _tables: dict[str, Assigned] = field(default_factory=dict)
    _due: threading.Event = field(default_factory=threading.Event)
    _ended: bool = False

    def round(self) -> None:
        """One round. Errors of the tree: the tables cannot be listed."""
        paths = {name: path for name, path in self.listing.tables().items() if self.lanes.takes(name)}
        members: frozenset[str] = frozenset()
        if self.members is not None:
            members = self.members.look(
                {
                    "tables": len(self._tables),
                    "of_tables": len(paths),
                    "troubled": len(self.daemon.summary.problems),
                    "lanes": [asdict(one) for one in self.daemon.lanes],
                }
            )
        found = {}
        for name, path in paths.items():
            lane = self.lanes.of(name)
            if self.members is None or serves(self.members.me, members, name, lane.daemons):
                found[path] = self._tables.get(path) or Assigned(served=self.open_late(path, lane), lane=lane)
        if found.keys() != self._tables.keys():
            come, gone = len(found.keys() - self._tables.keys()), len(self._tables.keys() - found.keys())
            _log.info("tables", serving=len(found), of=len(paths), come=come, gone=gone, daemons=max(1, len(members)))
        self._tables = found
        self.daemon.assign(dict(found), max(1, len(members)))

    def look_now(self) -> None:
        """The members have changed."""
        self._due.set()

    @contextmanager
    def running(self, every_s: float) -> Iterator[None]:
        """Rounds in a thread, from entry to exit. The first one has been made."""
        thread = threading.Thread(target=self._run, args=(every_s,), name="discovery", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            self._due.set()
            thread.join()

    def _run(self, every_s: float) -> None:
        while True:
            self._due.wait(every_s)
            self._due.clear()
            if self._ended:
                return
            try:
                self.round()
            except PhantombaseError as error:
                if self.trouble != str(error):
                    _log.warning("tables_not_listed", listing=self.listing.shown, error=str(error))
                self.trouble = str(error)
            except Exception as error:
                self.trouble = f"internal error: {error}"
                _log.exception("internal_error")
            else:
                self.trouble = None
