"""All options of a request for a compaction, for every entry point, and the combinations that contradict (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from ..errors import UsageError
from ..instants.timeline import Timeline
from ..instants.triggers import Trigger, TriggerOptions, TriggerStrategy, UrgencyOptions, triggered, unplanned
from ..option import idle_of, option, spelled_class
from .limits import BoundOptions
from .strategies import StrategyOptions
from .universal import Picking, PickOptions


@spelled_class
@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(TriggerOptions, UrgencyOptions, StrategyOptions, PickOptions, BoundOptions):
    """When to request a compaction (trigger, urgency), of what (strategy, picking), and how much of it (bounds).
    `incremental`: skip partitions that were not written since the last plan and in which it left nothing out; else all
    are examined. `exclude`: shell patterns of complete partition paths, or of `partition/file group id`.
    `where`: a predicate over partition columns, as filters of reads; other partitions are left out."""

    incremental: bool = option(True, "look only at partitions written since the last plan, and at what it left out")
    exclude: tuple[str, ...] = option(
        (),
        "leave out partitions, or single file groups as PARTITION/ID; may be repeated",
        flag="exclude_partition",
        metavar="PATTERN",
    )
    where: str | None = option(
        None, "only partitions of which this may hold, like \"day >= '2026-11-01'\"", metavar="PREDICATE"
    )

    def __post_init__(self) -> None:
        for options in (TriggerOptions, UrgencyOptions, StrategyOptions, PickOptions, BoundOptions):
            options.__post_init__(self)
        if self.where is not None:
            from ..filter.tree import parse_filter  # late: few plans have a predicate

            parse_filter(self.where)
        waits = [n for n in _WAITS if getattr(self, n) != getattr(ScheduleOptions, n)]
        if self.strategy is TriggerStrategy.ALWAYS and waits and self.freshness_s is None:
            what = "with the trigger always everything is due at once"
            raise UsageError(what, expected="another trigger", found=", ".join(waits).replace("_", "-"))
        if self.freshness_s is not None and self.picking is Picking.UNIVERSAL:
            raise UsageError(
                "freshness needs compactions that write base files",
                expected=f"picking {Picking.ALL.value}",
                found=f"picking {Picking.UNIVERSAL.value}, which may merge log files with each other only",
            )
        if self.target_io_bytes is not None and self.strategy_io_mb != StrategyOptions.strategy_io_mb:
            raise UsageError(
                "two limits of what a plan reads and writes",
                expected="target-io, or hoodie.compaction.target.io",
                found=f"{self.target_io_bytes} bytes and {self.strategy_io_mb} MB",
            )

    @property
    def idle(self) -> tuple[str, ...]:
        """Fields that differ from their defaults, and that a request does not use with the others."""
        at_once = self.strategy is TriggerStrategy.ALWAYS and self.picking is Picking.ALL
        unused = {"compaction_trigger": self.picking is Picking.ALL, "partition_idle_s": at_once}
        return (*super().idle, *idle_of(self, unused))

    def excluded_by(self, partition: str, file_id: str) -> str | None:
        """The pattern that leaves a file group out; None: none does."""
        names = (partition, f"{partition}/{file_id}".lstrip("/"))
        return next((p for p in self.exclude if any(fnmatchcase(name, p) for name in names)), None)


_WAITS = ("max_delta_commits", "max_delta_seconds", "urgency", "max_interval_s", "partition_urgency")
"""Options that say how long to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Whether to plan now: everything, or only urgent file groups; and why or why not."""

    everything: bool
    urgent: bool
    why: str

    def __bool__(self) -> bool:
        return self.everything or self.urgent


def due(
    timeline: Timeline,
    now: datetime,
    options: ScheduleOptions,
    *,
    left_out: bool = False,
    trigger: Trigger | None = None,
) -> Due:
    """Whether something is due, by the timeline alone. `now`: by the table; `left_out`: by the last request; `trigger`:
    what it says, where the timeline does not tell."""
    trigger = trigger or triggered(timeline, now, options)
    urgent = not trigger.fired and not trigger.held and options.fires(*unplanned(timeline, now), left_out=left_out)
    return Due(
        everything=trigger.fired, urgent=urgent, why=f"{trigger.why}, but some is urgent" if urgent else trigger.why
    )


PLAN_NOW = ScheduleOptions(strategy=TriggerStrategy.ALWAYS)
"""Every file group with logs, now."""
