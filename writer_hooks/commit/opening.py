"""The first files of a write on the timeline: its action, and what its requested and inflight file contain (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.replace_request import encode_replace_request
from phantombase.timeline.locks.heartbeat import EXPIRY_S

from ..engine.engine import RowCounts
from ..options import Operation

DELTA_COMMIT, REPLACE_COMMIT = "deltacommit", "replacecommit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The action of a write, and the content of its requested and inflight file.

    `expiry_s`: the write counts as dead after so long without a heartbeat: Hudi's default, which others may have been
    told, or less.
    """

    action: str = DELTA_COMMIT
    requested: bytes = b""
    inflight: bytes = b""
    expiry_s: float = EXPIRY_S


def action_of(operation: Operation) -> str:
    """The action under which a write is on the timeline."""
    return REPLACE_COMMIT if operation.replaces else DELTA_COMMIT


def opening_of(operation: Operation, layout: Layout, counts: RowCounts) -> Opening:
    """How a write begins. `counts`: of its rows.

    As in Hudi, a replacecommit is requested without a plan, and its inflight file says how many rows each partition
    gets.
    """
    if not operation.replaces:
        return Opening()
    rows = Counter[str]()
    for (partition, _), count in counts.items():
        rows[partition] += count
    profile = CommitMetadata(
        partition_to_write_stats={} if operation is Operation.DELETE_PARTITION else _profile(rows),
        operation_type=operation.value,
    )
    return Opening(
        action=REPLACE_COMMIT,
        requested=encode_replace_request(operation.value, names_deletes=layout.has_completion_times),
        inflight=encode_commit(profile, layout.encoding),
    )


def _profile(rows: Mapping[str, int]) -> dict[str, tuple[WriteStat, ...]]:
    return {p: (WriteStat(file_id="", prev_commit="null", num_inserts=n),) for p, n in rows.items()}
