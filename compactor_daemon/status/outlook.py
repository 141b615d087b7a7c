"""What lies ahead of a table: logs that no plan holds yet, when the next plan is due, and what a clean could remove.

The rows are for JSON and terminal alike. Nothing is changed. What cannot be found out is `problem`, and the rest is
still shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.planning.triggers import TriggerOptions
from phantombase.timeline.report.overview import next_plan_row
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.terminal.plain import Row
from phantombase.timeline.view.view import TableView, is_replaced, latest_slice

from ..cleaning.facts import load_whole
from ..cleaning.would_clean import would_clean


def outlook(table: Table, trigger: TriggerOptions, clean: CleanOptions) -> Row:
    """All of it. `trigger`, `clean`: the options with which plans are requested, and cleans run."""
    looked = cache(lambda: consistent(lambda: _look(table)))
    return {
        "backlog": _known(lambda: backlog_row(looked()[1])),
        "next_plan": _known(lambda: next_plan_row(table.still().load_timeline(), table.now(), trigger)),
        "cleanable": _known(lambda: _cleanable(*looked(), clean)),
    }


def _look(table: Table) -> tuple[Table, TableView]:
    seen = table.still()
    return seen, load_whole(seen)


def _known(snapshot: Callable[[], Row]) -> Row:
    try:
        return {**snapshot(), "problem": None}
    except PhantombaseError as error:
        return {"problem": str(error)}


def backlog_row(view: TableView) -> Row:
    """Log files that no pending plan holds: each read merges them until they are compacted (pure).

    MissingFileError, MalformedError: a file is lost or damaged.
    """
    for flaw in (f for group in view.groups if not is_replaced(group, view.facts) for f in group.flaws):
        raise flaw.error()
    newest = [
        found
        for group in view.groups
        if group.pending_compaction is None
        and not is_replaced(group, view.facts)
        and (found := latest_slice(group)) is not None
        and found.logs
    ]
    return {
        "file_groups": len(newest),
        "log_files": sum(len(one.logs) for one in newest),
        "log_bytes": sum(one.log_bytes for one in newest),
    }


def _cleanable(table: Table, view: TableView, options: CleanOptions) -> Row:
    found = would_clean(table, view, options)
    return {"files": found.files, "bytes": found.bytes, "why": found.why}
