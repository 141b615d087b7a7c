"""What differs between the things that an attempt executes: a compaction or log compaction, and a clustering.

Everything else is one protocol: records, adoption, fencing, the decision, its publication and retirement. A job is made
from a plan, to execute it, or from a decision, to publish it: then the plan may be gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.table.table import Snapshot, Table, TableSchema

from .outcome import CommitDecision, Placement, ReplacedGroup

if TYPE_CHECKING:
    from .slice_record import SliceDone
    from .slice_task import StageTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    """What a job adds to the validity of a decision. `broken`: why it is invalid, for ever; `waits`: why it must wait
    for another action; "": nothing."""

    broken: str = ""
    waits: str = ""


class Job(Protocol):
    """The protocol; see the module."""

    @property
    def name(self) -> str:
        """For messages: "compaction"."""

    @property
    def undo(self) -> str:
        """The command that cancels the plan."""

    @property
    def requested(self) -> Instant:
        """The instant of the plan, requested."""

    @property
    def waits_for(self) -> str:
        """What `waiting` finds, for messages."""

    @property
    def places_early(self) -> bool:
        """Whether files may get their final names before the lock is taken: nothing but the decision shows them."""

    # --- until the decision

    @property
    def partitions(self) -> frozenset[str]:
        """Where files are placed."""

    def is_planned(self, table: Table) -> bool:
        """Whether the plan is still the one that the job was made from. MissingFileError: it was removed."""

    def barrier(self, table: Snapshot) -> frozenset[str]:
        """Writes that are pending when the attempt is opened and must end before the decision."""

    def waiting(self, table: Snapshot, barrier: frozenset[str]) -> list[Instant]:
        """Writes that must end before the decision, as far as they are pending. `barrier`: see above."""

    def tasks(self, table: Table, attempt: int, output: OutputOptions) -> tuple[Sequence[StageTask], TableSchema]:
        """One task a file, and the table's schema. `table`: a snapshot. ConflictError: the plan cannot be executed."""

    def staged_before(self, table: Table, tasks: Sequence[StageTask]) -> Mapping[int, SliceDone]:
        """What was staged for these tasks before the plan was put, by position, with the final names of this attempt.
        It is current: its inputs, schema and rules are those of the task."""

    def commit(self, done: Sequence[SliceDone], schema: TableSchema, properties: Mapping[str, str]) -> CommitMetadata:
        """The content of the completed file."""

    def passed(self, table: Table, done: Sequence[SliceDone]) -> tuple[str, ...]:
        """See `CommitDecision.passed`."""

    def replaced(self, done: Sequence[SliceDone]) -> tuple[ReplacedGroup, ...]:
        """See `CommitDecision.replaced`."""

    def skipped(self, done: Sequence[SliceDone]) -> tuple[str, ...]:
        """See `CommitDecision.skipped`."""

    # --- from the decision on

    def clauses(self, table: Snapshot, decision: CommitDecision) -> Clauses:
        """Asked while the plan exists."""

    def current(self, table: Snapshot, decision: CommitDecision) -> CommitDecision:
        """The decision as it is published now: its files and content."""

    def begin_placing(self, table: Table, decision: CommitDecision) -> None:
        """Before files get their final names under the lock. ConflictError: Hudi executes the plan."""

    def begin_completing(self, table: Table, decision: CommitDecision) -> None:
        """Right before the completed file is put."""

    def built_upon(self, table: Table, decision: CommitDecision, *, is_valid: bool) -> str:
        """Why the completed file cannot be deleted any more; "": it can. `is_valid`: the decision is not invalid."""

    def stays(self, table: Table, decision: CommitDecision, why: str) -> None:
        """Called where this process put a stale completed file that cannot be deleted. ConflictError: a person must
        look. `why`: what is wrong, and what was built upon it."""

    def make_again(self, table: Table, decision: CommitDecision, placement: Placement) -> str:
        """The path of a new staged file for a lost one."""

    def end(self, table: Table, decision: CommitDecision, done: Instant) -> None:
        """What is kept, and removed, when the instant is completed as `done` and all its files are there."""
