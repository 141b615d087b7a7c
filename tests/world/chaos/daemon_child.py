"""One daemon in a process of its own, with faults that the test switches on and off, and counts of what it tried."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import kazoo.client
import kazoo.recipe.watchers  # noqa: F401  loaded once, by the server that forks the daemons

from phantombase.compactor_daemon.attempt import attempt as attempts_module
from phantombase.compactor_daemon.attempt import compact_or_resume as compactor
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, read_outcome
from phantombase.compactor_daemon.cli.main import main
from phantombase.compactor_daemon.daemon import served_table
from phantombase.compactor_daemon.daemon.served_table import TableOnStorage
from phantombase.timeline.errors import AttemptDeadError
from phantombase.timeline.instants.reserved_times import instant_folder
from phantombase.timeline.locks import table_lock as lock
from phantombase.timeline.locks import zookeeper_lock
from phantombase.timeline.storage import local as local_storage
from phantombase.timeline.storage.contract import Storage, files_below
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table, from_one_snapshot
from tests.world.chaos.child import begin
from tests.world.chaos.switches import Point, Switches

_METHODS = ("list", "find", "read", "open_input", "open_output", "put_if_absent", "place", "overwrite", "delete")

_counting = threading.Lock()


def run_child(argv: list[str], log: Path, switches: Switches, lock_session_s: float) -> None:
    """The `compactor-daemon` command in this process, its output in `log`. Where the table lock is in ZooKeeper, a
    daemon that stands still inside for longer than `lock_session_s` loses it."""
    begin(log)
    switches.busy = 0
    _shift_clock(switches)
    _spoil_disk(switches)
    _spoil_calls(switches)
    _watch(switches)
    _shorten_locks(lock_session_s)
    os.environ["PHANTOMBASE_EVENTS"] = str(log.with_suffix(".events"))
    sys.argv = ["compactor-daemon", *argv]
    main()


def _patched(*modules: Any) -> tuple[Any, ...]:
    """Modules in which names are about to get another meaning, for the type checker."""
    return modules


def _shift_clock(switches: Switches) -> None:
    real = time.time
    (clock,) = _patched(time)
    clock.time = lambda: real() + switches.clock_s


class _Disk(io.FileIO):
    """A new file on a disk that may be full."""

    switches: Switches

    def write(self, data: Any) -> int:
        _room(self.switches)
        return super().write(data)


def _room(switches: Switches) -> None:
    if switches.full:
        raise OSError(28, "No space left on device")


def _spoil_disk(switches: Switches) -> None:
    _Disk.switches = switches
    link, folders = os.link, os.makedirs

    def spoiled_open(path: str, mode: str) -> IO[bytes]:
        return io.BufferedWriter(_Disk(path, mode)) if "x" in mode else open(path, mode)

    def spoiled_link(source: str, target: str) -> None:
        _room(switches)
        link(source, target)

    def spoiled_folders(path: str, exist_ok: bool = False) -> None:
        if not os.path.isdir(path):
            _room(switches)
        folders(path, exist_ok=exist_ok)

    storage, system = _patched(local_storage, os)
    storage.open = spoiled_open
    system.link, system.makedirs = spoiled_link, spoiled_folders


def _spoil_calls(switches: Switches) -> None:
    for name in _METHODS:
        setattr(LocalStorage, name, _spoiled(name, getattr(LocalStorage, name), switches))


def _spoiled(name: str, method: Callable[..., Any], switches: Switches) -> Callable[..., Any]:
    """The method, slow where the disk is, and perhaps the last thing this process does."""

    def call(storage: LocalStorage, path: str, *rest: Any, **named: Any) -> Any:
        if switches.slow_s:
            time.sleep(switches.slow_s)
        data = (r for r in rest if isinstance(r, bytes))
        hit = switches.point and list(Point)[switches.point - 1].is_at(name, path, *data)
        if hit and not switches.after:
            _strike(switches)
        result = method(storage, path, *rest, **named)
        if hit and switches.after:
            _strike(switches)
        return result

    return call


def _strike(switches: Switches) -> None:
    """Sent to this thread: a signal to the process may be taken by another one, and this one would go on a little."""
    switches.point = 0
    switches.struck += 1
    signal.pthread_kill(threading.get_ident(), switches.signal)


def _watch(switches: Switches) -> None:
    """Counts decisions and what becomes of those of dead attempts; looks whether what is published was decided."""
    deciding, compacting, serving = _patched(attempts_module, compactor, served_table)
    snapshot = TableOnStorage.snapshot
    write_outcome, publish, compact = deciding.write_outcome, compacting.publish, compacting.compact_instant

    def count(name: str, by: int = 1) -> None:
        with _counting:
            setattr(switches, name, getattr(switches, name) + by)

    def broken(storage: Storage, instant: str, what: str) -> None:
        if _is_archived(storage, instant):
            return
        count("broken")
        names = [path for path, _ in files_below(storage, instant_folder(instant))]
        print(f"broken: {what}; instant {instant}, records {names}", file=sys.stderr, flush=True)

    def decided(storage: Storage, instant: str, attempt: int, record: bytes, nonce: str) -> None:
        before = read_outcome(storage, instant, attempt)
        try:
            write_outcome(storage, instant, attempt, record, nonce)
        except AttemptDeadError:
            count("refused")
            raise
        outcome = read_outcome(storage, instant, attempt)
        if before is None and outcome is not None and outcome.nonce == nonce:
            count("decided")
        else:
            broken(storage, instant, f"attempt {attempt} decided, outcome before {before}, outcome now {outcome}")

    def published(table: Any, decision: CommitDecision, *rest: Any) -> None:
        outcome = read_outcome(table.storage, decision.instant, decision.attempt)
        if outcome is None or outcome.nonce != decision.nonce:
            broken(
                table.storage, decision.instant, f"attempt {decision.attempt} is published, its outcome is {outcome}"
            )
        publish(table, decision, *rest)

    def compacted(*args: Any, **options: Any) -> Any:
        count("busy")
        try:
            return compact(*args, **options)
        except AttemptDeadError:
            count("noticed")
            raise
        finally:
            count("busy", -1)

    def looked(table: TableOnStorage) -> Any:
        count("looks")
        return snapshot(table)

    deciding.write_outcome = decided
    compacting.publish = published
    serving.compact_instant = compacted
    serving.TableOnStorage.snapshot = looked


def _is_archived(storage: Storage, instant: str) -> bool:
    """Whether others completed it and archived it while this process slept: its records go, and it publishes nothing.
    The archiver of a slow disk removes them one by one, so some may still be there."""
    return instant < from_one_snapshot(Table.on(storage).load_timeline).start


def _shorten_locks(session_s: float) -> None:
    parse = zookeeper_lock.parse_zookeeper_lock
    (locks,) = _patched(lock)
    locks.parse_zookeeper_lock = lambda text: replace(parse(text), session_timeout_s=session_s)
