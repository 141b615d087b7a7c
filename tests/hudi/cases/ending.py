"""No compaction stays pending for ever: each can be executed, or taken back."""

from __future__ import annotations

from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.hudi.cases.shared_table import SharedTable

__all__ = ["end_pending"]


def end_pending(table: SharedTable) -> None:
    """Runs `compact`, and takes back what it leaves; fails where that is refused, too."""
    refused: PhantombaseError | None = None
    try:
        table.we_compact()
    except PhantombaseError as error:
        refused = error
    for instant in table.pending():
        try:
            unschedule(table.open(), instant, ProcessLock(str(table.path)))
        except PhantombaseError as error:
            error.add_note(f"and compacting: {refused}")
            raise
    assert table.we_compact() == []
