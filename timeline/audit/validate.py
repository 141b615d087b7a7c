"""Completed writes, the metadata table and the times of version 6, compared with what is on storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..instants.timeline import commits_since_compaction
from ..metadata_table.record_index import missing_entries
from ..metadata_table.validate import Validation, damaged_partitions
from ..metadata_table.validate import validate as compare_metadata
from ..shown import Shown
from ..table.table import Snapshot, Table, from_one_snapshot, open_metadata_table
from ..view.grouping import counted_by_name
from ..view.view import TableView
from ..view.witness import Flaw
from .modification_times import Mistimed, find_mistimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Shown):
    """What was compared, and all that differs.

    metadata             the metadata table: what it names, and where it disagrees with storage
    metadata_commits     its delta commits since its last compaction, None without a metadata table
    damaged_indexes      other partitions of the metadata table that cannot be read, or lack files, and why
    record_index         what shows that it lacks entries of rows, "": nothing does
    mistimed             instants of version 6 whose files have times that give a wrong slice
    lost                 files that completed writes name and that are missing, or have another size
    unreadable_commits   completed instants whose file cannot be read
    strays               paths of files that are ignored: of other attempts, or that only look like data files
    unnamed              paths of files that no known write names and whose rows count all the same"""

    metadata: Validation
    metadata_commits: int | None
    damaged_indexes: Mapping[str, str]
    record_index: str
    mistimed: tuple[Mistimed, ...]
    lost: tuple[Flaw, ...]
    unreadable_commits: tuple[str, ...]
    strays: tuple[str, ...]
    unnamed: tuple[str, ...]

    @property
    def good(self) -> bool:
        indexes = (self.metadata.differences, self.record_index, self.damaged_indexes)
        return not any((*indexes, self.mistimed, self.lost, self.unnamed))


def validated(table: Table) -> Validated:
    """Reads the complete archive. Errors as in `metadata_table.validate`, and those of views."""
    mistimed = from_one_snapshot(lambda: find_mistimed(table.snapshot(cached=False)))
    metadata, commits = Validation(partitions=0, files=0, differences=()), None
    if table.config.metadata_partitions:
        metadata = from_one_snapshot(lambda: compare_metadata(table.snapshot(cached=False)))
        commits = commits_since_compaction(open_metadata_table(table).load_timeline())
    view, witnessed = from_one_snapshot(lambda: _views(table.snapshot(cached=False)))
    return Validated(
        metadata=metadata,
        metadata_commits=commits,
        damaged_indexes=damaged_partitions(table, contents=True),
        record_index=missing_entries(table.snapshot(cached=False)),
        mistimed=mistimed,
        lost=tuple(flaw for group in witnessed.living() for flaw in group.flaws),
        unreadable_commits=tuple(sorted(witnessed.facts.witness.unread)),
        strays=tuple(table.views.strays(view)),
        unnamed=tuple(counted_by_name(view, witnessed)),
    )


def _views(table: Snapshot) -> tuple[TableView, TableView]:
    return table.load_view(), table.load_view(archive=True)
