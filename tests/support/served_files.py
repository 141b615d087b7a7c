"""What the timeline service knows of a table."""

from __future__ import annotations

from pathlib import Path

from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.service.states.loading import load_state
from phantombase.timeline.service.states.synchronisation import counted, digest
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice
from tests.support.compaction_steps import open_table


def served_files(path: Path, storage: Storage | None = None) -> list[str]:
    """The files of the newest slices, in the order of the text."""
    state = load_state(open_table(path, storage))
    slices: list[FileSlice] = [
        s for files in state.partitions.values() for group in files.live for s in group.slices[-1:]
    ]
    return sorted(repr(f.name) for one in slices for f in (one.base, *one.logs) if f is not None)


LATEST = f"{PREFIX}slices/partition/latest/"


def known(table: Path) -> dict[str, str]:
    """What a client sends whose view is made now."""
    instants = counted(Table.open(str(table)).load_timeline())
    return {"lastinstantts": instants[-1].requested_time, "timelinehash": digest(instants), "basepath": str(table)}


def take_back_last(table: Path) -> dict[str, bytes]:
    """Removes the newest delta commit's completed file; its name and content."""
    last = max((table / ".hoodie/timeline").glob("*.deltacommit"))
    content = last.read_bytes()
    last.unlink()
    return {str(last): content}


def put(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        Path(name).write_bytes(content)
