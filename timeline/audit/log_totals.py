"""What log blocks hold, counted without merging: rows, deletes, and the sum of the rows' identities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ..codec.arrow_schema import project
from ..format.ledger import Identity, Ledger
from ..format.log_block import BlockKind, LogBlock
from ..format.log_decode import count_entries, decode_rows
from ..merge.rule import SliceRules
from ..merge.slice_merge import identity_columns, identity_sum
from ..storage.contract import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTotals:
    """Rows of data blocks, entries of delete blocks, and the sum of the rows' identities (see `identity_sum`)."""

    rows: int
    deletes: int
    identity: int


def log_totals(storage: Storage, blocks: Iterable[LogBlock], rules: SliceRules) -> LogTotals:
    """The totals of some blocks. Reads only the columns of data blocks that identify a row."""
    by_path: defaultdict[str, list[LogBlock]] = defaultdict(list)
    for block in blocks:
        by_path[block.path].append(block)
    schema = project(rules.schema, identity_columns(rules.schema))
    text, part_bytes = rules.float_text_in_logs, rules.part_bytes
    rows = deletes = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal rows, deletes
        for path, some in by_path.items():
            with storage.open_input(path) as source:
                for block in some:
                    count = count_entries(block, source)
                    if block.kind is BlockKind.DELETE:
                        deletes += count
                        continue
                    rows += count
                    partial = block.is_partial  # its columns identify the rows: Hudi writes the meta columns
                    yield from decode_rows(
                        block, source, schema, float_as_text=text, part_bytes=part_bytes, partial=partial
                    )

    identity = identity_sum(tables())
    return LogTotals(rows=rows, deletes=deletes, identity=identity)


def copied_ledger(taken: LogTotals, out: LogTotals) -> Ledger:
    """The ledger of log entries copied without merging: each counts as a separate, new key."""
    return Ledger(
        base_rows=0,
        untouched=0,
        kept=0,
        replaced=0,
        deleted=0,
        duplicate_hits=0,
        log_entries=taken.rows + taken.deletes,
        log_keys=taken.rows + taken.deletes,
        update_keys=taken.rows,
        update_keys_in_base=0,
        delete_keys_in_base=0,
        inserts=taken.rows,
        deletes_of_absent=taken.deletes,
        rows_out=out.rows,
        identity=Identity(base=0, removed=0, added=taken.identity, out=out.identity),
    )
