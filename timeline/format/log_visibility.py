"""Which blocks of a file slice count, and in which order (pure).

The rules are those of Hudi 1.x for every table version. On version 6 they deliberately differ from 0.15.0 in two
points. A block newer than the query instant is skipped; 0.15 stops reading the slice there and so hides completed rows
after a rollback. A log-compacted block takes the place of its newest original; 0.15's default scan applies it after all
other blocks, later updates included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from .log_block import BlockKind, HeaderKey, LogBlock

_DATA_KINDS = frozenset({BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA, BlockKind.HFILE_DATA, BlockKind.DELETE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Which instants' blocks are visible to one reader. `latest`: blocks of later instants are hidden. `hidden`: blocks
    of these instants never count. `completed` / `pending`: instants of the active timeline. `start`: first instant of
    the active timeline; earlier instants that are in neither set were archived and count as completed. `by_file`: the
    view has already dropped files of instants that are not completed (v8+), so blocks are judged by `latest` and
    `hidden`, and hidden while their instant is pending: Hudi names log files of new consistent-hashing buckets after
    the resize, and not after the delta commit."""

    latest: str
    completed: frozenset[str]
    pending: frozenset[str]
    start: str
    by_file: bool
    hidden: frozenset[str] = frozenset()

    def is_committed(self, instant: str) -> bool:
        """Whether an instant is completed, or older than the active timeline and not pending in it."""
        return instant in self.completed or (instant not in self.pending and instant < self.start)


class Skipped(Enum):
    """Why a block does not count."""

    CORRUPT = "corrupt"
    NOT_YET = "newer than the query instant"
    UNCOMMITTED = "uncommitted"
    ROLLED_BACK = "rolled back"
    LOG_COMPACTED = "replaced by log compaction"
    CHANGE_DATA = "change data"
    NOT_NAMED = "another attempt's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The blocks to merge, oldest first, and the blocks left out, each with its reason."""

    blocks: tuple[LogBlock, ...]
    skipped: tuple[tuple[LogBlock, Skipped], ...]


def select_blocks(blocks: Iterable[LogBlock], visibility: Visibility) -> Selection:
    """Divides a slice's blocks, given in log order, into those that count and those that do not."""
    kept: list[LogBlock] = []
    skipped: list[tuple[LogBlock, Skipped]] = []
    for block in blocks:
        if block.kind is BlockKind.CORRUPT:
            skipped.append((block, Skipped.CORRUPT))
        elif not block.is_named:
            skipped.append((block, Skipped.NOT_NAMED))
        elif block.kind is BlockKind.CDC_DATA:
            skipped.append((block, Skipped.CHANGE_DATA))
        elif block.kind is BlockKind.COMMAND:
            # A rollback revokes earlier blocks of its target; later blocks of the target are from another attempt.
            target = block.header(HeaderKey.TARGET_INSTANT_TIME)
            skipped += [(b, Skipped.ROLLED_BACK) for b in kept if b.instant == target]
            kept = [b for b in kept if b.instant != target]
        elif (reason := _hidden(block, visibility)) is not None:
            skipped.append((block, reason))
        else:
            assert block.kind in _DATA_KINDS
            kept.append(block)
    ordered, replaced = _apply_log_compaction(kept)
    return Selection(blocks=ordered, skipped=(*skipped, *((b, Skipped.LOG_COMPACTED) for b in replaced)))


def _hidden(block: LogBlock, visibility: Visibility) -> Skipped | None:
    if block.instant > visibility.latest or block.instant in visibility.hidden:
        return Skipped.NOT_YET
    if block.instant in visibility.pending if visibility.by_file else not visibility.is_committed(block.instant):
        return Skipped.UNCOMMITTED
    return None


def _apply_log_compaction(blocks: list[LogBlock]) -> tuple[tuple[LogBlock, ...], tuple[LogBlock, ...]]:
    """Puts each log-compacted block in the place of the newest block that it replaces, and drops the replaced blocks.
    Blocks are grouped by instant in order of first appearance. A compacted block may itself have been compacted again:
    the chain is followed to its end. A compacted block is dropped if none of its originals is present, as in Hudi: then
    a compaction that was requested while the log compaction was pending has merged the originals, and the blocks after
    them, into the base file of the slice."""
    by_instant: dict[str, list[LogBlock]] = {}
    replaced_by: dict[str, str] = {}
    for block in blocks:
        by_instant.setdefault(block.instant, []).append(block)
        for original in block.compacted_instants:
            replaced_by[original] = block.instant
    compacted = {block.instant for block in blocks if block.compacted_instants}
    plain = [instant for instant in by_instant if instant not in compacted]
    newest_first = dict.fromkeys(_final(instant, replaced_by) for instant in reversed(plain))
    kept = tuple(b for instant in reversed(newest_first) for b in by_instant[instant])
    dropped = tuple(b for instant, group in by_instant.items() if instant not in newest_first for b in group)
    return kept, dropped


def _final(instant: str, replaced_by: dict[str, str]) -> str:
    """The end of the chain of log compactions that an instant's blocks went into."""
    seen = {instant}
    while (after := replaced_by.get(instant)) is not None and after not in seen:
        instant = after
        seen.add(instant)
    return instant
