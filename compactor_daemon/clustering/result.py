"""What a run of the clustering did, or would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.copy_rules import Obstacle
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.ledger import CLUSTERED, decode_ledgers
from phantombase.timeline.instants.reserved_times import has_tombstone
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.table import Snapshot, Table

from ..attempt.outcome import CommitDecision, find_decision
from ..attempt.pending_clusterings import (
    PendingClustering,
    is_at_work,
    is_of_hudi,
    pending_clusterings,
    planned_by_hudi,
    why_passed,
)
from ..attempt.slice_record import SliceDone
from ..attempt.validity import Validity, validity_of
from .cancel import may_be_published
from .choice import ClusterChoice, FilesFor
from .options import ClusterOptions, Copy
from .order import check_sortable
from .outputs import Copying
from .tasks import inputs_now

ClusterProgress = Callable[[str, int, int], None]
"""Called with (instant, files made, files in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered(Shown):
    """A completed clustering: `files` file slices of `bytes` became `made` files of `bytes_made`, with `rows` rows.
    `copied`: the number of new files copied as bytes; `copied_row_groups`: their row groups; `encoded`: the number of
    files that `try` did not copy, by the reason. `repeated_keys`: rows with the record key of an earlier row of the
    same group; a later upsert or delete changes only the first of these on versions 8 and 9."""

    instant: str
    files: int
    bytes: int
    made: int
    bytes_made: int = 0
    rows: int = 0
    copied: int = 0
    copied_row_groups: int = 0
    encoded: Mapping[str, int] = field(default_factory=dict)
    repeated_keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult(Shown):
    """`done`: completed now, or what would be done, with instant "". `finished`: clusterings that an earlier run left.
    `cancelled`: instants of cancelled plans of earlier runs, whose files had changed. In a dry run `finished` and
    `cancelled` are what a run would do; `finished` has plans of Hudi, too. `left`: new files that the bounds left to
    the next run. `left_out`: groups that were written to while their files were made. `why`: why there was nothing to
    do. `small`, `kept`: see `ClusterChoice`. `left_to_hudi`: pending plans of Hudi that are not executed here, with the
    reason. `reasons`: of a rewriting, see `ClusterChoice`."""

    done: Clustered | None
    finished: tuple[Clustered, ...] = ()
    cancelled: tuple[str, ...] = ()
    left: int = 0
    left_out: int = 0
    why: str = ""
    small: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    left_to_hudi: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, FilesFor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What became of plans that were pending; see `ClusterResult`."""

    finished: tuple[Clustered, ...] = ()
    cancelled: tuple[str, ...] = ()
    left_to_hudi: Mapping[str, str] = field(default_factory=dict)


def clustered_by(decision: CommitDecision, made: list[SliceDone]) -> Clustered:
    """`made`: the records of the files, as far as they are still there."""
    finals = {one.final for one in decision.placements}
    own = [one for one in made if not finals.isdisjoint(file.final for file in one.files)]
    metadata = decode_commit(decision.content, decision.completed_path)
    ledgers = decode_ledgers(metadata.extra_metadata[CLUSTERED], decision.completed_path)
    return Clustered(
        instant=decision.instant,
        files=len(decision.replaced),
        bytes=sum(one.bytes for one in decision.replaced),
        made=len(decision.placements),
        bytes_made=sum(one.size for one in decision.placements),
        rows=sum(one.ledger.rows_out for one in ledgers),
        copied=sum(one.copied_row_groups > 0 for one in ledgers),
        copied_row_groups=sum(one.copied_row_groups for one in ledgers),
        encoded=dict(Counter(one.encoded for one in own if one.encoded)),
        repeated_keys=sum(one.repeated_keys for one in own),
    )


def would(table: Snapshot, choice: ClusterChoice, options: ClusterOptions, copying: Copying) -> Clustered | None:
    if not choice.windows:
        return None
    obstacles: list[Obstacle | None] = []
    if options.copy is not Copy.REENCODE and not options.sort_by:
        obstacles = copying.obstacles(choice.windows, table.schema_to_cluster().arrow)
    return Clustered(
        instant="",
        files=sum(len(window.slices) for window in choice.windows),
        bytes=sum(slice_.base_bytes + slice_.log_bytes for window in choice.windows for slice_ in window.slices),
        made=sum(window.outputs for window in choice.windows),
        copied=obstacles.count(None),
        encoded=dict(Counter(one.why for one in obstacles if one is not None)),
    )


def check_executable(table: Table, pending: PendingClustering) -> None:
    """UnsupportedError, UsageError: a plan of Hudi asks for what is not done here."""
    path = table.instant_path(pending.requested)
    pending.plan.check_known(path)
    if pending.plan.sort_by:
        check_sortable(table.with_timeline(table.load_timeline()).schema_to_cluster().arrow, pending.plan.sort_by, path)


def would_finish(table: Snapshot) -> Earlier:
    """What a run would finish and cancel, and the plans that it would leave to Hudi."""
    finished, gone, left = list[Clustered](), list[str](), dict[str, str]()
    for pending in (*pending_clusterings(table), *planned_by_hudi(table)):
        if not pending.plan.is_own:
            try:
                check_executable(table, pending)
            except (UnsupportedError, UsageError) as error:
                left[pending.time] = str(error)
                continue
        if is_at_work(table, pending, clock_ms) or is_of_hudi(table, pending):
            continue
        if table.timeline.shares_time(pending.requested):
            gone += [pending.time] if pending.plan.is_own else []
            continue
        if (decision := find_decision(table.storage, pending.time)) is not None:
            if not may_be_published(table, decision):
                gone.append(pending.time)
            elif validity_of(table, decision).validity is Validity.VALID:
                finished.append(clustered_by(decision, []))
            continue
        inputs = inputs_now(table, pending)
        passed = why_passed(table, pending.time)
        if has_tombstone(table.storage, pending.time) or passed or not all(inputs):
            if pending.plan.is_own:
                gone.append(pending.time)
            else:
                left[pending.time] = passed or "the files of a clustering are not as they were planned"
            continue
        sizes = [slice_.base_bytes + slice_.log_bytes for group in inputs for slice_ in group]
        outputs = sum(group.outputs for group in pending.plan.groups)
        finished.append(Clustered(instant=pending.time, files=len(sizes), bytes=sum(sizes), made=outputs))
    return Earlier(finished=tuple(finished), cancelled=tuple(gone), left_to_hudi=left)


def result_of(choice: ClusterChoice, done: Clustered | None, earlier: Earlier, left_out: int = 0) -> ClusterResult:
    return ClusterResult(
        done=done,
        finished=earlier.finished,
        cancelled=earlier.cancelled,
        left_to_hudi=dict(earlier.left_to_hudi),
        left=choice.left,
        left_out=left_out,
        why="" if choice.windows else choice.why,
        small=choice.small,
        kept=dict(choice.kept),
        reasons=dict(choice.reasons or {}),
    )


def put_off(left_out: int, done: object) -> str:
    """What a person reads of groups that were left out."""
    number = f"all {left_out}" if done is None else str(left_out)
    return f"put off: {number} planned groups were written to while their files were made"
