"""What the commands show of a table, as calls: the same names, options and results, as values. Nothing is changed.

status, check                      pending work and why it waits; what needs care
savepoints, history, replay        what is kept, what was done, what other settings would have done
audit, validate                    whether what was done is as it should be

`table` is a path, a URL or a `Table`; `storage_options`: see `read`. For what changes a table see `services`."""

from __future__ import annotations

import os

import pyarrow as pa

from .api import AnyTable, Given, opened
from .compactor_daemon.daemon.past_writes import Replayed, ReplayOptions
from .compactor_daemon.daemon.replay import replay_table
from .compactor_daemon.options import AttemptOptions
from .compactor_daemon.services.options import read_policies
from .compactor_daemon.status.check import CheckMeans, TableCheck, check_table, full_status
from .compactor_daemon.status.pending import StatusOptions
from .compactor_daemon.status.status import TableStatus
from .compactor_daemon.undo import savepoint as kept
from .compactor_daemon.undo.savepoint import KeptSavepoint
from .timeline.audit.audit import InstantAudit
from .timeline.audit.clusterings import audits
from .timeline.audit.validate import Validated, validated
from .timeline.dashboard.verdict import CheckOptions
from .timeline.instants.triggers import TriggerOptions
from .timeline.option import path_text, spelled
from .timeline.planning.options import ScheduleOptions
from .timeline.shown import Results
from .timeline.storage.storage_options import StorageOptions
from .timeline.table.history import PriceOptions, history_rows, history_table, read_history


@spelled
def savepoints(table: AnyTable, *, storage_options: Given = None) -> tuple[KeptSavepoint, ...]:
    """The savepoints, earliest first."""
    return Results(kept.savepoints(opened(table, storage_options).snapshot(cached=False)))


@spelled
def status(
    table: AnyTable,
    options: StatusOptions | None = None,
    *,
    trigger: TriggerOptions | None = None,
    brief: bool = False,
    storage_options: Given = None,
) -> TableStatus:
    """The pending compactions: which process works on each by the heartbeats in storage, and why the others wait; with
    the verdict of `check`, and the outlook: the next plan by `trigger`, logs in no plan, what a clean could remove.
    `brief`: without what needs the files."""
    found, chosen = opened(table, storage_options), options or StatusOptions()
    means = CheckMeans(trigger=trigger or TriggerOptions(), clock=found.clock, status=chosen, brief=brief)
    return full_status(found, means)


@spelled
def check(
    table: str | os.PathLike[str],
    options: CheckOptions | None = None,
    *,
    trigger: TriggerOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Given = None,
) -> TableCheck:
    """What needs care on a table, each finding with the command that mends it; never an error of the table. `trigger`:
    when a compaction is due. `attempt`: of the daemons."""
    path, known = path_text(table), StatusOptions(attempt=attempt or AttemptOptions())
    means = CheckMeans(storage=StorageOptions.of(storage_options), trigger=trigger or TriggerOptions(), status=known)
    return check_table(path, path, options or CheckOptions(), means)


@spelled
def replay(
    table: AnyTable,
    options: ScheduleOptions | None = None,
    how: ReplayOptions | None = None,
    *,
    best: bool = False,
    storage_options: Given = None,
) -> Replayed:
    """What compactions would have cost under other settings, and how old rows in no base file would have been, by the
    table's own history of commits. `best`: many settings are tried, for the freshness of `options`. UsageError: no
    history, or no freshness to keep."""
    at = opened(table, storage_options, reading=True)
    return replay_table(at, read_policies(at.storage).over(options or ScheduleOptions()), how, best=best)


@spelled
def history(*tables: AnyTable, prices: PriceOptions | None = None, storage_options: Given = None) -> pa.Table:
    """The work that was done on tables, a row for each compaction, clustering, clean and so on: why it ran, what it
    took and what was expected, who did it, and with `prices` what it costs. In the order in which the work ended."""
    histories = [read_history(opened(one, storage_options, reading=True).storage) for one in tables]
    rows = [row for one in histories for row in history_rows(one, prices)]
    return history_table(sorted(rows, key=lambda row: (row["ended_ms"], row["id"])))


@spelled
def audit(table: AnyTable, instant: str | None = None, *, storage_options: Given = None) -> tuple[InstantAudit, ...]:
    """Verifies completed compactions and clusterings of phantombase again, from the files that still exist: all of
    them, or one `instant`. UsageError: it left no ledger."""
    found = opened(table, storage_options)
    return Results(verify(found, one) for one, verify in audits(found, instant).items())


@spelled
def validate(table: AnyTable, *, storage_options: Given = None) -> Validated:
    """Compares completed writes, the metadata table, and the times of version 6 with what is on storage."""
    return validated(opened(table, storage_options))
