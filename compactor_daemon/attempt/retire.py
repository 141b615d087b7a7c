"""Retires a completed compaction or clustering: places missing files again, then removes strays and staged data.

Staged data is deleted only after that. The `open` and `outcome` records are kept until Hudi has archived the instant:
they stop a process that has stalled since it opened an attempt.
"""

from __future__ import annotations

from collections.abc import Collection

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.reserved_times import staged_files
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import GroupKey

from .compaction import placed_group
from .outcome import STAGED_ENDINGS, CommitDecision
from .publish import place
from .slice_record import completed_compaction, named_files
from .validity import decided_instant, job_of, refuse_rollback


def retire(table: Table, decision: CommitDecision) -> Table:
    """Places missing files again, then removes strays of the instant, staged data and the heartbeat.

    Returns its snapshot of the table, which shows the partitions of the decision.
    MissingFileError: the decision is not published. ConflictError: a rollback names the instant.
    """
    table = table.snapshot()
    job, family = job_of(table, decision), decided_instant(table, decision).family
    done = completed_compaction(table, decision.instant, family)
    if done is None:
        raise MissingFileError(
            f"a decided {job.name} is not completed", path=decision.completed_path, instant=decision.instant
        )
    refuse_rollback(table, decision.instant)
    named = named_files(table, done)  # without file groups that were replaced before the compaction was published
    placements = [p for p in decision.placements if p.final in named]
    names = _data_names(table, {p.final.rpartition("/")[0] for p in placements})
    finals = [(p, *p.final.rpartition("/")[::2]) for p in placements]
    gone = any(parse_data_file(text) not in names[partition] for _, partition, text in finals)
    table = table.snapshot() if gone else table
    timeline = table.load_timeline()
    if gone and completed_compaction(table, decision.instant, family) is None:
        # The instant was archived since the check above. A file may not exist because its file group was replaced, and
        # that replace commit archived too.
        raise MissingFileError(
            f"a decided {job.name} is not completed any more", path=decision.completed_path, instant=decision.instant
        )
    replaced = table.facts.replaced_groups(timeline) if gone else {}
    for placement, partition, text in finals:
        # If the group has a newer base file, or is replaced, a cleaner may have removed this file, and it is not needed
        # any more. Placed again in a replaced group, it would become visible once the replace commit is archived.
        mine, bases = parse_data_file(text), [n for n in names[partition] if isinstance(n, BaseFileName)]
        later = [n for n in bases if mine is not None and n.file_id == mine.file_id and n.instant > decision.instant]
        newer = any(timeline.is_committed(n.instant) for n in later)
        is_replaced = mine is not None and (partition, mine.file_id) in replaced
        if not newer and (mine in names[partition] or not is_replaced):
            # By the snapshot that shows the completed commit: a file that was removed since then was removed together
            # with it.
            place(table, decision, placement)
    job.end(table, decision, done)
    remove_strays(table, done, _groups(table, decision))
    remove_staged(table.storage, decision.instant, [one.staged for one in decision.placements])
    return table


def _data_names(table: Table, partitions: Collection[str]) -> dict[str, list[BaseFileName | LogFileName]]:
    """The data files in these partitions; none for a partition that was removed."""
    list_ahead(table.storage, partitions)
    return {partition: [name for _, name in data_files(table, partition)] for partition in partitions}


def _groups(table: Table, decision: CommitDecision) -> frozenset[GroupKey]:
    """The file groups of the plan; if the plan was removed already, those of the decision."""
    try:
        return table.compaction_plan(decision.instant).groups
    except MissingFileError:
        return frozenset(placed_group(p.final) for p in decision.placements)


def remove_strays(table: Table, done: Instant, groups: Collection[GroupKey]) -> None:
    """Removes files of these file groups and of the instant that its commit does not name: a reader might take them.

    Files of other groups remain: a writer that takes no lock may have begun in the same millisecond.
    A log that carries a compaction's instant belongs to a write of version 6, on the phantom slice; a Hudi writer may
    have upgraded the table since. So logs are removed only if the instant is a log compaction, from version 8 on.
    """
    named = named_files(table, done)
    kind = BaseFileName if done.action == "commit" else LogFileName
    if kind is LogFileName and table.layout.slicing is Slicing.BY_BASE_INSTANT:
        return
    write = Instant(requested_time=done.requested_time, action="deltacommit", state=State.REQUESTED)
    begun = (table.storage.find(table.instant_path(write.at(state))) for state in (State.REQUESTED, State.INFLIGHT))
    if kind is LogFileName and any(begun):
        return  # a writer that takes no lock began in the same millisecond: its logs have the same form of name
    for partition, names in _data_names(table, {partition for partition, _ in groups}).items():
        for name in names:
            path = join(partition, str(name))
            is_of_plan = isinstance(name, kind) and (partition, name.file_id) in groups
            if is_of_plan and name.instant == done.requested_time and path not in named:
                table.storage.delete(path)


def remove_staged(storage: Storage, instant: str, elsewhere: Collection[str] = ()) -> None:
    """Removes what was staged for an instant, and its heartbeat. `elsewhere`: staged files of other folders, too."""
    own = staged_files(storage, instant, STAGED_ENDINGS)
    storage.delete_all([*sorted({*own, *elsewhere}), heartbeat_path(instant)])
