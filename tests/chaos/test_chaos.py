"""Daemons, writers and readers on a few tables while everything that can go wrong does.

PHANTOMBASE_CHAOS_SECONDS   how long (60); longer ones are rounds of a minute, each with new tables
PHANTOMBASE_CHAOS_SEED      of the first round (random)
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool
from pathlib import Path

import pytest

from compactor_daemon.failures import release_failures
from compactor_daemon.options import Bloom, OutputOptions
from tests.chaos.checks import check_rows, check_whole
from tests.chaos.crew_child import KEYS, WRITERS, Subject, run_reader, run_writer, write_changes
from tests.chaos.fleet import Fleet, fleet, forks, new_switches
from tests.chaos.journal import Journal, Model
from tests.chaos.troubles import troubles
from tests.ensemble import Ensemble, running_ensemble
from tests.written import seed_note
from timeline.local_storage import LocalStorage
from timeline.table import Table
from writer_hooks.create_table import create_table
from writer_hooks.new_table import NewTable
from writer_hooks.options import WriteOptions

SECONDS = float(os.environ.get("PHANTOMBASE_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("PHANTOMBASE_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
ROUND_S = 60.0
DAEMONS = int(os.environ.get("PHANTOMBASE_CHAOS_DAEMONS", "8"))
_REST_S = 120.0


@pytest.mark.timeout(SECONDS * 5 + 900)
def test_a_fleet_in_trouble(tmp_path: Path) -> None:
    """Rounds of a minute; nothing is lost, doubled or left over in any of them."""
    for number in range(max(1, round(SECONDS / ROUND_S))):
        with seed_note(SEED + number):
            folder = tmp_path / str(number)
            folder.mkdir()
            print(f"seed {SEED + number}: {play(folder, SEED + number, min(SECONDS, ROUND_S))}", flush=True)


def play(folder: Path, seed: int, seconds: float) -> dict[str, int]:
    """One round; what happened, and how often."""
    pick = random.Random(seed)
    with running_ensemble(folder / "ensemble") as ensemble:
        lock = pick.choice((None, "zookeeper:{hosts}/locks/{name}"))
        tables = [_table(folder, ensemble, lock, *kind) for kind in _KINDS]
        model = Model(_journals(folder))
        _first_rows(tables, model.journals[0])
        with fleet(forks(), DAEMONS, tables, list(ensemble.ports.values()), lock, folder) as daemons:
            with _crew(daemons, folder, seed, ensemble.hosts), troubles(daemons, ensemble, seed) as trouble:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    daemons.tend()
                    trouble.step()
                    time.sleep(1.0)
                trouble.heal()
            _come_to_rest(daemons)
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
    return {**counts, **tried, "written": model.committed, "not written": model.lost}


_KINDS: tuple[tuple[str, int, int | None], ...] = (("v9_buckets", 9, 1), ("v9_keys", 9, None), ("v6_buckets", 6, 1))
"""Both table versions, both indexes."""


def _table(folder: Path, ensemble: Ensemble, lock: str | None, name: str, version: int, buckets: int | None) -> Subject:
    spec = NewTable(name=name, version=version, key_fields=("id",), partition_fields=("day",), ordering_fields=("ts",))
    (folder / name).mkdir()
    create_table(LocalStorage(str(folder / name)), spec)
    mine = lock.format(hosts=ensemble.hosts, name=name) if lock is not None else None
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
def _crew(daemons: Fleet, folder: Path, seed: int, hosts: str) -> Iterator[None]:
    """Writers and a reader, who must have found nothing wrong at the end."""
    stop = daemons.context.RawValue(c_bool, False)
    journals = _journals(folder)
    make = daemons.context.Process
    processes = {"reader": make(target=run_reader, args=(folder / "reader.log", stop, daemons.subjects, journals))}
    for n in range(WRITERS):
        writing = (n, seed, daemons.subjects, journals[1 + n], hosts)
        processes[f"writer{n}"] = make(target=run_writer, args=(folder / f"writer{n}.log", stop, writing))
    try:
        for process in processes.values():
            process.start()
        yield
        stop.value = True
        for name, process in processes.items():
            process.join(_REST_S)
            assert process.exitcode == 0, f"{name}: {(folder / f'{name}.log').read_text()[-3000:]}"
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


def _pending(tables: list[Subject]) -> list[tuple[LocalStorage, str]]:
    storages = [LocalStorage(str(subject.path)) for subject in tables]
    return [(s, i.requested_time) for s in storages for i in Table.on(s).load_timeline().pending_compactions]
