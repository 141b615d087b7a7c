"""Runs every pending compaction of a table: checks first, then claim, then one instant after the other."""

from __future__ import annotations

import os
from contextlib import ExitStack

from compactor_daemon.compactor import (
    Compacted,
    claim,
    compact_instant,
    pending_instants,
    preflight,
    probe,
)
from compactor_daemon.execute import Runner, open_runner
from compactor_daemon.options import AttemptOptions, ExecuteOptions, OutputOptions
from compactor_daemon.records import recorded_instants
from compactor_daemon.retire import finish_completed
from timeline.console import Progress, progress
from timeline.layout import RECORDS
from timeline.lock import FileLock, parse_lock
from timeline.schedule import drop_metadata_table, refuse_metadata_table
from timeline.table import Table


def run_compactions(
    path: str,
    *,
    instant: str | None = None,
    lock: str | None = None,
    drop_metadata: bool = False,
    output: OutputOptions,
    execute: ExecuteOptions,
    attempt: AttemptOptions,
    runner: Runner | None = None,
) -> list[Compacted]:
    """Executes pending compactions, earliest first. Everything that is refused is refused before the first write.

    `runner`: one that is open already (a warm Spark session); otherwise one is opened as `execute` says.
    """
    table = Table.open(path)
    instants = pending_instants(table, instant)
    if not drop_metadata:
        refuse_metadata_table(table)
    if not instants and not recorded_instants(table.storage):
        return []
    held = (
        parse_lock(lock) if lock is not None else FileLock(os.path.join(table.storage.base_path, RECORDS, "table.lock"))
    )
    results = []
    with ExitStack() as open_:
        if instants:
            # Before the checks: what Spark needs to start is longer than they take.
            running = runner or open_.enter_context(open_runner(execute))
            preflight(table, instants)
        probe(table.storage)
        open_.enter_context(claim(table, attempt.claim_wait_s))
        table = drop_metadata_table(table, held) if drop_metadata else table.reload()
        finish_completed(table, output)
        if not instants:
            return []  # there was only something to clean up: no executor is started
        for one in pending_instants(table, instant):
            slices = len(table.compaction_plan(one).operations)
            with progress(slices, f"compacting {one}") as bar:
                shown = 0

                def report(done: int, total: int, bar: Progress = bar) -> None:
                    nonlocal shown
                    bar.advance(max(0, done - shown))
                    shown = max(shown, done)

                results.append(
                    compact_instant(
                        table, one, lock=held, runner=running, progress=report, output=output, options=attempt
                    )
                )
    return results
