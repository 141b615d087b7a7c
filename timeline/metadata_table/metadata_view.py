"""The file-system view of the metadata table.

When Hudi builds an index anew, it removes the partition's folder, with base files that a completed compaction names.
It fills the new one under made-up times with the same file ids. So that compaction names nothing there any more.
Version 6 shows no order of the two: there a base file that is gone stays an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import MalformedError, MissingFileError
from ..format.file_name import parse_data_file
from ..format.instant import Instant
from ..format.layout import Slicing
from ..instants.timeline import Timeline
from ..log.block import HeaderKey, LogBlock
from ..table.table import Table
from ..view.named_files import NamedFile, named_files
from ..view.view import FileGroup, FileSlice, TableView, ViewFacts
from .location import BUILD_ANEW, anew_if_unreadable
from .valid_instants import MADE_UP


def load_metadata_view(metadata: Table, partitions: Collection[str]) -> TableView:
    """Timeline, facts, then the listing of these partitions. MissingFileError: no such folder; see `file_groups`."""
    timeline = metadata.load_timeline()
    with anew_if_unreadable(metadata):
        facts = without_rebuilt(metadata, timeline, metadata.facts.load(timeline, witness=False))
    groups = list[FileGroup]()
    for partition in sorted(partitions):
        found = metadata.views.partition_groups(partition, timeline, facts)
        if not found:
            metadata.storage.list(partition)  # a folder that is not there has no groups either
        for slice_ in (s for group in found for s in group.slices):
            slice_.check_whole()
        groups += found
    metadata.check_unchanged()
    return TableView(timeline=timeline, facts=facts, groups=tuple(groups))


def without_rebuilt(metadata: Table, timeline: Timeline, facts: ViewFacts) -> ViewFacts:
    """The facts without base files that compactions wrote to a partition before it was last filled."""
    if not facts.compacted or not timeline.layout.has_completion_times:
        return facts
    filled: dict[str, str] = {}
    for instant in timeline.completed:
        if instant.action == "deltacommit" and instant.requested_time.startswith(MADE_UP):
            for partition in metadata.commit_metadata(instant).partition_to_write_stats:
                filled[partition] = max(filled.get(partition, ""), timeline.completed_at(instant))
    kept = {
        (partition, file_id): {time: name for time, name in names.items() if time > filled.get(partition, "")}
        for (partition, file_id), names in facts.compacted.items()
    }
    return replace(facts, compacted={key: names for key, names in kept.items() if names})


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether the slices of a metadata table have the blocks of all its delta commits.

    A delta commit whose blocks are there is not asked: the others are, each once. So a whole `files` partition, which
    every delta commit writes to, is proved without a request. `timeline`: of the metadata table. `below`: the instant
    of a compaction, whose slices lack what completed later.
    """

    metadata: Table
    timeline: Timeline
    below: str | None = None
    _named: dict[str, Mapping[str, tuple[NamedFile, ...]]] = field(default_factory=dict)

    def check(self, slice_: FileSlice, blocks: Iterable[LogBlock]) -> None:
        """MissingFileError: a completed delta commit names a file of the slice, and nothing of it is there."""
        seen = {block.headers.get(HeaderKey.INSTANT_TIME) for block in blocks}
        by_name = self.timeline.layout.slicing is Slicing.BY_BASE_INSTANT
        instants = {slice_.base_instant, *(log.name.instant for log in slice_.logs)}
        floor = "" if slice_.base is None else slice_.base_instant
        for write in self.timeline.completed:
            time = write.requested_time
            since = self.timeline.moment_of(write)
            if write.family != "deltacommit" or time in seen or max(time, since) <= floor or time == floor:
                continue
            if not by_name and self.below is not None and since >= self.below:
                continue
            for one in self._files(write).get(slice_.partition, ()):
                text = one.path.rpartition("/")[2]
                name = parse_data_file(text)
                if name is None or name.file_id != slice_.file_id or (by_name and name.instant not in instants):
                    continue
                if text.startswith(".") or slice_.base is None:
                    raise MissingFileError(
                        "blocks of a completed delta commit of the metadata table are not there",
                        path=f"{self.metadata.storage.base_path}/{one.path}",
                        instant=time,
                        expected=f"{one.size} bytes" if one.size else None,
                        todo=f"Restore the file from a copy. {BUILD_ANEW}",
                    )

    def _files(self, write: Instant) -> Mapping[str, tuple[NamedFile, ...]]:
        """None of a torn delta commit, as Hudi leaves it that is killed while it completes one."""
        if write.requested_time not in self._named:
            path = self.metadata.files.path(write)
            try:
                self._named[write.requested_time] = named_files(self.metadata.storage.read(path), path)
            except (MalformedError, MissingFileError):
                self._named[write.requested_time] = {}
        return self._named[write.requested_time]
