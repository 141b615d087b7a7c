"""Cleans of Hudi that retained only what is later than the plan of a pending clustering.

Hudi's cleaner looks again only at what was requested since the cutoff of the last clean, and its archiver takes every
replace commit below that cutoff for cleaned. By commits, the cutoff stays below a pending clustering; by hours it does
not, and a clean by file versions has none. So a clustering that were completed then could be archived while the files
that it replaced are still there, and their rows would be there twice.
"""

from __future__ import annotations

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.read.windows import retained_since
from phantombase.timeline.table.table import Table

from .pending import PendingClustering


def is_passed(table: Table, timeline: Timeline, pending: PendingClustering) -> bool:
    """Whether a clean has passed the plan. MalformedError: the record of one cannot be read."""
    return retained_since(table, timeline) > pending.time


def refuse_passed(table: Table, timeline: Timeline, pending: PendingClustering) -> None:
    """ConflictError: a clean has passed the plan: it must be taken back, and a new one made."""
    if is_passed(table, timeline, pending):
        raise ConflictError(
            "a clean has passed the plan of a clustering while it was pending",
            path=table.storage.base_path,
            instant=pending.time,
            expected=f"cleans that retain commits from {pending.time} on",
            found=f"one that retained them from {retained_since(table, timeline)} on",
            todo="Run again: the plan is taken back, and a new one made. Where this comes again and again, cluster "
            "while Hudi's cleaner does not run, or let it retain commits.",
        )
