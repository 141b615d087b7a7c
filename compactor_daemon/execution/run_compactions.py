"""Runs every pending compaction of a table, once, or in a thread concurrently with an ingest job.

Once: check all, take the claim, then execute one instant after the other. In an ingest job:

    with AsyncCompaction(path, SparkRunner(RunningSpark(session.sparkContext), pool="compaction")) as compaction:
        for batch in batches:
            write(batch)            # may request a compaction
            compaction.notify()     # ask for plans now instead of at the next poll

Two of these threads on one table, or one and a `compactor-daemon`, take turns by the table's claim."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    ClaimedError,
    LockError,
    PausedError,
    PhantombaseError,
    SparkError,
    StoppedError,
    UsageError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.locks.pause import COMPACTION, refuse_paused
from phantombase.timeline.locks.table_lock import POLICIES, table_lock
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.option import path_text, spelled_class
from phantombase.timeline.prefetch import Threads
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import Given, StorageOptions
from phantombase.timeline.table.table import Snapshot, Table

from ..attempt.finish import abandoned_uploads_aborted, finish_completed, littered_instants
from ..fleet.claims import claim_all, claim_one
from ..options import AttemptOptions, ExecuteOptions
from ..unit_of_work import Limit
from .runners import ExecutorChoice, all_storage_options, check_memory, log_choice, open_runner, this_machine

if TYPE_CHECKING:
    from ..attempt.compact_or_resume import Compacted
    from ..attempt.slice_task import Runner

_log = get_logger()
InstantProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with (instant, file slices done, file slices in all) while an instant's file slices are staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactions(Shown):
    """What a run did, and the instants that it left because its limit was reached; earliest first. `executors`: what
    ran the file slices, and why; empty if nothing had to be merged, or a runner was given."""

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
    called several times a second with the progress of an instant. `storage_options`: see `all_storage_options`."""
    limit = limit or Limit()
    if runner is None:
        check_memory(output.memory_limit, execute, this_machine())
    if isinstance(path, Table):
        table: Table = path.snapshot(cached=False)
    else:
        table = Table.open(path, all_storage_options([path], storage_options, execute, runner))
    table = table.with_clock(clock or ClockOptions())
    seen = table.snapshot(reads=(POLICIES,))
    held = table_lock(table.storage, lock, sole_writer=sole_writer, seen=seen.storage)
    if drop_metadata and not limit.closed:
        from phantombase.timeline.metadata_table.create import drop_metadata_table  # late, see `_pending`

        table = drop_metadata_table(table, held)  # also if nothing is pending, or executable
        seen = table.snapshot()
    instants = _pending(seen, instant)
    check_keepable(table, moves_rows=False)
    if limit.closed or (not instants and not recorded_instants(seen.storage)):
        return Compactions(left=instants)
    refuse_paused(seen.storage, COMPACTION)
    run = _Run(refused={})
    with ExitStack() as open_:
        if instants:
            from ..attempt.compact_or_resume import compact_instant, preflight  # late, see `_pending`

            # Before the checks: Spark takes longer to start than the checks take.
            running = runner or open_.enter_context(open_runner(execute, run.note_executor))
            with _proved(table.storage):
                run.refused = preflight(seen, instants, output)
                if len(run.refused) == len(instants) and not littered_instants(table):
                    raise next(iter(run.refused.values()))
        table.storage.verify()
        open_.enter_context(abandoned_uploads_aborted(table.storage))
        open_.enter_context(claim_all(table, attempt.claim_wait_s))
        finished: Table | None = None
        with run.parking("what earlier runs left"):
            finished = finish_completed(table, held)
        if instants:  # without instants only leftovers were finished, and no executor was started

            def compact(one: str) -> Compacted:
                limit.check_begin()
                if run.done:  # it was asked before the first one
                    refuse_paused(table.storage, COMPACTION)
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

            run.each(_pending(finished or table.snapshot(), instant), compact)
    if run.parked is not None:
        raise run.parked
    if not instants and _pending(table.snapshot()):  # what was finished has left a plan to execute
        return run_compactions(
            table,
            lock=lock,
            sole_writer=sole_writer,
            output=output,
            execute=execute,
            attempt=attempt,
            runner=runner,
            limit=limit,
            clock=clock,
            progress=progress,
        )
    if run.left:
        _log.info("stopped_by_limit", done=len(run.done), left=run.left)
    return Compactions(done=tuple(run.done), left=run.left, executors=tuple(run.executors))


def _pending(table: Snapshot, only: str | None = None) -> tuple[str, ...]:
    """See `pending_instants`. What executes them takes pyarrow: commands that find none start without it."""
    if only is None and not table.timeline.pending_merges:
        return ()
    from ..attempt.compact_or_resume import pending_instants

    return pending_instants(table, only)


@contextmanager
def _proved(storage: Storage) -> Iterator[None]:
    """Tests the guarantees of an object store while the body runs; an error of the body takes precedence. On a file
    system nothing is tested here: no folder may appear in a table that is refused."""
    if storage.is_file_system:
        yield
        return
    with Threads(1) as pool:
        proved = pool.submit(storage.verify)
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
        """Keeps the choice for a plan, and logs it if it differs from the last one."""
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
        """Keeps an error for the end. Raises at once if the limit is reached, or if Spark or the lock is missing. An
        instant that another process has claimed stops no other."""
        try:
            yield
        except PhantombaseError as error:
            if isinstance(error, _ENDS_ALL) and not isinstance(error, ClaimedError):
                raise
            if self.parked is not None:
                _log.warning("parked", what=what, error=str(error))
            self.parked = self.parked or error


_ENDS_ALL = (StoppedError, SparkError, LockError)
_ERRORS_MAX = 16


@spelled_class
class AsyncCompaction:
    """A context manager: compacts from entry to exit; see the module.

    `poll_s`: how often it asks for plans without `notify`. `stop_s`: how long the instant in progress may continue
    after the context ends; then its staging is stopped, and the next compactor adopts the finished slices. The exit may
    take longer than that: it waits for a publication in progress and, with a LocalRunner, for the slices at work.
    `clock`: see `Table`. `storage_options`: see `Table.open`.

    Errors do not reach the ingest job, since its writes are complete without the compaction. They are logged and
    collected in `errors`, and the instant is tried again at the next poll."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        runner: Runner,
        *,
        lock: str | None = None,
        output: OutputOptions | None = None,
        attempt: AttemptOptions | None = None,
        poll_s: float = 10.0,
        stop_s: float = 30.0,
        clock: ClockOptions | None = None,
        storage_options: Given = None,
    ) -> None:
        if not callable(runner):
            raise UsageError("not a runner", expected="one of Spark or of this process", found=repr(runner))
        for name, seconds in (("poll_s", poll_s), ("stop_s", stop_s)):
            if not isinstance(seconds, int | float) or not 0 <= seconds < threading.TIMEOUT_MAX:
                raise UsageError(f"not a value of {name}", expected="seconds, 0 or more", found=repr(seconds))
        self._path, self._poll_s, self._stop_s = full_path(path_text(path)), poll_s, stop_s
        self._limit = Limit()
        self._compact = partial(
            run_compactions,
            self._path,
            lock=lock,
            output=output or OutputOptions(),
            execute=ExecuteOptions(),
            attempt=attempt or AttemptOptions(),
            runner=runner,
            limit=self._limit,
            clock=clock,
            storage_options=StorageOptions.of(storage_options),
        )
        self._asked = threading.Event()
        self._ending = threading.Event()
        self._errors: deque[Exception] = deque(maxlen=_ERRORS_MAX)
        self._thread = threading.Thread(target=self._work, name="async-compaction", daemon=True)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """The last errors, oldest first."""
        return tuple(self._errors)

    def notify(self) -> None:
        """Asks for plans at once, or once more after the run in progress."""
        self._asked.set()

    def __enter__(self) -> Self:
        if self._thread.ident is not None:
            raise UsageError("compactions in the background begin once", path=self._path, todo="Make another object.")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limit.close(self._stop_s)
        self._ending.set()
        self._asked.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.is_set():
            self._asked.clear()
            self._run()
            if not self._ending.is_set():
                self._asked.wait(self._poll_s)

    def _run(self) -> None:
        try:
            self._compact()
        except ClaimedError:
            _log.info("another_compactor_works", table=self._path)
        except PausedError as error:
            _log.info("paused", table=self._path, why=error.what)
        except Exception as error:  # the ingest job must continue after any error
            self._errors.append(error)
            _log.exception("async_compaction_failed", table=self._path)
