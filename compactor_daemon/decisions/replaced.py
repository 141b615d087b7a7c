"""Decided files of file groups that were replaced since: they get no final name, and the commit does not name them.

No reader reads a replaced file group. But a cleaner visits it only once: a file placed after that would stay, and its
rows would be visible again once the replace commit is archived.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.view.view import GroupKey

from ..records.fate import Go


def without_groups(go: Go, gone: Collection[GroupKey], layout: Layout) -> Go:
    """The decision without the files of these file groups (pure). Their ledgers stay in it."""
    kept = tuple(p for p in go.placements if placed_group(p.final) not in gone)
    if len(kept) == len(go.placements):
        return go
    finals = {p.final for p in kept}
    metadata = decode_commit(go.content, go.completed_path)
    stats = {
        partition: left
        for partition, of in metadata.partition_to_write_stats.items()
        if (left := tuple(s for s in of if s.path in finals))
    }
    content = encode_commit(replace(metadata, partition_to_write_stats=stats), layout.encoding)
    return replace(go, placements=kept, content=content)


def placed_group(final: str) -> GroupKey:
    """The file group of the file with this path. MalformedError: not a data file."""
    partition, _, text = final.rpartition("/")
    name = parse_data_file(text)
    if name is None:
        raise MalformedError("not the name of a data file", path=final)
    return partition, name.file_id
