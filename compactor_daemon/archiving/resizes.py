"""What archiving must leave on the timeline of a table with consistent-hashing buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from phantombase.timeline.archiving.choice import Border
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.bucket_resize import HASHING_METADATA, is_consistently_hashed

_METADATA, _COMMIT = ".hashing_meta", ".commit"


def resize_borders(table: Table, timeline: Timeline) -> tuple[Border, ...]:
    """The borders of `archiving.choice` that hold for such a table; none for others."""
    if not is_consistently_hashed(table.storage):
        return ()
    return (*_unmarked(table, timeline), *_left(table, timeline))


def _unmarked(table: Table, timeline: Timeline) -> Iterator[Border]:
    """Resizes of which Hudi has not yet noted, beside their hashing metadata, that they completed.

    Its next writer does so. Until then the replace commit says it.
    """
    files = [path for path, _ in table.storage.list_below(HASHING_METADATA)]
    noted = {path.removesuffix(_COMMIT) for path in files if path.endswith(_COMMIT)}
    for path in sorted(files):
        stem = path.removesuffix(_METADATA)
        time = stem.rpartition("/")[2]
        if path != stem and stem not in noted and timeline.find(time, "replacecommit") is not None:
            yield Border(time=time, why=f"Hudi's next write has to note that resize {time} of buckets is done")


def _left(table: Table, timeline: Timeline) -> Iterator[Border]:
    """Log files that are named after a resize that was rolled back, which Hudi leaves: once the timeline begins behind
    it, it counts as completed, and their rows are there twice."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for partition in table.partitions():
        for entry in table.storage.list(partition):
            name = None if entry.is_folder else parse_data_file(entry.name)
            if name is not None and not timeline.is_committed(name.instant):
                found[name.instant].append(join(partition, entry.name))
    for time, paths in sorted(found.items()):
        if time not in timeline.pending_writes:
            before = max((t for t in timeline.completed_writes if t < time), default="")
            why = f"instant {time} is gone and has files, as {paths[0]}: clear them away by hand"
            yield Border(time=before, why=why)
