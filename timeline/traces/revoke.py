"""Command blocks of version 6: blocks that a pending instant appended to file slices are revoked, not deleted."""

from __future__ import annotations

from ..errors import ConflictError
from ..format.file_name import LogFileName
from ..format.log_block import BlockKind, HeaderKey, scan_blocks
from ..format.log_encode import rollback_block
from ..format.rollback_plan import RevokedSlice
from ..storage.folders import join
from ..table.table import Table
from .find import data_files

_TOKEN = "1-0-1"  # as in Hudi's own command blocks
_TRIES = 20


def revoke(table: Table, slice_: RevokedSlice, target: str) -> tuple[tuple[str, str], int] | None:
    """Puts a command block after the revoked log files of a slice, once; returns its file and that file's size (bytes).

    None for a slice whose logs are all gone. ConflictError: other processes took the file name at each try.

    The block's own instant is its target. Hudi uses the rollback's instant, which is greater than those of writes that
    ran meanwhile: Hudi 0.15 stops reading a slice there and hides their rows (hudi-format.md 6.2).
    """
    for _ in range(_TRIES):
        logs = [
            (name, entry.size)
            for entry, name in data_files(table, slice_.partition)
            if isinstance(name, LogFileName) and (name.file_id, name.instant) == (slice_.file_id, slice_.base_instant)
        ]
        if not logs:
            return None
        behind = max((n.version for n, _ in logs if str(n) in slice_.logs), default=0)
        for name, size in logs:
            if name.version > behind and revokes(table, join(slice_.partition, str(name)), target):
                return (slice_.partition, str(name)), size
        version = max(name.version for name, _ in logs) + 1
        made = LogFileName(file_id=slice_.file_id, instant=slice_.base_instant, version=version, token=_TOKEN)
        block = rollback_block(target, target)
        if table.storage.put_if_absent(join(slice_.partition, str(made)), block):
            return (slice_.partition, str(made)), len(block)
    raise ConflictError(
        "no free name for a log file: other processes took it at each try",
        path=slice_.partition,
        found=f"{_TRIES} tries in file group {slice_.file_id}",
        todo="Run again.",
    )


def revokes(table: Table, path: str, target: str) -> bool:
    """Whether a log file has a command block that revokes the blocks of `target`."""
    blocks = scan_blocks(table.storage.open_input(path), path)
    return any(b.kind is BlockKind.COMMAND and b.headers.get(HeaderKey.TARGET_INSTANT_TIME) == target for b in blocks)
