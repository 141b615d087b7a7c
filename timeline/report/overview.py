"""An overview of a table as plain dicts: settings, instants, pending instants, and the progress of each trigger.

Sizes are bytes, instants are digit strings as on disk; None means unknown or not applicable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from ..errors import PhantombaseError, UnsupportedError
from ..format.compaction_plan import TOTAL_LOG_FILES_SIZE, CompactionPlan, decode_plan
from ..format.instant import MERGES, Instant, State
from ..format.table_config import TableConfig
from ..instants.timeline import Timeline
from ..instants.triggers import TriggerOptions, TriggerStrategy, triggered
from ..locks.heartbeat import EXPIRY_S
from ..storage.folders import HOODIE
from ..table.table import Table
from ..terminal.text_table import Row, moment

_SHOWN = (
    TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST,
    TriggerStrategy.NUM_COMMITS,
    TriggerStrategy.TIME_ELAPSED,
)
"""Elementary triggers; the others combine them and add no information."""


def next_plan_row(timeline: Timeline, now: datetime, options: TriggerOptions) -> Row:
    """The progress of each trigger, and of the configured one. `now`: in the table's zone."""
    asked = triggered(timeline, now, options)
    rows = []
    for strategy in _SHOWN:
        one = TriggerOptions(
            strategy=strategy,
            max_delta_commits=options.max_delta_commits,
            max_delta_seconds=options.max_delta_seconds,
        )
        found = triggered(timeline, now, one)
        rows.append({"trigger": strategy.value, "due": found.fired, "why": found.why})
    return {"trigger": options.strategy.value, "due": asked.fired, "why": asked.why, "triggers": rows}


def table_facts(config: TableConfig, path: str, metadata_commits: int | PhantombaseError | None = None) -> Row:
    """The settings of the table.

    `metadata_commits`: delta commits of its metadata table since the last compaction there, or why that is unknown.
    """
    return {
        "name": config.name,
        "database": config.database or None,
        "path": path,
        "version": config.version,
        "type": config.properties["hoodie.table.type"],
        "merge_mode": _merge_mode(config),
        "ordering_fields": list(config.ordering_fields),
        "record_key_fields": list(config.record_key_fields),
        "partition_fields": list(config.partition_fields),
        "metadata_table": bool(config.metadata_partitions),
        "metadata_partitions": list(config.metadata_partitions),
        "metadata_commits_since_compaction": metadata_commits if isinstance(metadata_commits, int) else None,
        "metadata_problem": str(metadata_commits) if isinstance(metadata_commits, PhantombaseError) else None,
        "timezone": "UTC" if config.utc_timezone else "LOCAL",
    }


def _merge_mode(config: TableConfig) -> str:
    if not config.has_logs:
        return "none: no log files"
    try:
        config.check_mergeable()
    except UnsupportedError as error:
        return str(error)
    return config.merge_mode.value


def instant_rows(timeline: Timeline, *, pending_only: bool = False) -> list[Row]:
    """The loaded instants, archived ones included, by requested time."""
    active = {i.identity for i in timeline.instants}
    # Hudi archives by copying, then deleting: between the two steps an instant is in both places.
    archived = [i for i in timeline.archived if i.identity not in active]
    both = [*((i, True) for i in archived), *((i, False) for i in timeline.instants)]
    both.sort(key=lambda pair: (pair[0].requested_time, pair[0].family))
    return [_instant_row(i, gone, timeline) for i, gone in both if not (pending_only and i.completed)]


def _instant_row(instant: Instant, archived: bool, timeline: Timeline) -> Row:
    legacy = timeline.legacy_completions.get(instant.requested_time) if instant.completed else None
    return {
        "instant": instant.requested_time,
        "action": instant.action,
        "state": instant.state.name.lower(),
        "completion_time": instant.completion_time or legacy,
        "archived": archived,
    }


def pending_rows(
    timeline: Timeline,
    now: datetime,
    plans: Mapping[str, CompactionPlan | PhantombaseError],
    heartbeat_ages_s: Mapping[str, float],
) -> list[Row]:
    """The pending instants, oldest first, each with its age and what is known about its process.

    `now` is in the zone of the table's instants. `plans`: of compactions and log compactions, by requested time;
    an unreadable plan becomes the `problem` of its row and does not hide the other rows.
    """
    return [
        _pending_row(i, now, plans.get(i.requested_time), heartbeat_ages_s.get(i.requested_time))
        for i in timeline.instants
        if not i.completed
    ]


def _pending_row(
    instant: Instant, now: datetime, plan: CompactionPlan | PhantombaseError | None, heartbeat_s: float | None
) -> Row:
    since = moment(instant.requested_time)
    return {
        "instant": instant.requested_time,
        "action": instant.action,
        "state": instant.state.name.lower(),
        "age_s": None if since is None else round((now.replace(tzinfo=None) - since).total_seconds(), 3),
        "plan": _plan_summary(plan) if isinstance(plan, CompactionPlan) else None,
        "heartbeat": heartbeat_state(heartbeat_s),
        "heartbeat_age_s": None if heartbeat_s is None else round(heartbeat_s, 3),
        "problem": str(plan) if isinstance(plan, PhantombaseError) else None,
    }


def heartbeat_state(age_s: float | None) -> str:
    """'none', 'fresh' or 'stale'."""
    if age_s is None:
        return "none"
    return "fresh" if age_s <= EXPIRY_S else "stale"


def _plan_summary(plan: CompactionPlan) -> Row:
    sizes = [(o.metrics or {}).get(TOTAL_LOG_FILES_SIZE) for o in plan.operations]
    known = [int(size) for size in sizes if size is not None]
    return {
        "file_groups": len(plan.operations),
        "log_files": sum(len(o.delta_file_paths) for o in plan.operations),
        "log_bytes": sum(known) if len(known) == len(sizes) else None,
    }


def overview(table: Table, *, archived: bool = False, pending_only: bool = False) -> Row:
    """Settings, instants and pending instants.

    MissingFileError: a writer moved a file during the read, see `from_one_snapshot`.
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
    from ..metadata_table.valid_instants import commits_to_compact  # imported here: the process starts faster

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
