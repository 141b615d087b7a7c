"""Stages the log file that replaces some neighbouring log files of a slice.

    folded    one entry per key: a data block and a delete block; with more keys than fit into memory, one such pair for
              each part of the keys
    copied    every block unchanged, in order; used if a reader could see a difference after folding (`folds_exactly`)

All blocks carry the log compaction's instant, and name the instants that they replace, oldest first, as Hudi 1.2 writes
them. Readers take the blocks of one instant in file order, data and deletes alike (seen: 0.15.0, 1.2.0)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from phantombase.timeline.errors import LedgerError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.ledger import Ledger, total
from phantombase.timeline.format.log_block import BlockKind, Selection, scan_blocks, select_blocks
from phantombase.timeline.format.log_decode import content_of
from phantombase.timeline.format.log_encode import (
    BLOCK_BYTES,
    LogFormat,
    Parts,
    copied_block,
    data_block,
    delete_block,
    split_rows,
)
from phantombase.timeline.merge.log_fold import Winners
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_log import LogCounts, count_blocks, read_logs
from phantombase.timeline.merge.slice_merge import IdentityTally, SliceMerge
from phantombase.timeline.merge.slice_stream import LogTotals, copied_ledger, log_totals
from phantombase.timeline.merge.spilled_merge import LogSpill
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.log_blocks import slice_blocks
from phantombase.timeline.view.view import FileSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutput:
    """The log file that a log compaction makes from a slice's logs. `instant` and `version`: in its name. `fold`: write
    only the entries that win; otherwise copy all entries."""

    instant: str
    version: int
    fold: bool

    def name(self, file_id: str, token: str) -> LogFileName:
        return LogFileName(file_id=file_id, instant=self.instant, version=self.version, token=token)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The header fields of all blocks of the file, and how data blocks are written."""

    instant: str
    schema_text: str
    compacted: tuple[str, ...]
    log_format: LogFormat
    codec: str


def stage_log(
    storage: Storage,
    path: str,
    slice_: FileSlice,
    rules: SliceRules,
    log: LogOutput,
    *,
    instant: str,
    schema_text: str,
    codec: str,
) -> tuple[Ledger, LogCounts]:
    """Stages the log file of a log compaction at `instant`. `slice_` holds exactly the logs to merge. Keys and rows in
    the ledger are those of the new file. LedgerError: the file read back is not what was written."""
    selection = select_blocks(slice_blocks(storage, slice_), rules.visibility)
    parquet = not rules.merge.orders_by_text and all(b.kind is not BlockKind.AVRO_DATA for b in selection.blocks)
    head = _Head(
        instant=instant,
        schema_text=schema_text,
        compacted=tuple(dict.fromkeys(b.instant for b in selection.blocks)),
        log_format=LogFormat.PARQUET if parquet else LogFormat.AVRO,
        codec=codec,
    )
    if log.fold:
        ledger, counts = _fold(storage, path, slice_, rules, head)
    else:
        ledger, counts = _copy(storage, path, selection, rules, head)
    ledger.check(
        footer_rows_in=0,
        header_entries=counts.entries,
        footer_rows_out=ledger.rows_out,
        where=f"{slice_.partition}/{slice_.file_id}",
    )
    return ledger, counts


def _fold(storage: Storage, path: str, slice_: FileSlice, rules: SliceRules, head: _Head) -> tuple[Ledger, LogCounts]:
    ledgers, tally = [], IdentityTally()
    with ExitStack() as stack:
        file = stack.enter_context(staged_output(storage, path))
        logs, counts = read_logs(storage, slice_, rules, rules.schema, stack)
        parts = (logs.winners(n)[0] for n in range(len(logs))) if isinstance(logs, LogSpill) else (logs,)
        for won in parts:
            merge = SliceMerge(rules.merge, won, hashed=True)
            _, rows, hashes = merge.inserts()
            for block in _blocks(rows, won, slice_.partition, head):
                file.writelines(block)
            tally.inserted(hashes)
            ledgers.append(merge.ledger(0))
    out = _staged(storage, path, rules)
    ledger = replace(total(ledgers), rows_out=out.rows, identity=tally.finish(out.identity))
    if out.deletes != ledger.deletes_of_absent:
        raise LedgerError(
            "the ledger does not balance: deletes out = delete keys",
            path=path,
            expected=str(ledger.deletes_of_absent),
            found=str(out.deletes),
        )
    return ledger, counts


def _copy(
    storage: Storage, path: str, selection: Selection, rules: SliceRules, head: _Head
) -> tuple[Ledger, LogCounts]:
    with staged_output(storage, path) as file:
        for block in selection.blocks:
            with storage.open_input(block.path) as source:
                content = content_of(block, source)
                file.writelines(copied_block(block, content, instant=head.instant, compacted=head.compacted))
    taken, out = log_totals(storage, selection.blocks, rules), _staged(storage, path, rules)
    return copied_ledger(taken, out), count_blocks(selection, out.rows + out.deletes)


def _staged(storage: Storage, path: str, rules: SliceRules) -> LogTotals:
    """The totals of the staged file, read back."""
    with storage.open_input(path) as source:
        blocks = list(scan_blocks(source, path))
    return log_totals(storage, blocks, rules)


def _blocks(rows: pa.Table, won: Winners, partition: str, head: _Head) -> Iterator[Parts]:
    """The blocks with the winners of some keys: their rows, then the keys to delete. Deletes in natural order and
    deletes with an ordering value go to separate blocks."""
    common: dict[str, Any] = {"instant": head.instant, "schema_text": head.schema_text, "compacted": head.compacted}
    for part in split_rows(rows, BLOCK_BYTES):
        yield data_block(part, log_format=head.log_format, codec=head.codec, **common)
    for natural in (True, False):
        chosen = pa.array(~won.is_update & (won.natural == natural))
        keys = won.keys.filter(chosen)
        if len(keys):
            ordering = () if natural else tuple(values.filter(chosen) for values in won.ordering)
            paths = pa.repeat(pa.scalar(partition), len(keys))
            yield delete_block(keys, paths, ordering, hudi_0x=False, **common)
