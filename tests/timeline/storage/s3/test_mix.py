"""A store that misbehaves for minutes, under two writers, a daemon with all services and a reader: nothing is lost or
doubled, every failure is one of our errors, and the work is done once the store is well."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.places import ROOT, SEED
from tests.support.s3_table import end_leases, fares, run
from tests.support.servers.fault_proxy import OF_ANSWERS, OF_CHANGES, Fault, FaultProxy, Faults, Request
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips
from tests.support.written_tables import impatient

MIX_S = float(os.environ.get("PHANTOMBASE_MIX_SECONDS", "120"))
_MAIN = "from phantombase.compactor_daemon.cli.main import main; main()"
_SERVICES = ("--services", "metadata,cluster,clean,orphans,archive", "--services-interval", "5", "--clean-retain", "2")
_ARCHIVE = ("--archive-min-instants", "4", "--archive-max-instants", "6", "--orphans-older-than", "1h")
_SCHEDULE = ("--schedule", "--lock", "storage", "--max-delta-commits", "3", "--poll-interval", "1", "--backoff", "1")


def mix(seed: int) -> Faults:
    """One request of a hundred is spoilt in some way, all are refused for a second now and then, some listings come in
    pages of three names, and one partition is slow."""
    chance, refused_until = random.Random(seed), [0.0]

    def faults(asked: Request) -> Fault:
        if chance.random() < 0.0005:
            refused_until[0] = time.monotonic() + 1
        if time.monotonic() < refused_until[0]:
            return Fault.SLOW_DOWN
        if chance.random() < 0.01:
            return chance.choice((*OF_CHANGES, *OF_ANSWERS) if asked.changes else OF_ANSWERS)
        if "/tue/" in asked.path and chance.random() < 0.2:
            return Fault.DELAYED
        return Fault.PAGES if chance.random() < 0.05 else Fault.NONE

    return faults


class Written:
    """What two writers have written: a number for each key, which only grows."""

    def __init__(self, url: str, version: int) -> None:
        self._url, self._version = url, version
        self.sure: dict[str, float] = {}
        self.failed: list[str] = []
        self.lock, self.ended = threading.Lock(), threading.Event()

    def write(self, writer: int) -> None:
        """Keys of its own, each batch until it ends well; some keys again and again."""
        chance, number = random.Random(writer), 0
        while not self.ended.is_set():
            number += 1
            keys = {writer * 1000 + chance.randrange(10) for _ in range(3)} | {writer * 1000 + 10 + number}
            batch = rows(*((key, number, float(number)) for key in sorted(keys)))
            while not self._upsert(batch):
                if len(self.failed) > 1000:
                    raise AssertionError(self.failed[-1])
            with self.lock:
                self.sure |= {f"k{key:04d}": float(number) for key in keys}

    def _upsert(self, batch: pa.Table) -> bool:
        try:
            trips(batch, self._version).upsert(self._url)
        except PhantombaseError as error:
            self.failed.append(f"{type(error).__name__}: {error}"[:300])
            return False
        return True

    def read(self) -> int:
        """Reads until the end; how often it ended well. What was sure before is there, or newer."""
        times = 0
        while not self.ended.is_set():
            with self.lock:
                sure = dict(self.sure)
            try:
                found = fares(self._url)
            except PhantombaseError as error:
                self.failed.append(f"reader {type(error).__name__}: {error}"[:300])
                continue
            assert {key: value for key, value in sure.items() if found.get(key, -1.0) < value} == {}
            times += 1
        return times


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", [6, 9])
def test_under_a_seeded_mix(version: int, faulty_s3: FaultProxy, s3: S3Server) -> None:
    url = f"s3://{s3.new_bucket()}/t"
    trips(rows((1, 1, 1.0), (1001, 1, 1.0)), version).upsert(url)
    faulty_s3.restart(mix(SEED))
    written = Written(url, version)
    command = [sys.executable, "-c", _MAIN, "run", url, "--executor", "local", *_SCHEDULE, *_SERVICES, *_ARCHIVE]
    daemon = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(written.write, writer) for writer in (1, 2)]
            reads = pool.submit(written.read)
            until = time.monotonic() + MIX_S
            while time.monotonic() < until and not (reads.done() or any(one.done() for one in running)):
                time.sleep(0.5)
            written.ended.set()
            for one in running:
                one.result()
            assert reads.result() > 0
        faulty_s3.restart()
        assert daemon.poll() is None, daemon.communicate()
        daemon.send_signal(signal.SIGTERM)
        said, _ = daemon.communicate(timeout=300)
        for unknown in (b"Traceback", b"internal error"):  # some work failed, by errors that the daemon knows
            assert unknown not in said, said.decode()[-3000:]
        assert daemon.returncode != 70
    finally:
        daemon.kill()
    end_leases(url)
    options = impatient(WriteOptions(slots=1, lazy_rollback=False))  # the next write undoes what dead ones have left
    write(Table.open(url), LocalEngine(rows((1, 1, 1.0)), slots=1), Write(operation=Operation.UPSERT, options=options))
    run("compact", url, "--executor", "local")
    run("clean", url, "--lock", "storage")
    expected = {"k0001": 1.0, "k1001": 1.0} | written.sure
    assert fares(url) == expected
    table = Table.open(url)
    assert table.load_timeline().pending_merges == ()
    assert all(audit(table, instant).good for instant in audited_instants(table))
