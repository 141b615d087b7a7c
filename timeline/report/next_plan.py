"""How far each trigger of a compaction is (pure)."""

from __future__ import annotations

from datetime import datetime

from ..instants.timeline import Timeline
from ..planning.triggers import TriggerOptions, TriggerStrategy, triggered
from ..terminal.plain import Row

_SHOWN = (
    TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST,
    TriggerStrategy.NUM_COMMITS,
    TriggerStrategy.TIME_ELAPSED,
)
"""Triggers that need no other; those that combine them say nothing new."""


def next_plan_row(timeline: Timeline, now: datetime, options: TriggerOptions) -> Row:
    """How far each trigger is, and the one that is asked. `now`: in the table's zone."""
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
