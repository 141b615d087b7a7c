"""Keeps the metadata table true through a change to the data table: prepared before the lock, told inside it.

check_keepable    before anything is touched: is there a partition we know nothing of?
prepare           outside the lock: the files are in their places; what is told of them is read there
tell              in the lock, before the data table's completed file
forget            in the lock, before an instant leaves the data table's timeline without completing
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

import fastavro
import structlog

from timeline.commit_metadata import CommitMetadata
from timeline.metadata_table import commit
from timeline.metadata_table.commit import EncodedRecords, commit_records, newest_schema
from timeline.metadata_table.files_records import Record, Sizes, files_of, files_records
from timeline.metadata_table.location import open_metadata_table
from timeline.metadata_table.partitions import FILES, Upkeep, upkeep
from timeline.table import Table
from timeline.table_config import save_table_config

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit does to the data table. `files`: those that are there from now on.

    `moves_rows`: see `upkeep`. `measured`: whether what the files hold is told too, and not only that they are there.
    """

    files: Sizes
    moves_rows: bool
    measured: bool = True

    @staticmethod
    def of(metadata: CommitMetadata) -> Change:
        """That of a delta commit, compaction or log compaction."""
        return Change(files=files_of(metadata), moves_rows=not metadata.compacted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What the metadata table is to be told. `upkeep`: of the partitions it was prepared for."""

    upkeep: Upkeep
    records: EncodedRecords
    schema_text: str


def check_keepable(table: Table, *, moves_rows: bool = True) -> None:
    """UnsupportedError: the metadata table has a partition that a change of ours would make wrong, see `upkeep`."""
    _upkeep(table, moves_rows)


def prepare(table: Table, change: Change) -> Update | None:
    """What a change means for the metadata table; None where that is off. Errors: see `check_keepable`, storage."""
    if not table.config.metadata_partitions:
        return None
    wanted = _upkeep(table, change.moves_rows)
    schema_text = newest_schema(open_metadata_table(table))
    records = {FILES: files_records(change.files)}
    return Update(upkeep=wanted, records=_encoded(records, schema_text), schema_text=schema_text)


def tell(table: Table, instant: str, change: Change, prepared: Update | None) -> None:
    """Tells the metadata table of a change at `instant`; the caller holds the table lock and loaded `table` inside it.

    Indexes that cannot be kept are taken out first. May be repeated: what an earlier try told is forgotten. What was
    `prepared` for other partitions than there are now is prepared anew.
    """
    if not table.config.metadata_partitions:
        return
    update = prepared
    if update is None or update.upkeep != _upkeep(table, change.moves_rows):
        update = prepare(table, change)
    assert update is not None
    if update.upkeep.dropped:
        save_table_config(table.storage, table.config.without_metadata_partitions(update.upkeep.dropped))
        _log.warning(
            "indexes_dropped",
            table=table.storage.base_path,
            instant=instant,
            indexes=update.upkeep.dropped,
            why="phantombase does not keep them",
            todo="A Hudi writer that has them enabled builds them anew.",
        )
    commit_records(table, instant, update.records, update.schema_text)


def forget(table: Table, instant: str) -> None:
    """Takes an instant that will not complete out of the metadata table, where there is one."""
    if table.config.metadata_partitions:
        commit.forget(table, instant)


def _upkeep(table: Table, moves_rows: bool) -> Upkeep:
    config = table.config
    where = table.storage.base_path
    return upkeep(config.metadata_partitions, config.metadata_partitions_inflight, moves_rows=moves_rows, where=where)


def _encoded(records: dict[str, list[tuple[str, Record]]], schema_text: str) -> dict[str, Sequence[tuple[str, bytes]]]:
    schema = fastavro.parse_schema(json.loads(schema_text))

    def encoded(record: Record) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, record)
        return out.getvalue()

    return {partition: [(key, encoded(r)) for key, r in keyed] for partition, keyed in records.items() if keyed}
