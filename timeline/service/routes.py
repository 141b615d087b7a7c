"""Hudi's view routes: the answer of each from a state (pure).

Source: `RequestHandler` of Hudi 0.15 and 1.2. Bounds are instants, compared as text. Answers about the current state
leave out replaced file groups; an answer about an instant leaves out those that were replaced up to that instant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import ge, le, lt

from ..errors import UsageError
from ..format.compaction_plan import CompactionPlan
from ..format.layout import Slicing
from ..view.view import BaseFile, FileGroup, FileSlice, ViewFacts, is_replaced, latest_base
from .table_state import (
    Json,
    PartitionFiles,
    PendingFiles,
    Printer,
    ServedState,
    clustering_operation,
    compaction_operation,
    counted,
    instant,
)

PREFIX = "/v1/hoodie/view/"


def need(given: Mapping[str, str], name: str) -> str:
    """A mandatory parameter; UsageError if it is missing."""
    if name not in given:
        raise UsageError(f"the parameter {name} is missing", expected=f"{name}=... in the query string")
    return given[name]


@dataclass(frozen=True, slots=True)
class Question:
    """One request: the state that answers it, its parameters, and how files are printed. `pending`: by partition, see
    `PendingFiles`, where a route needs it and writes are pending."""

    state: ServedState
    given: Mapping[str, str]
    printer: Printer
    pending: Mapping[str, PendingFiles] = field(default_factory=dict)

    def need(self, name: str) -> str:
        return need(self.given, name)

    @property
    def partition(self) -> PartitionFiles:
        """The requested partition; an empty one if it does not exist."""
        return self.files(self.given.get("partition", ""))

    def files(self, partition: str) -> PartitionFiles:
        """The files of a partition. MissingFileError, MalformedError: one is lost or damaged."""
        found = self.state.partitions.get(partition, EMPTY)
        if found.refused is not None:
            raise found.refused
        return found

    def all_files(self) -> Iterator[tuple[str, PartitionFiles]]:
        return ((name, self.files(name)) for name in self.state.partitions)

    @property
    def with_pending(self) -> PendingFiles:
        return self.of_pending(self.given.get("partition", ""))

    def of_pending(self, partition: str) -> PendingFiles:
        files = self.files(partition)
        return self.pending.get(partition) or PendingFiles(with_logs=files.groups, with_all=files.groups)

    def group(self, as_of: str | None = None) -> Iterator[FileGroup]:
        """The group that the parameter `fileid` names, if it exists and is not replaced (up to `as_of`)."""
        found = self.partition.by_file_id.get(self.need("fileid"))
        return live(self.partition, () if found is None else (found,), as_of)

    def live(self, as_of: str) -> Iterator[FileGroup]:
        return live(self.partition, self.partition.groups, as_of)

    def slices(self, found: Iterable[FileSlice | None]) -> Json:
        return [self.printer.file_slice(s) for s in found if s is not None]

    def bases(self, found: Iterable[BaseFile | None]) -> Json:
        return [self.printer.base_file(b) for b in found if b is not None]

    def groups(self, found: Iterable[FileGroup]) -> Json:
        return self.printer.file_groups(list(found), self.state.timeline)

    def instants(self) -> frozenset[str]:
        return frozenset(self.need("instants").split(","))


EMPTY = PartitionFiles(groups=(), facts=ViewFacts(pending_plans={}, replaced={}, compacted={}), modified={})


def live(files: PartitionFiles, groups: Iterable[FileGroup], as_of: str | None = None) -> Iterator[FileGroup]:
    """The groups of a partition that are not replaced (up to `as_of`)."""
    return (g for g in groups if not is_replaced(g, files.facts, as_of))


class Fresh(Enum):
    """When a route lists its partitions again, since files of pending writes are in no state."""

    NEVER = "never"
    PENDING = "the partition, if a write is pending"
    PENDING_TABLE = "the complete table, if a write is pending"
    ALWAYS = "the partition, for each request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`checked`: the client's timeline is compared. `alone`: the answer depends only on the partition's files.
    `fresh_if`: whether its parameters require a new listing. `looks`: the timeline is loaded for each request, since
    the answer is about instants that clients do not compare."""

    answer: Callable[[Question], Json]
    method: str = "GET"
    checked: bool = True
    fresh: Fresh = Fresh.NEVER
    fresh_if: Callable[[Mapping[str, str]], bool] = lambda given: True
    alone: bool = False
    looks: bool = False


def _newest(group: FileGroup) -> FileSlice | None:
    return group.slices[-1] if group.slices else None


def _upto(group: FileGroup, bound: str) -> FileSlice | None:
    return next((s for s in reversed(group.slices) if s.base_instant <= bound), None)


def _committed(q: Question, group: FileGroup) -> FileGroup:
    """A group without the slices that a pending write opened."""
    known = q.state.timeline.is_committed
    kept = (s for s in group.slices if known(s.base_instant) or s.base_instant == group.pending_compaction)
    return replace(group, slices=tuple(kept))


def _latest_slices(q: Question) -> Json:
    return q.slices(map(_newest, q.partition.live))


def _uncompacted(q: Question) -> Json:
    groups = (_committed(q, g) for g in live(q.partition, q.with_pending.with_logs))
    return q.slices(
        next((s for s in reversed(g.slices) if s.base_instant != g.pending_compaction), None) for g in groups
    )


def _all_slices(q: Question) -> Json:
    groups = (_committed(q, g) for g in live(q.partition, q.with_pending.with_logs))
    return q.slices(s for g in groups for s in reversed(g.slices))


def _slices_in_range(q: Question) -> Json:
    wanted = q.instants()
    every = ((files, q.of_pending(name).with_logs) for name, files in q.all_files())
    groups = (_committed(q, g) for files, with_logs in every for g in live(files, with_logs, max(wanted)))
    return q.slices(next((s for s in reversed(g.slices) if s.base_instant in wanted), None) for g in groups)


def _before_or_on(q: Question, name: str, bound: str, *, pending: bool) -> Json:
    partition = q.files(name)
    groups = (g for g in live(partition, partition.groups, bound) if pending or g.pending_compaction is None)
    if q.state.timeline.layout.slicing is Slicing.BY_BASE_INSTANT:  # Hudi skips a slice that has no file yet
        return q.slices(_upto(_without_empty(g), bound) for g in groups)
    began = {g.key: g for g in q.pending[name].with_logs} if name in q.pending else {}
    return q.slices(_upto(_without_begun(g, began.get(g.key)), bound) for g in groups)


def _without_begun(group: FileGroup, with_logs: FileGroup | None) -> FileGroup:
    """A group without its phantom slice if that has files of pending writes only. Hudi skips such a slice, but not one
    without files. `with_logs`: the same group with the files of pending writes."""
    last = group.slices[-1] if group.slices else None
    if with_logs is None or last is None or last.files or last.base_instant != group.pending_compaction:
        return group
    begun = any(s.base_instant == last.base_instant and s.logs for s in with_logs.slices)
    return replace(group, slices=group.slices[:-1]) if begun else group


def _without_empty(group: FileGroup) -> FileGroup:
    return replace(group, slices=tuple(s for s in group.slices if s.files))


def _with_pending_compactions(given: Mapping[str, str]) -> bool:
    return given.get("includependingcompaction", "").lower() == "true"


def _slices_before_or_on(q: Question) -> Json:
    q.need("includependingcompaction")
    pending = _with_pending_compactions(q.given)
    return _before_or_on(q, q.given.get("partition", ""), q.need("maxinstant"), pending=pending)


def _all_slices_before_or_on(q: Question) -> Json:
    bound = q.need("maxinstant")
    return {name: _before_or_on(q, name, bound, pending=True) for name in q.state.partitions}


def _merged(group: FileGroup, bound: str) -> FileSlice | None:
    """The newest slice up to the bound; the slice of a pending compaction is merged with the one before."""
    slices = [s for s in group.slices if s.base_instant <= bound]
    if len(slices) > 1 and slices[-1].base_instant == group.pending_compaction:
        logs = sorted((*slices[-2].logs, *slices[-1].logs), key=lambda log: log.name.sort_key)
        return replace(slices[-2], logs=tuple(logs))
    return slices[-1] if slices else None


def _merged_slices(q: Question, groups: Callable[[str], Iterable[FileGroup]]) -> Json:
    bound = q.need("maxinstant")
    return q.slices(_merged(g, bound) for g in groups(bound))


def _merged_slices_inflight(q: Question) -> Json:
    """With log files of every pending write, not of `currentinstant` alone; no base files: as on Hudi's server."""
    q.need("currentinstant")
    return _merged_slices(q, lambda bound: live(q.partition, q.with_pending.with_logs, bound))


def _base_on(q: Question) -> Json:
    time = q.need("instant")
    return q.bases(s.base for g in q.group(time) for s in g.slices if s.base_instant == time)


def _bases_before_or_on(q: Question) -> Json:
    bound = q.need("maxinstant")
    return q.bases(latest_base(g, bound) for g in q.live(bound))


def _all_bases_before_or_on(q: Question) -> Json:
    bound = q.need("maxinstant")
    return {
        name: q.bases(latest_base(g, bound) for g in live(files, files.groups, bound)) for name, files in q.all_files()
    }


def _bases_in_range(q: Question) -> Json:
    wanted = q.instants()
    groups = (g for _, p in q.all_files() for g in live(p, p.groups, max(wanted)))
    return q.bases(
        next((s.base for s in reversed(g.slices) if s.base and s.base_instant in wanted), None) for g in groups
    )


def _file_groups(q: Question) -> Json:
    return q.groups(live(q.partition, q.with_pending.with_all))


def _replaced(q: Question, is_in: Callable[[str, str], bool], bound: str) -> Json:
    replaced = q.partition.facts.replaced
    return q.groups(g for g in q.partition.groups if g.key in replaced and is_in(replaced[g.key], bound))


def _operations(plans: Mapping[str, CompactionPlan]) -> Json:
    return [compaction_operation(o, time) for time, plan in plans.items() for o in plan.operations]


def _last_instant(q: Question) -> Json:
    return [instant(i, q.state.timeline) for i in counted(q.state.timeline)[-1:]]


def _instants(q: Question) -> Json:
    return {"instants": [instant(i, q.state.timeline) for i in counted(q.state.timeline)]}


def _done(q: Question) -> Json:
    return True


ROUTES: Mapping[str, Route] = {
    "slices/partition/latest": Route(answer=_latest_slices, alone=True),
    "slices/partition/latest/stateless": Route(answer=_latest_slices, fresh=Fresh.ALWAYS),
    "slices/partition/latest/inflight": Route(
        answer=lambda q: q.slices(map(_newest, q.with_pending.with_all)), fresh=Fresh.ALWAYS
    ),
    "slices/file/latest": Route(answer=lambda q: q.slices(map(_newest, q.group())), alone=True),
    "slices/uncompacted/partition/latest": Route(answer=_uncompacted, fresh=Fresh.PENDING),
    "slices/all": Route(answer=_all_slices, fresh=Fresh.PENDING),
    "slices/range/latest": Route(answer=_slices_in_range, fresh=Fresh.PENDING_TABLE),
    "slices/beforeoron/latest": Route(
        answer=_slices_before_or_on, fresh=Fresh.PENDING, fresh_if=_with_pending_compactions, alone=True
    ),
    "slices/all/beforeoron/latest": Route(answer=_all_slices_before_or_on, fresh=Fresh.PENDING_TABLE),
    "slices/merged/beforeoron/latest": Route(answer=lambda q: _merged_slices(q, q.live), alone=True),
    "slices/merged/beforeoron/inflight/latest": Route(answer=_merged_slices_inflight, fresh=Fresh.ALWAYS),
    "slice/merged/beforeoron/latest": Route(answer=lambda q: _merged_slices(q, q.group), alone=True),
    "datafiles/latest/partition": Route(answer=lambda q: q.bases(map(latest_base, q.partition.live)), alone=True),
    "datafiles/all/latest": Route(answer=lambda q: q.bases(latest_base(g) for _, p in q.all_files() for g in p.live)),
    "datafile/latest/partition": Route(answer=lambda q: q.bases(map(latest_base, q.group())), alone=True),
    "datafile/on/latest": Route(answer=_base_on, alone=True),
    "datafiles/beforeoron/latest": Route(answer=_bases_before_or_on, alone=True),
    "basefiles/all/beforeoron": Route(answer=_all_bases_before_or_on),
    "datafiles/range/latest": Route(answer=_bases_in_range),
    "datafiles/all": Route(answer=lambda q: q.bases(s.base for g in q.partition.live for s in g.slices), alone=True),
    "filegroups/all/partition": Route(answer=_file_groups, fresh=Fresh.PENDING),
    "filegroups/all/partition/stateless": Route(answer=_file_groups, fresh=Fresh.ALWAYS),
    "filegroups/replaced/partition": Route(answer=lambda q: _replaced(q, ge, "")),
    "filegroups/replaced/before": Route(answer=lambda q: _replaced(q, lt, q.given.get("maxinstant", ""))),
    "filegroups/replaced/beforeoron": Route(answer=lambda q: _replaced(q, le, q.given.get("maxinstant", ""))),
    "filegroups/replaced/afteroron": Route(answer=lambda q: _replaced(q, ge, q.need("mininstant"))),
    "compactions/pending": Route(answer=lambda q: _operations(q.state.plans)),
    "logcompactions/pending": Route(answer=lambda q: _operations(q.state.log_plans), looks=True),
    "clustering/pending": Route(
        answer=lambda q: [clustering_operation(key, i) for key, i in q.state.clusterings.items()], looks=True
    ),
    "timeline/instant/last": Route(answer=_last_instant, checked=False),
    "timeline/instants/all": Route(answer=_instants, checked=False),
    "refresh": Route(answer=_done, method="POST", checked=False),
    "loadallpartitions": Route(answer=_done, method="POST", checked=False),
    "loadpartitions": Route(answer=_done, method="POST", checked=False),
}
"""By path after `PREFIX`, without the trailing slash."""
