"""Steps of a compaction as tests take them, the check that a table came out complete, and processes while they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from socketserver import BaseServer

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.attempt import Attempt, decide_commit, open_attempt, stage
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.outcome import CommitDecision
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import claim_all
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import LockError
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS, TEMPORARY
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import PLACED
from phantombase.timeline.table.table import Table, TableSchema
from tests.support.compare_rows import assert_same_rows

OPTIONS = AttemptOptions(barrier_s=0.3, barrier_poll_s=0.05)
OUTPUT = OutputOptions()


def open_table(path: Path, storage: Storage | None = None) -> Table:
    """The table at a path, or on a storage."""
    return Table.on(storage or LocalStorage(str(path)))


def run_one(table: Table, instant: str, lock: str = "") -> None:
    """Compacts one instant in this process. `lock`: a lock of that name instead of the table's."""
    run_under(table, instant, ProcessLock(lock or table.storage.base_path))


def run_under(table: Table, instant: str, lock: TableLock) -> None:
    """Compacts one instant in this process, under a lock of any kind."""
    compact_instant(
        table,
        instant,
        lock=lock,
        runner=LocalRunner(1),
        progress=lambda done, total: None,
        output=OUTPUT,
        options=OPTIONS,
    )


def run_all(table: Table, lock: str = "") -> None:
    """What `compactor-daemon compact` does between its checks and its output. `lock`: also without the claim."""
    with nullcontext() if lock else claim_all(table):
        finish_completed(table, ProcessLock(lock or table.storage.base_path))
        for instant in pending_instants(table):
            run_one(table, instant, lock)


def staged(table: Table, instant: str, output: OutputOptions = OUTPUT) -> tuple[Attempt, list[SliceDone], TableSchema]:
    """An attempt up to its decision."""
    attempt = open_attempt(table, instant, OPTIONS)
    runner = LocalRunner(1)
    done, schema = stage(table, attempt, output, OPTIONS, lambda tasks: runner(table.storage, tasks, lambda a, b: None))
    return attempt, done, schema


def decided(table: Table, instant: str, output: OutputOptions = OUTPUT) -> CommitDecision:
    """An attempt up to its decision, and that decision."""
    attempt, done, schema = staged(table, instant, output)
    return decide_commit(table, attempt, done, schema, ProcessLock("decided"))


def base_files(path: Path, instant: str) -> list[Path]:
    """The base files of an instant under final names."""
    return sorted(path.glob(f"*/*_{instant}.parquet"))


def visible_files(path: Path) -> set[str]:
    """All files outside our own folder, but for the probe of a run that was killed, or whose deletion failed."""
    found = (str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name != PLACED)
    return {name for name in found if not name.startswith(RECORDS)}


def check_whole(path: Path, expected: Path) -> None:
    """The table reads as Hudi's compacted copy, holds one base file a (file group, instant), and no leftovers."""
    table = open_table(path)
    assert pending_instants(table) == ()
    assert_same_rows(read_table(table), pq.read_table(expected / "snapshot_after_compaction.parquet"))
    check_no_strays(path)


def check_no_strays(path: Path) -> None:
    """One base file a (file group, instant); of ours only records that stay, and files being written when killed."""
    assert not list(path.rglob(PLACED))
    names = [p.name.split("_") for p in path.glob("*/*.parquet")]
    twice = [pair for pair, count in Counter((n[0], n[2]) for n in names).items() if count > 1]
    assert not twice
    left = [p for p in (path / RECORDS).rglob("*") if p.is_file() and p.parent != path / TEMPORARY]
    names_left = {p.name for p in left if not p.name.endswith(".json")}  # the audit log stays
    names_left = {name for name in names_left if not name.startswith("reserved-")}
    assert names_left <= {"open", "outcome", "revoked", "claim.lock", "table.lock", "table-id"}
    assert not list((path / ".hoodie").rglob("*.tmp"))
    assert not list((path / ".hoodie" / ".heartbeat").glob("*"))


def is_held(lock: ProcessLock) -> bool:
    """Whether this or another thread is in a section."""
    with suppress(LockError), replace(lock, timeout_s=0).hold("look"):
        return False
    return True


# Servers of tests while they run: threads that serve, and processes that are waited for. Whom a process runs as.


_POLL_S = 0.2
_DROPS = os.geteuid() == 0 and shutil.which("setpriv") is not None
AS_A_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if _DROPS else ()
"""Before a command: takes from root what other users do not have."""
as_a_user = pytest.mark.skipif(os.geteuid() == 0 and not _DROPS, reason="root may do everything, and has no setpriv")
"""The mark of a test that needs it."""


@contextmanager
def serving(listening: BaseServer) -> Iterator[None]:
    """Serves in a thread of this process."""
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@contextmanager
def started(
    command: Sequence[str],
    ask: Callable[[], object],
    unready: tuple[type[Exception], ...],
    most_s: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A process that answers. `ask` raises one of `unready` until it does, and for good if the process ended."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + most_s
        while True:
            try:
                ask()
                break
            except unready:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        yield
    finally:
        process.terminate()
        process.wait()
