"""Whether the metadata table's compaction is due, at which instant, and the option that decides; and what a clean
waits for (pure).

A compaction never merges the entry of an instant that is pending on the data table: that instant may be rolled back,
and its entry could not be removed any more. Hudi's rules, which these follow:

    version 6   instant `<last delta commit>001`; none while an instant up to that delta commit is pending on the data
                table
    8 and 9     a new instant; or 1 ms before the earliest instant that is pending on the data table and completed here

Stricter than Hudi: no plan while this timeline has a pending delta commit or log compaction, or while an index is
built. Source: HoodieBackedTableMetadataWriter of 0.15.0 and 1.2.0."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from phantombase.timeline.format.instant import format_time, parse_time
from phantombase.timeline.instants.timeline import Timeline, commits_since_compaction
from phantombase.timeline.metadata_table.valid_instants import blocked_by
from phantombase.timeline.option import check_least, least_of, option, spelled_class


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """When the metadata table is compacted; the default is Hudi's (`hoodie.metadata.compact.max.delta.commits`)."""

    max_delta_commits: int = option(
        10, "delta commits of the metadata table since its last compaction that make the next one due", least=1
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(MetadataOptions))


COMPACTION_SUFFIX = "001"
"""The suffix of the instant of a compaction of the metadata table on version 6."""
_DIGITS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDue:
    """`instant`: of the compaction that is due; None: none is due, or none may be planned yet. `why`: in words."""

    instant: str | None
    why: str


def due(
    data: Timeline,
    metadata: Timeline,
    *,
    building: Collection[str],
    max_delta_commits: int,
    new_time: Callable[[], str],
) -> MetadataDue:
    """Decides by timelines loaded under the table lock. `building`: partitions being built. `new_time`: for 8 and 9."""
    count = commits_since_compaction(metadata)
    if count < max_delta_commits:
        return MetadataDue(instant=None, why=f"{count} of {max_delta_commits} delta commits since the last compaction")
    if building:
        return _not_yet(f"Hudi is building {', '.join(sorted(building))}")
    if (blocked := blocked_by(metadata)) is not None:
        return _not_yet(blocked)
    pending = sorted(i.requested_time for i in data.instants if not i.completed)
    done = sorted(i.requested_time for i in metadata.instants if i.action == "deltacommit" and i.completed)
    why = f"{count} delta commits since the last compaction"
    if not metadata.layout.has_completion_times:
        return _by_last_delta_commit(metadata, pending, done[-1], why)
    told = sorted(set(pending) & set(done))
    if not told:
        return MetadataDue(instant=new_time(), why=why)
    instant = format_time(parse_time(told[0]) - timedelta(milliseconds=1))
    if any(i.requested_time >= instant and i.family == "commit" for i in metadata.instants):
        return _not_yet(f"{told[0]} is pending on the table")
    return MetadataDue(instant=instant, why=why)


def _by_last_delta_commit(metadata: Timeline, pending: list[str], last: str, why: str) -> MetadataDue:
    if pending and pending[0] <= last:
        return _not_yet(f"{pending[0]} is pending on the table")
    instant = last + COMPACTION_SUFFIX
    if len(last) != _DIGITS or any(i.requested_time >= instant for i in metadata.instants if i.is_write):
        return _not_yet(f"no instant of a compaction follows the delta commit {last}")
    return MetadataDue(instant=instant, why=why)


def _not_yet(why: str) -> MetadataDue:
    return MetadataDue(instant=None, why=f"due, but waits: {why}")


_INSTANTS_AFTER_COMPACTION = 3


def clean_waits(metadata: Timeline) -> str | None:
    """Why no new clean is due now; None: one may be due (pure). A pending clean does not wait."""
    if metadata.pending_compactions:
        return f"compaction {metadata.pending_compactions[0].requested_time} of the metadata table is pending"
    if metadata.pending("logcompaction"):
        return blocked_by(metadata)
    compactions = [i.requested_time for i in metadata.completed if i.action == "commit"]
    if not compactions:
        return "the metadata table was never compacted"
    # On version 6 a clean and the compaction after it have the delta commit's time and a suffix, 002 and 001.
    last = compactions[-1][:_DIGITS]
    after = [i for i in metadata.instants if i.completed and i.requested_time[:_DIGITS] > last]
    if any(i.action == "clean" for i in after):
        return "nothing was compacted since the last clean"
    if len(after) < _INSTANTS_AFTER_COMPACTION:
        return f"{len(after)} of {_INSTANTS_AFTER_COMPACTION} instants since the last compaction"
    return None
