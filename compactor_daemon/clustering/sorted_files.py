"""Which base files a clustering has written in a given order, by its plan on the timeline or in the archive.

A plan of phantombase names the columns and the order, and its commit shows that phantombase executed it. A plan of Hudi
names only the columns; the order of several is a setting of the job that executed it. So it counts for one column. What
is not known counts as not sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.ledger import CLUSTERED
from phantombase.timeline.format.replace_request import ClusterPlan, decode_cluster_plan
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import BaseFile, GroupKey, TableView

from .choice import living_groups
from .options import ClusterOptions, Grouping


def sorted_already(table: Table, view: TableView, options: ClusterOptions) -> frozenset[GroupKey]:
    """The file groups whose newest base file has rows in the order of `options`; none if they ask for no order."""
    if not options.sort_by or options.grouping is not Grouping.SIZE:
        return frozenset()
    last = ((group.key, group.slices[-1].base) for group in living_groups(view))
    bases = {key: base for key, base in last if base is not None}
    times = {base.name.instant for base in bases.values()}
    found = dict(_active(table, view, times, options))
    if missing := times - {i.requested_time for i in view.timeline.completed}:
        found |= _archived(table, view, missing, options)
    return frozenset(key for key, base in bases.items() if _is_of(base, found.get(base.name.instant)))


def _is_of(base: BaseFile, files: frozenset[str] | None) -> bool:
    return files is not None and base.path in files


def _active(
    table: Table, view: TableView, times: set[str], options: ClusterOptions
) -> Iterable[tuple[str, frozenset[str]]]:
    """The files that completed clusterings wrote in this order, by instant."""
    for done in view.timeline.completed:
        if done.family != "replacecommit" or done.requested_time not in times:
            continue
        try:
            metadata = table.commit_metadata(done)
            plan = table.files.plan_there(replace(done, action=table.layout.pending_clustering), decode_cluster_plan)
        except MissingFileError:
            continue  # archived since
        if plan is not None and _is_in_order(plan, CLUSTERED in metadata.extra_metadata, options):
            yield done.requested_time, metadata.named_files


def _archived(table: Table, view: TableView, times: set[str], options: ClusterOptions) -> dict[str, frozenset[str]]:
    timeline = table.with_archive(view.timeline)
    writes = [i for i in timeline.archived if i.family == "replacecommit" and i.requested_time in times]
    if not writes:
        return {}
    commits, plans = table.archived_commits(writes), table.archived_records(writes, plans=True)
    found = {}
    for write, metadata in commits.items():
        plan = decode_cluster_plan(plans.get(write, b""), f"the archived plan of {write.requested_time}")
        if plan is not None and _is_in_order(plan, CLUSTERED in metadata.extra_metadata, options):
            found[write.requested_time] = metadata.named_files
    return found


def _is_in_order(plan: ClusterPlan, is_ours: bool, options: ClusterOptions) -> bool:
    if plan.sort_by != options.sort_by:
        return False
    if len(plan.sort_by) == 1:
        return True
    return is_ours and plan.sort_order == options.sort_order.value
