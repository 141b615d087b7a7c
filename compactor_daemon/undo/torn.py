"""Completed files that cannot be read, of writes that are taken back: Hudi leaves them so that is killed meanwhile.

What such a replace commit replaced is not known. All that it replaced is back when it is gone: that is the state before
it, unless a compaction that stays has left a file group out because of it, see `refusals.refuse_left_out`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from phantombase.timeline.errors import MalformedError, UsageError
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table

_RECORDING = ("commit", "replacecommit")


def without_torn(table: Table, timeline: Timeline, undone: Collection[str]) -> Timeline:
    """The timeline without the compactions and replace commits of `undone` whose completed files cannot be read."""
    torn = {i for i in timeline.completed if i.requested_time in undone and _is_torn(table, i)}
    return replace(timeline, instants=tuple(i for i in timeline.instants if i not in torn)) if torn else timeline


def refuse_torn_target(table: Table, timeline: Timeline, target: str) -> None:
    """UsageError: the completed file of the write whose state is to come back cannot be read."""
    try:
        table.commit_metadata(timeline.completed_writes[target])
    except MalformedError as error:
        before = max((time for time in timeline.completed_writes if time < target), default=None)
        raise UsageError(
            "the completed file of this write cannot be read: behind a restore to it no reader could read the table",
            path=error.path,
            instant=target,
            found=error.found,
            todo=f"Restore to the write before it: --to {before}." if before else "Restore the file from a copy.",
        ) from error


def refuse_unknown_left_out(
    table: Table, timeline: Timeline, left: Timeline, undone: Collection[str], instant: str
) -> None:
    """UsageError: a compaction that stays lacks a planned file group, and what was replaced before it is not known.

    `left`: of `without_torn`; `instant`: what the command named.
    """
    if not any(i.family == "replacecommit" and i not in left.instants for i in timeline.completed):
        return
    replaced = table.facts.replaced_groups(left)
    for done in left.completed:
        if done.family != "commit" or done.requested_time in undone:
            continue
        metadata = table.commit_metadata(done)
        planned = table.compaction_plan(done.requested_time).groups if metadata.compacted else frozenset()
        if lacking := sorted(planned - metadata.written_groups - replaced.keys()):
            raise _unknown(join(*lacking[0]), instant, f"compaction {done.requested_time} made no base file of it")
    if table.layout.slicing is not Slicing.BY_BASE_INSTANT:
        return
    facts = table.load_facts(left)
    for partition in table.partitions():
        for group in table.views.partition_groups(partition, left, facts):
            if group.key in replaced:
                continue
            # Only a compaction, or the first write of a file group, has log files without a base file.
            for slice_ in group.slices[1:]:
                opened_by = slice_.base_instant
                if slice_.base is None and slice_.logs and opened_by not in (group.pending_compaction, *undone):
                    raise _unknown(slice_.logs[0].path, instant, f"compaction {opened_by} made no base file of it")


def _is_torn(table: Table, instant: Instant) -> bool:
    if instant.family not in _RECORDING:
        return False
    try:
        table.commit_metadata(instant)
    except MalformedError:
        return True
    return False


def _unknown(path: str, instant: str, found: str) -> UsageError:
    return UsageError(
        "a compaction may have left out a file group that would be back",
        path=path,
        instant=instant,
        found=f"{found}; what was replaced before cannot be read",
        expected="a state before that compaction",
        todo="Or restore the completed file that cannot be read from a copy.",
    )
