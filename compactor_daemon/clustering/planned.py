"""The file groups of a clustering: from chosen windows to its plan, and from the plan to file slices (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName
from phantombase.timeline.format.record_key import plain_file_id
from phantombase.timeline.format.replace_request import ClusterGroup
from phantombase.timeline.view.view import FileSlice, GroupKey, TableView, is_replaced

from .choice import ClusteringWindow


def planned(window: ClusteringWindow) -> ClusterGroup:
    """The plan of a window; the id of the new file group is random."""
    return ClusterGroup(
        partition=window.partition,
        file_id=plain_file_id(),
        files=tuple((s.file_id, str(s.base.name), s.base_bytes) for s in window.slices if s.base is not None),
    )


def output_name(position: int, group: ClusterGroup, instant: str) -> BaseFileName:
    """The name of the file that a group becomes: the same in every try, so that no two are made."""
    return BaseFileName(file_id=group.file_id, token=f"{position}-0-{COMPACTOR}", instant=instant)


def slices_of(
    view: TableView, groups: Sequence[ClusterGroup], busy: Collection[GroupKey]
) -> tuple[tuple[FileSlice, ...], ...]:
    """The planned file slices of each group as they are now, in the order of the plan.

    An empty result for a group: one of its inputs is not what was planned. It has log files or another base file, was
    replaced or removed, or is in another plan. `busy`: file groups in plans other than this one.
    """
    known = view.by_key()

    def slice_of(key: GroupKey, name: str) -> FileSlice | None:
        found = known.get(key)
        if (
            found is None
            or not found.slices
            or found.pending_compaction
            or key in busy
            or is_replaced(found, view.facts)
        ):
            return None
        last = found.slices[-1]
        return last if last.base is not None and str(last.base.name) == name and not last.logs else None

    result = []
    for group in groups:
        slices = [slice_of((group.partition, file_id), name) for file_id, name, _ in group.files]
        whole = tuple(one for one in slices if one is not None)
        result.append(whole if len(whole) == len(slices) else ())
    return tuple(result)
