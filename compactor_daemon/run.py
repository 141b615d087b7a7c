"""Runs every pending compaction of a table: checks first, then claim, then one instant after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import structlog

from compactor_daemon.compactor import (
    Compacted,
    claim,
    compact_instant,
    pending_instants,
    preflight,
    probe,
)
from compactor_daemon.execute import Progress as TaskProgress
from compactor_daemon.execute import Runner, open_runner
from compactor_daemon.limit import Limit
from compactor_daemon.options import AttemptOptions, ExecuteOptions, OutputOptions
from compactor_daemon.records import recorded_instants
from compactor_daemon.retire import finish_completed
from timeline.console import progress
from timeline.errors import ConflictError, LedgerError, PhantombaseError, StoppedError
from timeline.lock import table_lock
from timeline.metadata_table.drop import drop_metadata_table
from timeline.metadata_table.update import check_keepable
from timeline.table import Table

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactions:
    """What a run did, and the instants it left because its limit was reached; earliest first."""

    done: tuple[Compacted, ...] = ()
    left: tuple[str, ...] = ()


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
    limit: Limit | None = None,
) -> Compactions:
    """Executes pending compactions, earliest first. Everything that is refused is refused before the first write.

    ConflictError, LedgerError: an instant cannot be brought to its end now; it is parked, and the error is raised when
    the others are done.

    `runner`: one that is open already (a warm Spark session); otherwise one is opened as `execute` says.
    `limit`: once it is reached nothing new begins, and an instant whose slices are being staged is left to the next
    run, which adopts the finished ones. An instant that is decided is brought to its end.
    """
    limit = limit or Limit()
    table = Table.open(path)
    instants = pending_instants(table, instant)
    if not drop_metadata:
        check_keepable(table, moves_rows=False)
    if limit.closed or (not instants and not recorded_instants(table.storage)):
        return Compactions(left=instants)
    held = table_lock(table.storage.base_path, lock)
    results: list[Compacted] = []
    left: tuple[str, ...] = ()
    parked: PhantombaseError | None = None
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
            return Compactions()  # there was only something to clean up: no executor is started
        pending = pending_instants(table, instant)
        for number, one in enumerate(pending):
            with _reported(table, one) as report:
                try:
                    limit.check_begin()
                    done = compact_instant(
                        table,
                        one,
                        lock=held,
                        runner=running,
                        progress=report,
                        output=output,
                        options=attempt,
                        limit=limit,
                    )
                except StoppedError:
                    left = pending[number:]
                    break
                except (ConflictError, LedgerError) as error:
                    # Pending plans hold different file groups: what stops one of them is nothing to the others.
                    if parked is not None:
                        _log.warning("parked", instant=one, error=str(error))
                    parked = parked or error
                else:
                    results.append(done)
    if parked is not None:
        raise parked
    if left:
        _log.info("stopped_by_limit", done=len(results), left=left)
    return Compactions(done=tuple(results), left=left)


@contextmanager
def _reported(table: Table, instant: str) -> Iterator[TaskProgress]:
    """A progress bar over the file slices of an instant."""
    slices = len(table.compaction_plan(instant).operations)
    with progress(slices, f"compacting {instant}") as bar:
        shown = 0

        def report(done: int, total: int) -> None:
            nonlocal shown
            bar.advance(max(0, done - shown))
            shown = max(shown, done)

        yield report
