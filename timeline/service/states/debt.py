"""What readers of a file group merge, until a compaction does (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from ...view.view import FileGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDebt:
    """A file group as a snapshot reads it; a pending compaction's slice and the one before are one."""

    partition: str
    file_id: str
    base_instant: str
    base_bytes: int
    log_files: int
    log_bytes: int
    pending_compaction: str | None


def debt_of(group: FileGroup) -> GroupDebt:
    """The debt of a group that has slices."""
    newest = group.slices[-1:] if group.pending_compaction is None else group.slices[-2:]
    return GroupDebt(
        partition=group.partition,
        file_id=group.file_id,
        base_instant=newest[0].base_instant,
        base_bytes=sum(s.base_bytes for s in newest),
        log_files=sum(len(s.logs) for s in newest),
        log_bytes=sum(s.log_bytes for s in newest),
        pending_compaction=group.pending_compaction,
    )
