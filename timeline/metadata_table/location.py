"""The file slices of the metadata table that a delta commit appends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import MalformedError, MissingFileError
from ..format.file_name import BaseFileName, LogFileName
from ..format.layout import Slicing
from ..instants.timeline import Timeline
from ..storage.contract import Entry, listed_if_there
from ..table.table import BUILD_AGAIN, Table


@contextmanager
def advising_rebuild(metadata: Table) -> Iterator[None]:
    """Adds the full path and the remedy to a MalformedError or MissingFileError of the metadata table's own timeline.
    The remedy for a plan of the data table does not apply: a restore would undo writes without need."""
    try:
        yield
    except (MalformedError, MissingFileError) as error:
        raise error.below(metadata.storage.base_path).advising(BUILD_AGAIN) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSlice:
    """The latest file slice of a file group. `base_file`: its name, "" if it has none; `logs`: in merge order."""

    partition: str
    file_id: str
    base_instant: str
    base_file: str
    logs: tuple[LogFileName, ...]


def open_slices(metadata: Table, partition: str, timeline: Timeline) -> list[OpenSlice]:
    """The latest slice of each file group, in the order of their indexes (file ids end in the index).
    If a pending compaction contains the file group, new log files belong to the slice that this compaction opens
    (version 6). It contains the groups that had logs when it was planned. Other groups get no base file from it, so a
    new slice there would hide the older one."""
    names = list(_names(listed_if_there(metadata.storage, partition) or ()))
    with advising_rebuild(metadata):
        planned = metadata.facts.pending_plans(timeline)
    found = []
    for file_id in sorted({n.file_id for n in names}):
        mine = [n for n in names if n.file_id == file_id]
        bases = [n for n in mine if isinstance(n, BaseFileName)]
        logs = [n for n in mine if isinstance(n, LogFileName)]
        by_name = metadata.layout.slicing is Slicing.BY_BASE_INSTANT
        pending = planned.get((partition, file_id), "")
        instants = [pending, *(n.instant for n in bases), *(n.instant for n in logs if by_name)]
        base_instant = max(instants) or min(n.instant for n in logs)
        base = next((str(n) for n in bases if n.instant == base_instant), "")
        found.append(
            OpenSlice(
                partition=partition,
                file_id=file_id,
                base_instant=base_instant,
                base_file=base,
                logs=tuple(sorted((n for n in logs if n.instant == base_instant), key=lambda n: n.sort_key)),
            )
        )
    if not found:
        raise MalformedError(
            "a partition of the metadata table has no file groups",
            path=f"{metadata.storage.base_path}/{partition}",
            todo=BUILD_AGAIN,
        )
    return found


def _names(entries: Sequence[Entry]) -> Iterator[BaseFileName | LogFileName]:
    for entry in entries:
        if entry.is_folder or entry.name.endswith(".crc") or entry.name.startswith(".hoodie"):
            continue
        yield LogFileName.parse(entry.name) if entry.name.startswith(".") else BaseFileName.parse(entry.name)
