"""The group that an option is shown in on a help page (pure)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

_TITLES: Mapping[str, str] = {
    "TriggerOptions": "When a compaction is due",
    "UrgencyOptions": "When a compaction is due",
    "BoundOptions": "How much one plan holds",
    "ScheduleOptions": "Which file groups, and minor or major",
    "PickOptions": "Which file groups, and minor or major",
    "StrategyOptions": "Hudi's strategies",
    "OutputOptions": "Merging and writing base files",
    "ExecuteOptions": "Where file slices are compacted",
    "AttemptOptions": "Patience of an attempt",
    "RetryOptions": "Failures",
    "Rules": "Daemon",
    "ClockOptions": "Clock and time zone",
    "LakeFlags": "Tables of a lake",
    "ZooKeeperFlags": "ZooKeeper",
    "CleanOptions": "Cleaning",
    "ArchiveOptions": "Archiving",
    "MetadataOptions": "Metadata table",
    "StitchOptions": "Stitching",
    "WriteOptions": "Writes",
    "CompactionOptions": "Compaction after a write",
    "BackPressure": "Back-pressure",
}
"""By the dataclass that defines the option; its name, so that none is imported for a title alone."""


def group_of(kind: type, field: Field[Any]) -> str | None:
    """The title of the group; None: with the command's own options."""
    owner = next(k for k in kind.__mro__ if field.name in inspect.get_annotations(k))
    return _TITLES.get(owner.__name__)
