"""What the timeline service knows of a table."""

from __future__ import annotations

from pathlib import Path

from phantombase.timeline.service.states.loading import load_state
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import FileSlice
from tests.support.compaction_steps import open_table


def served_files(path: Path, storage: Storage | None = None) -> list[str]:
    """The files of the newest slices, in the order of the text."""
    state = load_state(open_table(path, storage))
    slices: list[FileSlice] = [
        s for files in state.partitions.values() for group in files.live for s in group.slices[-1:]
    ]
    return sorted(repr(f.name) for one in slices for f in (one.base, *one.logs) if f is not None)
