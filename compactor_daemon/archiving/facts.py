"""Reads what the choice of instants to archive needs to know about a table. What cannot be read is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phantombase.timeline.archiving.choice import Border, Facts
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.clean_border import retained_by
from phantombase.timeline.instants.state_files import StateFiles
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.services.due import blocked_by
from phantombase.timeline.pins.pin import all_pins, live_pins
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.column_history import newest_history
from phantombase.timeline.table.table import Table

from ..attempt.unfinished import unfinished_compactions
from .resizes import resize_borders


def gather_facts(table: Table, timeline: Timeline, files: StateFiles, *, dry_run: bool) -> Facts:
    """All facts but `replaced_there`, see `replaced_files_there`.

    `dry_run`: puts nothing on storage; expired pins count then. MalformedError: an unreadable pin, clean or metadata
    table, which may forbid anything.
    """
    cleans = [i for i in timeline.instants if i.action == "clean" and i.completed]
    held = None
    if not table.layout.has_completion_times:
        held = min((pin.holds for pin in (all_pins if dry_run else live_pins)(table.storage)), default=None)
    metadata = open_metadata_table(table).load_timeline() if table.config.metadata_partitions else None
    return Facts(
        cleaned_to=retained_by(table.files, cleans[-1]) if cleans else None,
        metadata=metadata is not None,
        metadata_compacted=None if metadata is None else _last_compaction(metadata),
        metadata_blocked=None if metadata is None else blocked_by(metadata),
        unfinished=frozenset(unfinished_compactions(table, timeline)),
        left_out={time: max(groups.values()) for time, groups in table.facts.left_out(timeline).items()},
        held=held,
        doubled=files.doubled(),
        written=files.written(timeline.instants, table.times.moment),
        begun={} if table.layout.has_completion_times else files.begun(timeline.instants, table.times.moment),
        borders=(*resize_borders(table, timeline), *_history_border(table, timeline)),
    )


def _history_border(table: Table, timeline: Timeline) -> Iterator[Border]:
    """The write with the history of columns that evolve on read: Hudi finds renamed ones only while it is active."""
    if (time := newest_history(table.storage, timeline)) is not None:
        yield Border(time=time, why=f"write {time} has the newest history of the columns")


def _last_compaction(timeline: Timeline) -> str | None:
    return max((i.requested_time for i in timeline.completed if i.action == "commit"), default=None)


def replaced_files_there(table: Table, replacing: Iterable[Instant]) -> dict[str, str]:
    """Times of those replace commits that replaced a file group of which a file is still there; the path of one."""
    found: dict[str, str] = {}
    names: dict[str, dict[str, str]] = {}
    for instant in replacing:
        for partition, ids in (table.commit_metadata(instant).partition_to_replace_file_ids or {}).items():
            if partition not in names:
                names[partition] = _files(table, partition)
            if there := sorted(names[partition].keys() & set(ids)):
                found.setdefault(instant.requested_time, join(partition, names[partition][there[0]]))
    return found


def _files(table: Table, partition: str) -> dict[str, str]:
    """A file of each file group of which a partition holds files, the last by name; none if it is gone."""
    try:
        parsed = [(e.name, parse_data_file(e.name)) for e in table.storage.list(partition) if not e.is_folder]
    except MissingFileError:
        return {}
    return {name.file_id: text for text, name in sorted(parsed, key=lambda p: p[0]) if name is not None}
