"""Archives the metadata table's instants (the caller holds the data table's lock).

By the rules of any table (`archiving.choice`), with these cutoffs besides:

    compaction    what its own newest compaction does not hold stays, and that compaction: the data table's archiver
                  asks for it, and readers skip what it holds
    the table     nothing from the first write, or the first pending instant, of the data table's active timeline on:
                  Hudi's rollback of such a write asks whether it is recorded here
    slices        8 and 9: instants whose log files lie in a slice that no clean removed, since only they say which;
                  not those that filled a partition, which are older than all base files there: a file group that no
                  write has touched since keeps its first slice for ever
    built anew    a delta commit that filled a partition stays until the compactions before it go too: it is what shows
                  that the base files of these are gone (`metadata_view`)

As Hudi it keeps one instant more than the data table's archiver does by default. Source: HoodieTimelineArchiver of
0.15.0, TimelineArchiverV2 of 1.2.0; `slices` and `built anew` are not in Hudi.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.instant_files import StateFiles, load_state_files, of_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.section import Section
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.read import load_metadata_view
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import TableView

from ..archiving.archived_files import Archive, remove_instants
from ..archiving.choice import ArchiveChoice, ArchiveCutoff, ArchiveFacts, choose
from ..archiving.levels import compact_history
from ..archiving.options import ArchiveOptions

OPTIONS = ArchiveOptions(min_instants=21, max_instants=31, commits_retained=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataArchived:
    """Instants of the metadata table that were archived, or would be. `why`: what stopped archiving here."""

    instants: tuple[str, ...] = ()
    why: str = ""


def archive_waits(data: Timeline, metadata: Timeline) -> str | None:
    """Why nothing is archived, by the two timelines alone; None: something may be (pure)."""
    count = len(metadata.completed)
    bound = OPTIONS.begins_above(count)
    if count <= bound:
        return f"{count} commits are completed, archiving begins above {bound}"
    cutoff, first = _active(data), metadata.completed[0].requested_time
    return cutoff.why if first >= cutoff.time else None


def archive_metadata(table: Table, section: Section, *, dry_run: bool) -> MetadataArchived:
    """Archives what may go; what a dead process left is finished. Errors as those of archiving any table."""
    metadata, data = open_metadata_table(table), table.load_timeline()
    # The files are listed first: an instant that completes in between is still pending in the list.
    files, timeline = load_state_files(metadata.storage, metadata.config), metadata.load_timeline()
    if (waits := archive_waits(data, timeline)) is not None:
        return MetadataArchived(why=waits)
    archive = Archive(storage=metadata.storage, config=metadata.config, moment=table.times.moment, check=section.check)
    if not dry_run and (both := archive.held_already(timeline.instants)):
        _remove(metadata, files, both, section)
        files, timeline = load_state_files(metadata.storage, metadata.config), metadata.load_timeline()
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    choice = _choice(files, view.timeline, cutoffs(data, view), table.times.moment)
    going = tuple(i.requested_time for i in choice.archived)
    table.times.check_zone_of(choice.archived, data)
    if not dry_run and choice.archived:
        archive.write(choice.archived, timeline, files)
        _remove(metadata, files, choice.archived, section)
        if timeline.layout.has_completion_times:
            compact_history(metadata.storage, metadata.config, lambda: nullcontext(section.check))
    return MetadataArchived(instants=going, why=choice.why)


def cutoffs(data: Timeline, view: TableView) -> tuple[ArchiveCutoff, ...]:
    """The cutoffs that the data table and the slices of the metadata table set (pure)."""
    active = _active(data)
    if not view.timeline.layout.has_completion_times:
        return (active,)
    logs = [
        log.name.instant
        for group in view.groups
        for slice_ in group.slices
        for log in slice_.logs
        if slice_ is group.slices[-1] or not log.name.instant.startswith(ARTIFICIAL)
    ]
    if not logs:
        return (active,)
    why = f"a slice that no clean removed has log files of {min(logs)}"
    return active, ArchiveCutoff(time=min(logs), why=why)


def shows_gone(timeline: Timeline, going: Collection[Instant]) -> bool:
    """Whether a compaction would stay without the delta commit that shows that its base files are gone (pure)."""
    filled = [timeline.completed_at(i) for i in going if i.requested_time.startswith(ARTIFICIAL)]
    stay = (i.requested_time for i in timeline.completed if i.action == "commit" and i not in going)
    first = min(stay, default=None)
    return first is not None and any(time > first for time in filled)


def _active(data: Timeline) -> ArchiveCutoff:
    """Where the data table's active timeline begins; "" if it is empty."""
    time = min((i.requested_time for i in data.instants if i.is_write or not i.completed), default="")
    return ArchiveCutoff(time=time, why=f"instant {time or 'none'} is the first on the table's active timeline")


def _choice(
    files: StateFiles, timeline: Timeline, further: tuple[ArchiveCutoff, ...], moment: Callable[[int], str]
) -> ArchiveChoice:
    compactions = [i.requested_time for i in timeline.completed if i.action == "commit"]
    facts = ArchiveFacts(
        metadata=True,
        metadata_compacted=max(compactions, default=None),
        doubled=files.doubled(),
        written=files.written(timeline.instants, moment),
        cutoffs=further,
    )
    choice = choose(timeline, facts, OPTIONS)
    if timeline.layout.has_completion_times and shows_gone(timeline, choice.archived):
        why = "the compactions before an index was built anew stay"
        return ArchiveChoice(archived=(), kept=(*choice.archived, *choice.kept), why=why)
    return choice


def _remove(metadata: Table, files: StateFiles, instants: Sequence[Instant], section: Section) -> None:
    """Removes archived instants, those that filled a partition last: see `shows_gone`."""
    for last in (False, True):
        some = [i for i in instants if i.requested_time.startswith(ARTIFICIAL) is last]
        if some:
            remove_instants(metadata.storage, of_instants(files, some), section.check)
