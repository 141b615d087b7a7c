"""Compacts one table beside an ingest job that writes to it: a thread executes pending plans as they appear.

    with AsyncCompaction(path, SparkRunner(RunningSpark(session.sparkContext), pool="compaction")) as compaction:
        for batch in batches:
            write(batch)            # may request a compaction
            compaction.notify()     # look now instead of at the next poll

Two of these threads on one table, or one beside a `compactor-daemon`, take turns by the table's claim.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import ClaimedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.storage.storage_options import Given, StorageOptions

from ..execution.runners import Runner
from ..options import AttemptOptions, ExecuteOptions
from ..time_limit import Limit
from .pending import run_compactions

_ERRORS_KEPT = 16

_log = get_logger()


class AsyncCompaction:
    """A context manager: compacts from entry to exit; see the module.

    `poll_s`: how often it looks for plans without `notify`. `stop_s`: how long the instant at work may go on after the
    context ends; then its staging is stopped, and the next compactor adopts the finished file slices. The exit may take
    longer than that: it waits for a publication that has begun and, with a LocalRunner, for the slices at work.
    `clock`: see `Table`. `storage_options`: see `Table.open`.

    Errors do not reach the ingest job, since its writes are complete without the compaction. They are logged and kept
    in `errors`, and the instant is tried again at the next snapshot.
    """

    def __init__(
        self,
        path: str,
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
        self._path = path
        self._runner = runner
        self._lock = lock
        self._output = output or OutputOptions()
        self._attempt = attempt or AttemptOptions()
        self._poll_s = poll_s
        self._stop_s = stop_s
        self._clock = clock
        self._storage_options = StorageOptions.of(storage_options)
        self._limit = Limit()
        self._look = threading.Event()
        self._ending = threading.Event()
        self._errors: deque[Exception] = deque(maxlen=_ERRORS_KEPT)
        self._thread = threading.Thread(target=self._work, name="async-compaction", daemon=True)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """The last errors, oldest first."""
        return tuple(self._errors)

    def notify(self) -> None:
        """Looks for plans at once, or once more after the snapshot that is under way."""
        self._look.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limit.close(self._stop_s)
        self._ending.set()
        self._look.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.is_set():
            self._look.clear()
            self._run()
            if not self._ending.is_set():
                self._look.wait(self._poll_s)

    def _run(self) -> None:
        try:
            run_compactions(
                self._path,
                lock=self._lock,
                output=self._output,
                execute=ExecuteOptions(),
                attempt=self._attempt,
                runner=self._runner,
                limit=self._limit,
                clock=self._clock,
                storage_options=self._storage_options,
            )
        except ClaimedError:
            _log.info("another_compactor_is_at_work", table=self._path)
        except Exception as error:  # the ingest job must go on after any error
            self._errors.append(error)
            _log.exception("async_compaction_failed", table=self._path)
