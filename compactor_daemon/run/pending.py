"""Runs every pending compaction of a table: checks all, takes the claim, then executes one instant after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import ClaimedError, LockError, PhantombaseError, SparkError, StoppedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.attempt_names import recorded_instants
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.metadata_table.drop import drop_metadata_table
from phantombase.timeline.metadata_table.update import check_keepable
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.storage_options import Given
from phantombase.timeline.table.table import Table

from ..attempt.abandoned import abandoned_uploads_aborted
from ..attempt.compact_instant import Compacted, compact_instant, pending_instants, preflight
from ..attempt.retire import finish_completed, littered_instants
from ..claims.doorbell import claim_all, claim_one
from ..execution.executor_choice import ExecutorChoice, check_memory
from ..execution.machine import this_machine
from ..execution.open_runner import log_choice, open_runner
from ..execution.runners import Runner, all_storage_options
from ..options import AttemptOptions, ExecuteOptions
from ..time_limit import Limit

_log = get_logger()


InstantProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with (instant, file slices done, file slices in all) while an instant's file slices are staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactions:
    """What a run did, and the instants that it left because its limit was reached; earliest first.

    `executors`: what ran the file slices, and why; empty if nothing had to be merged, or a runner was given.
    """

    done: tuple[Compacted, ...] = ()
    left: tuple[str, ...] = ()
    executors: tuple[ExecutorChoice, ...] = ()


def run_compactions(
    path: str | Table,
    *,
    instant: str | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    drop_metadata: bool = False,
    output: OutputOptions,
    execute: ExecuteOptions,
    attempt: AttemptOptions,
    runner: Runner | None = None,
    limit: Limit | None = None,
    clock: ClockOptions | None = None,
    storage_options: Given = None,
    progress: InstantProgress = lambda *_: None,
) -> Compactions:
    """Executes pending compactions, earliest first. Everything that can be refused is refused before the first write.

    An instant that fails is left pending, and the first such error is raised after the other instants are done. If
    every instant is refused, the table is not changed. `drop_metadata`: the metadata table is turned off before
    anything else, also where nothing is pending.

    `runner`: a runner that is open already (a warm Spark session); without one, `execute` says which is opened.
    `limit`: once it is reached no instant begins, and an instant whose slices are being staged is left to the next run,
    which adopts the finished slices. A decided instant is still brought to its end. `clock`: see `Table`. `progress` is
    called several times a second with the progress of an instant. `storage_options`: see `all_storage_options`.
    """
    limit = limit or Limit()
    if runner is None and not execute.on_cluster:
        check_memory(output.memory_limit, this_machine())
    if isinstance(path, Table):
        table = path.reload()
    else:
        table = Table.open(path, all_storage_options([path], storage_options, execute, runner))
    table = table.with_clock(clock or ClockOptions())
    held = table_lock(table.storage, lock, sole_writer=sole_writer)
    if drop_metadata and not limit.closed:
        table = drop_metadata_table(table, held)  # a way out of its own: nothing need be pending, nor be executable
    seen = table.still()
    instants = pending_instants(seen, instant)
    check_keepable(table, moves_rows=False)
    if limit.closed or (not instants and not recorded_instants(seen.storage)):
        return Compactions(left=instants)
    run = _Run(refused={})
    with ExitStack() as open_:
        if instants:
            # Before the checks: Spark takes longer to start than the checks take.
            running = runner or open_.enter_context(open_runner(execute, run.note_executor))
            with _proved(table.storage):
                run.refused = preflight(seen, instants)
                if len(run.refused) == len(instants) and not littered_instants(table):
                    raise next(iter(run.refused.values()))
        table.storage.prove()
        open_.enter_context(abandoned_uploads_aborted(table.storage))
        open_.enter_context(claim_all(table, attempt.claim_wait_s))
        finished: Table | None = None
        with run.parking("what earlier runs left"):
            finished = finish_completed(table, held)
        if instants:  # without instants there was only litter to clean up, and no executor was started

            def compact(one: str) -> Compacted:
                limit.check_begin()
                with claim_one(table, one, attempt.claim_wait_s):
                    return compact_instant(
                        table,
                        one,
                        lock=held,
                        runner=running,
                        progress=partial(progress, one),
                        output=output,
                        options=attempt,
                        limit=limit,
                    )

            run.each(pending_instants(finished or table.still(), instant), compact)
    if run.parked is not None:
        raise run.parked
    if run.left:
        _log.info("stopped_by_limit", done=len(run.done), left=run.left)
    return Compactions(done=tuple(run.done), left=run.left, executors=tuple(run.executors))


@contextmanager
def _proved(storage: Storage) -> Iterator[None]:
    """Tries the storage's promises while the body runs, where that takes requests; the body's error is the one raised.

    On a file system nothing is tried before the body: no folder may appear in a table that is refused.
    """
    if storage.is_file_system:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        proved = pool.submit(storage.prove)
        yield
    proved.result()


@dataclass
class _Run:
    """The results of the instants. `parked`: the first error; an error of one instant does not stop the others."""

    refused: dict[str, PhantombaseError]
    done: list[Compacted] = field(default_factory=list)
    executors: list[ExecutorChoice] = field(default_factory=list)
    left: tuple[str, ...] = ()
    parked: PhantombaseError | None = None

    def note_executor(self, choice: ExecutorChoice) -> None:
        """Keeps the choice for a plan, and logs it if it is another than the last one."""
        if choice not in self.executors:
            self.executors.append(choice)
            log_choice(choice)

    def each(self, pending: tuple[str, ...], compact: Callable[[str], Compacted]) -> None:
        """Executes the instants one after the other. Pending plans never share a file group."""
        for number, one in enumerate(pending):
            try:
                with self.parking(one):
                    if one in self.refused:
                        raise self.refused[one]
                    self.done.append(compact(one))
            except StoppedError:
                self.left = pending[number:]
                break

    @contextmanager
    def parking(self, what: str) -> Iterator[None]:
        """Keeps an error for the end. Raises at once if the limit is reached, or if Spark or the lock is missing.

        An instant that another process has claimed stops no other.
        """
        try:
            yield
        except PhantombaseError as error:
            if isinstance(error, _ENDS_ALL) and not isinstance(error, ClaimedError):
                raise
            if self.parked is not None:
                _log.warning("parked", what=what, error=str(error))
            self.parked = self.parked or error


_ENDS_ALL = (StoppedError, SparkError, LockError)
