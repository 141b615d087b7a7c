"""A round: a fleet, writers and a reader on a few tables while everything goes wrong that can; then rest and checks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_bool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phantombase.compactor_daemon.attempt.failures import release_failures
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.timeline.codec.output_options import Bloom, OutputOptions
from phantombase.timeline.locks.heartbeat import EXPIRY_S
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.servers.zookeeper_ensemble import Ensemble, running_ensemble
from tests.world.chaos.checks import Growth, check_rows, check_whole
from tests.world.chaos.fleet import Fleet, fleet, forks, new_switches
from tests.world.chaos.fleet_child import (
    KEYS,
    WRITERS,
    Subject,
    run_pinned_reader,
    run_reader,
    run_writer,
    write_changes,
)
from tests.world.chaos.journal import Journal, Model
from tests.world.chaos.troubles import troubles

_DAEMONS = 8
_REST_S = 300.0
_LONGEST_SESSION_S = 4.0
_LONG_S = 240.0
"""Of a round in which tables come to their usual size, and would grow beyond it if they were not served."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """A round that went well: its tables, and what happened how often."""

    tables: list[Path]
    counts: dict[str, int]


def play(folder: Path, seed: int, seconds: float) -> Played:
    """One round, in an empty folder; AssertionError: something is wrong."""
    pick = random.Random(seed)
    with running_ensemble(folder / "ensemble", _LONGEST_SESSION_S) as ensemble:
        lock = pick.choice((f"file:{folder}/{{name}}.lock", "zookeeper:{hosts}/locks/{name}"))
        tables = [_table(folder, ensemble, lock, *kind) for kind in _KINDS]
        model = Model(_journals(folder))
        _first_rows(tables, model.journals[0])
        with fleet(forks(), _DAEMONS, tables, list(ensemble.ports.values()), lock, folder) as daemons:
            with (
                _fleet_info(daemons, folder, seed, ensemble.hosts) as fleet_info_is_well,
                troubles(daemons, ensemble, seed) as trouble,
            ):
                end, growth = time.monotonic() + seconds, Growth(tables)
                while time.monotonic() < end:
                    fleet_info_is_well()
                    daemons.tend()
                    trouble.step()
                    growth.sample()
                    time.sleep(1.0)
                trouble.heal()
            _come_to_rest(daemons)
            for subject in tables:
                _take_back_dead_writes(subject)
            daemons.wait_until_all_look()
            for subject in tables:
                check_rows(subject, model)
            daemons.end()
            daemons.finish(folder / "last.log", new_switches(daemons.context))
            counts = trouble.counts + daemons.ends
            for subject in tables:
                check_rows(subject, model)
                counts += check_whole(subject)
            daemons.check_logs(folder)
    tried = {name: daemons.count(name) for name in ("decided", "refused", "noticed", "broken")}
    assert tried["broken"] == 0, "a dead attempt decided, or something undecided was published"
    written = {"written": model.committed, "not written": model.lost}
    counts_of_files = growth.check() if seconds >= _LONG_S else {}
    return Played(tables=[subject.path for subject in tables], counts={**counts, **tried, **written, **counts_of_files})


_KINDS: tuple[tuple[str, int, int | None, bool], ...] = (
    ("v9_buckets", 9, 1, False),
    ("v9_keys", 9, None, True),
    ("v6_buckets", 6, 1, False),
)
"""Both table versions, both indexes, with and without a metadata table."""


def _table(
    folder: Path, ensemble: Ensemble, lock: str, name: str, version: int, buckets: int | None, metadata: bool
) -> Subject:
    spec = NewTable(
        name=name,
        version=version,
        key_fields=("id",),
        partition_fields=("day",),
        ordering_fields=("ts",),
        metadata_table=metadata,
    )
    (folder / name).mkdir()
    create_table(LocalStorage(str(folder / name)), spec)
    mine = lock.format(hosts=ensemble.hosts, name=name)
    output = OutputOptions(bloom=Bloom.OFF)
    options = WriteOptions(output=output, buckets=buckets, slots=1, retries=3, lazy_rollback=True, lock=mine)
    return Subject(path=folder / name, options=options)


def _journals(folder: Path) -> list[Path]:
    return [folder / "first.journal", *(folder / f"writer{n}.journal" for n in range(WRITERS))]


def _first_rows(tables: list[Subject], journal: Path) -> None:
    """Every key, so that there are base files in all partitions."""
    with journal.open("a") as file:
        for subject in tables:
            write_changes(subject, dict.fromkeys(KEYS, (0, 0.0)), Journal(file), subject.options)


@contextmanager
def _fleet_info(daemons: Fleet, folder: Path, seed: int, hosts: str) -> Iterator[Callable[[], None]]:
    """Writers and readers; at any time and at the end they must have found nothing wrong."""
    stop = daemons.context.RawValue(c_bool, False)
    journals = _journals(folder)
    make = daemons.context.Process
    processes = {"reader": make(target=run_reader, args=(folder / "reader.log", stop, daemons.subjects, journals))}
    pinned = (folder / "pinned.log", stop, daemons.subjects)
    processes["pinned"] = make(target=run_pinned_reader, args=pinned)
    for n in range(WRITERS):
        writing = (n, seed, daemons.subjects, journals[1 + n], hosts)
        processes[f"writer{n}"] = make(target=run_writer, args=(folder / f"writer{n}.log", stop, writing))

    def check(*codes: int | None) -> None:
        for name, process in processes.items():
            assert process.exitcode in codes, f"{name}: {(folder / f'{name}.log').read_text()[-3000:]}"

    try:
        for process in processes.values():
            process.start()
        yield partial(check, None)
        stop.value = True
        for process in processes.values():
            process.join(_REST_S)
        check(0)
    finally:
        for process in processes.values():
            process.kill()


def _come_to_rest(daemons: Fleet) -> None:
    """The fleet goes on by itself until nothing pends; what waits after failures is released, as an operator would."""
    until = time.monotonic() + _REST_S
    while pending := _pending(daemons.subjects):
        assert time.monotonic() < until, f"still pending: {pending}"
        daemons.tend()
        for storage, instant in pending:
            release_failures(storage, instant)
        time.sleep(1.0)


def _take_back_dead_writes(subject: Subject) -> None:
    """As the next write would: a writer that loses ZooKeeper in the middle cannot take its own write back."""
    table = Table.open(str(subject.path))
    if table.load_timeline().inflight_writers:
        lock, now_ms = table_lock(table.storage, subject.options.lock), partial(storage_ms, table.storage)
        roll_back_dead_writers(table, lock, lazy=True, now_ms=now_ms, expiry_s=EXPIRY_S)


def _pending(tables: list[Subject]) -> list[tuple[LocalStorage, str]]:
    storages = [LocalStorage(str(subject.path)) for subject in tables]
    return [(s, i.requested_time) for s in storages for i in Table.on(s).load_timeline().pending_compactions]
