"""The archive of a table's version: version 6 an archive log, later a file of the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..format.instant import Instant
from ..format.table_config import TableConfig
from ..instants.state_files import StateFiles
from ..instants.timeline import Timeline
from ..storage.contract import Storage
from .archive_log import in_logs_already, write_archive_log
from .history import add_to_history, archived_already, make_current


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The archive of one table. `check` is called before each step: it raises if the table lock is lost.

    `moment`: converts a modification time to an instant time.
    """

    storage: Storage
    config: TableConfig
    moment: Callable[[int], str]
    check: Callable[[], None]

    def held_already(self, active: Sequence[Instant]) -> tuple[Instant, ...]:
        """Those of the active completed instants that it holds too: a run that wrote them died before it removed them.

        MalformedError, UnknownStateError: it cannot be read.
        """
        if self.config.layout.has_completion_times:
            make_current(self.storage, self.config, self.check)
        return self.seen_already(active)

    def seen_already(self, active: Sequence[Instant]) -> tuple[Instant, ...]:
        """The same, and changes nothing, as a dry run needs it."""
        if not self.config.layout.has_completion_times:
            return in_logs_already(self.storage, self.config, active)
        return archived_already(self.storage, self.config, active)

    def write(self, instants: Sequence[Instant], timeline: Timeline, files: StateFiles) -> str:
        """Adds completed instants, which it does not hold; returns the new file. ConflictError: see the two ways."""
        if not self.config.layout.has_completion_times:
            return write_archive_log(self.storage, self.config, instants, files, self.moment, self.check)
        return add_to_history(self.storage, self.config, instants, files, timeline.completed_at, self.check)
