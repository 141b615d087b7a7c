"""What a planning found, took and left out, and why (pure): for users, and for the next planning.

A plan carries its notes in `extraMetadata` under `phantombase.plan`. Their `waiting` lists where file groups were left
out or not examined: the next planning looks only there, and in partitions written since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..errors import MalformedError
from ..format.compaction_plan import CompactionPlan
from .partition_walk import Waiting

NOTES = "phantombase.plan"


class Rule(Enum):
    """The rule by which a file group was left out."""

    NO_LOGS = "no log files"
    BUSY = "in a pending table service"
    EXCLUDED = "excluded"
    NOT_DUE = "not due"
    NOT_PICKED = "not picked"
    UNMERGEABLE = "cannot be merged"
    STRATEGY = "strategy"
    LIMIT = "limit"

    @property
    def comes_back(self) -> bool:
        """Whether a later plan may take it without a write to it meanwhile."""
        return self is not Rule.NO_LOGS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file group that was examined and not planned."""

    partition: str
    file_id: str
    rule: Rule
    why: str

    @property
    def path(self) -> str:
        """For people."""
        return f"{self.partition}/{self.file_id}" if self.partition else self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNotes:
    """Notes of one planning: partitions and file groups examined, bytes that its plans read and write (as Hudi
    estimates them), and the number of files that a reader of all those file groups opens before and after."""

    partitions: int
    file_groups: int
    read_bytes: int
    write_bytes: int
    runs_before: int
    runs_after: int
    left: tuple[LeftOut, ...]

    @property
    def unmergeable(self) -> tuple[LeftOut, ...]:
        """The file groups that a compactor would refuse, or that could not be read."""
        return tuple(o for o in self.left if o.rule is Rule.UNMERGEABLE)

    def summary(self) -> dict[str, Any]:
        """The notes as plain data; `read_amplification`: files that a reader opens for each file group."""
        groups = max(1, self.file_groups)
        return {
            "partitions": self.partitions,
            "file_groups": self.file_groups,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "read_amplification": round(self.runs_before / groups, 3),
            "read_amplification_after": round(self.runs_after / groups, 3),
            "left_out": dict(sorted(Counter(o.rule.value for o in self.left).items())),
        }


def encode_notes(notes: PlanNotes, reasons: Mapping[str, str], waiting: Sequence[Waiting] | None) -> str:
    """The notes as stored in a plan. `reasons`: see `reasons_of`; `waiting` None: another plan stores it."""
    record: dict[str, Any] = {**notes.summary(), "reasons": dict(reasons)}
    if waiting is not None:
        record["waiting"] = [[w.folder, w.since] for w in waiting]
    return json.dumps(record, separators=(",", ":"))


def reasons_of(plan: CompactionPlan) -> dict[str, str]:
    """Why file groups (`partition/file id`) are in a phantombase plan, if there is another reason than log files."""
    return dict(json.loads((plan.extra_metadata or {}).get(NOTES, "{}")).get("reasons", {}))


def decode_waiting(text: str, instant: str) -> list[Waiting] | None:
    """Where to look besides what was written since the plan of that instant; None: its notes do not contain it."""
    try:
        found = json.loads(text).get("waiting")
        return None if found is None else [Waiting(folder=f, since=s or instant) for f, s in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise MalformedError(
            "unreadable notes in a compaction plan", path=NOTES, instant=instant, found=repr(error)
        ) from error
