"""A table at a glance: its settings, its instants, and what is known about the pending ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from ..errors import PhantombaseError
from ..format.compaction_plan import CompactionPlan, decode_plan
from ..format.instant import MERGES, Instant, State
from ..storage.folders import HOODIE
from ..table.table import Table
from ..terminal.plain import Row
from .instants import instant_rows, pending_rows, table_facts


def overview(table: Table, *, archived: bool = False, pending_only: bool = False) -> Row:
    """Settings, instants and pending instants.

    MissingFileError: a writer moved a file meanwhile, see `consistent`.
    """
    timeline = table.load_timeline(archived=archived)
    open_instants = [i for i in timeline.instants if not i.completed]
    now_ms = time.time_ns() // 1_000_000
    beats = {i.requested_time: table.storage.find(f"{HOODIE}/.heartbeat/{i.requested_time}") for i in open_instants}
    ages = {t: max(0, now_ms - beat.modified_ms) / 1000 for t, beat in beats.items() if beat is not None}
    return {
        "table": table_facts(table.config, table.storage.base_path, _metadata_commits(table)),
        "pending_only": pending_only,
        "instants": instant_rows(timeline, pending_only=pending_only),
        "pending": pending_rows(timeline, table.now(), dict(_plans(table, open_instants)), ages),
    }


def _metadata_commits(table: Table) -> int | PhantombaseError | None:
    """Delta commits of the metadata table since its last compaction, or the error: `show` prints the rest anyway."""
    if not table.config.metadata_partitions:
        return None
    from ..metadata_table.compactions import commits_to_compact  # late: a start is shorter without

    try:
        return commits_to_compact(table)
    except PhantombaseError as error:
        return error


def _plans(table: Table, instants: list[Instant]) -> Iterator[tuple[str, CompactionPlan | PhantombaseError]]:
    """The plan of each pending compaction, or the error when it is unreadable: `show` prints the rest anyway."""
    for instant in instants:
        if instant.action not in MERGES:
            continue
        path = table.instant_path(replace(instant, state=State.REQUESTED, file_name=""))
        try:
            yield instant.requested_time, decode_plan(table.storage.read(path), path)
        except PhantombaseError as error:
            yield instant.requested_time, error
