"""What thousands of tables cost a daemon while nothing happens: processor time, and requests for each table and poll.

    python -m bench.idle_tables [--tables 10000] [--store local|s3] [--poll 10] [--idle SECONDS] [--schedule]

A table of some commits, in as many copies, is served by one daemon with metrics, as by `compactor-daemon run --root`.
On `local` the copies are links. `s3` is a server in a process of its own which answers listings and reads of as many
tables from one, and counts what it is asked for. Measured is the daemon's process after the first round and sweep;
what a sweep costs, each five minutes, is part of it for so many seconds as are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import formatdate
from hashlib import md5
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pyarrow as pa

from bench.report import Goal, Report
from phantombase import writer
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.daemon.assemble import open_daemon
from phantombase.compactor_daemon.daemon.dispatch import Rules, Stop
from phantombase.compactor_daemon.daemon.http_service import Reports
from phantombase.compactor_daemon.daemon.metrics import Metrics
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.catalog import Catalog, FolderListing
from phantombase.compactor_daemon.fleet.pools import Pools
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.instants import table_clock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.storage_options import StorageOptions
from tests.support.servers.s3_server import S3Server

_CORES, _REQUESTS = 0.3, 1.1
_ROOT, _PAGE = "lake", 1000
_WAIT_S = 900.0
_RANGE = re.compile(r"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)


class _Seen(Metrics):
    """A daemon's metrics, and how often it looked at tables."""

    def __init__(self, settings: DaemonSettings, *, reports: bool) -> None:
        super().__init__(Reports(settings) if reports else None)
        self.looks = 0
        self.tables: set[str] = set()
        self.sweeps: Counter[str] = Counter()

    def snapshot_taken(self, table: str, *given: Any, **more: Any) -> None:
        super().snapshot_taken(table, *given, **more)
        self.looks += 1
        self.tables.add(table)

    def swept(self, table: str, *given: Any) -> None:
        super().swept(table, *given)
        self.sweeps[table] += 1


def _not_swept(self: TableOnStorage) -> None:
    """Instead of a search for leftovers."""


class _Store(asyncio.Protocol):
    """One connection to a store that has the files of one folder as so many tables; it can only be read."""

    def __init__(self, folder: Path, count: int, asked: Counter[str]) -> None:
        self._folder, self._count, self._asked, self._data = folder, count, asked, b""

    def connection_made(self, transport: Any) -> None:
        self._out = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].decode("latin-1")
            method, target = head.split(" ", 2)[:2]
            self._data = self._data[end + 4 :]
            url = urlsplit(target)
            query = {name: of[0] for name, of in parse_qs(url.query).items()}
            self._asked["LIST" if "list-type" in query else method] += 1
            if "list-type" in query:
                self._answer(200, self._listed(query), "application/xml")
            else:
                file = self._folder / unquote(url.path).split("/", 4)[-1]
                there = file.is_file() and file.name != "table-id"
                status, body = 200 if there else 404, file.read_bytes() if there else b""
                if there and (asked := _RANGE.search(head)):
                    self._answer_part(body, asked[1], asked[2])
                else:
                    self._answer(status, body, head=method == "HEAD")

    def _listed(self, query: dict[str, str]) -> bytes:
        prefix, first = query.get("prefix", ""), int(query.get("continuation-token", "0"))
        after = query.get("start-after", "")
        found, more = [], ""
        if prefix in ("", f"{_ROOT}/"):
            last = min(first + _PAGE, self._count)
            found = [f"<CommonPrefixes><Prefix>{_ROOT}/t{n:05}/</Prefix></CommonPrefixes>" for n in range(first, last)]
            more = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < self._count else ""
        elif (folder := self._folder / prefix.split("/", 2)[2]).is_dir():
            walked = folder.iterdir() if "delimiter" in query else folder.rglob("*")
            for path in sorted(walked):
                if path.is_dir() and "delimiter" in query:
                    found.append(f"<CommonPrefixes><Prefix>{escape(prefix + path.name)}/</Prefix></CommonPrefixes>")
                elif path.is_file() and path.suffix != ".crc" and prefix + path.relative_to(folder).as_posix() > after:
                    found.append(_content(prefix + path.relative_to(folder).as_posix(), path))
        truncated = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}"
        return f"<ListBucketResult>{truncated}{''.join(found)}</ListBucketResult>".encode()

    def _answer_part(self, body: bytes, first: str, last: str) -> None:
        low = int(first) if first else max(0, len(body) - int(last))
        part = body[low : int(last) + 1 if first and last else None]
        self._answer(206, part, more=f"Content-Range: bytes {low}-{low + len(part) - 1}/{len(body)}\r\n")

    def _answer(
        self, status: int, body: bytes, kind: str = "binary/octet-stream", *, head: bool = False, more: str = ""
    ) -> None:
        facts = (
            f'{more}Content-Type: {kind}\r\nETag: "{md5(body).hexdigest()}"\r\n'
            f"Last-Modified: {formatdate(0, usegmt=True)}"
        )
        self._out.write(f"HTTP/1.1 {status} x\r\n{facts}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        self._out.write(b"" if head else body)


def _content(key: str, path: Path) -> str:
    data = path.read_bytes()
    when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))
    tag = f"<ETag>&quot;{md5(data).hexdigest()}&quot;</ETag>"
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>{tag}<Size>{len(data)}</Size></Contents>"
    )


def _serve(folder: Path, count: int, pipe: Connection) -> None:
    """Sends its port; then for each message the requests since the last one, by kind."""
    asked: Counter[str] = Counter()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Store(folder, count, asked), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        while True:
            await loop.run_in_executor(None, pipe.recv)
            pipe.send(dict(asked))
            asked.clear()

    asyncio.run(run())


@contextmanager
def _store(original: Path, count: int) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(original, count, theirs), daemon=True)
    process.start()
    try:
        os.environ |= S3Server(port=ours.recv()).environment()
        # The store takes no file, so its promises are not tried.
        ObjectStorage(f"s3://bench/{_ROOT}").clients.known.keeps_promises = True
        yield ours
    finally:
        process.kill()


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="What idle tables cost a daemon.")
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--poll", type=float, default=10.0, help="seconds")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds for which the cost is measured")
    parser.add_argument("--commits", type=int, default=5)
    parser.add_argument("--schedule", action="store_true", help="the daemon also requests compactions that are due")
    parser.add_argument(
        "--bare", action="store_true", help="tables are looked at only: no reports, no search for leftovers"
    )
    parser.add_argument("--quick", action="store_true", help="1,000 tables in an object store, polled every second")
    given = parser.parse_args()
    if given.quick:
        given.tables, given.store, given.poll, given.idle = 1000, "s3", 1.0, 10.0
    table_clock._OLD = timedelta()  # the tables have been idle for so long
    report = Report(bench="idle_tables")
    report.facts |= vars(given) | {"load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(prefix="idle-") as made:
        original = Path(made) / "original"
        for number in range(given.commits):
            rows = pa.table({"id": [str(i) for i in range(20)], "ts": [number] * 20, "fare": [1.0] * 20})
            writer(rows).table("lake").key("id").ordering("ts").buckets(1).upsert(str(original))
        if given.store == "s3":
            with _store(original, given.tables) as pipe:
                _measure(report, given, f"s3://bench/{_ROOT}", pipe)
        else:
            for number in range(given.tables):
                shutil.copytree(original, Path(made) / f"{_ROOT}/t{number:05}", copy_function=os.link)
            _measure(report, given, str(Path(made) / _ROOT), None)
    return report.finish()


def _measure(report: Report, given: argparse.Namespace, root: str, pipe: Connection | None) -> None:
    def asked() -> dict[str, int]:
        if pipe is None:
            return {}
        pipe.send(None)
        return dict(pipe.recv())

    settings = DaemonSettings(
        who="bench",
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=DaemonOrder.EARLIEST,
        schedule=ScheduleOptions(max_delta_commits=10 * given.commits) if given.schedule else None,
    )
    if given.bare:
        TableOnStorage.sweep = _not_swept  # type: ignore[method-assign]
    seen, began = _Seen(settings, reports=not given.bare), time.monotonic()
    with open_daemon(
        [],
        rules=Rules(poll_s=given.poll),
        settings=settings,
        execute=ExecuteOptions(executor=Executor.LOCAL),
        catalog=Catalog(listing=FolderListing(root, StorageOptions()), pools=Pools()),
        observer=seen,
        runner=LocalRunner(1),
        sole_writer=True,
    ) as daemon:
        thread = threading.Thread(target=daemon.run, daemon=True)
        thread.start()
        while len(seen.tables) < given.tables or (len(seen.sweeps) < given.tables and not given.bare):
            if time.monotonic() - began > _WAIT_S:
                raise RuntimeError(f"{len(seen.tables)} tables looked at, {daemon.summary.problems}")
            time.sleep(0.1)
        report.timed("first_round", [time.monotonic() - began])
        time.sleep(2 * given.poll)  # each is looked at once more
        asked()
        looks, sweeps, cpu, now = seen.looks, seen.sweeps.total(), time.process_time(), time.monotonic()
        time.sleep(given.idle)
        looks, sweeps = seen.looks - looks, seen.sweeps.total() - sweeps
        cpu, took, counted = time.process_time() - cpu, time.monotonic() - now, asked()
        report.facts |= {
            "looks": looks,
            "sweeps": sweeps,
            "requests": counted,
            "problems": len(daemon.summary.problems),
        }
        report.figure("cpu_share", cpu / took, Goal(figure="cpu_share", limit=_CORES, at_least=False))
        report.figure("cpu_per_look_us", 1e6 * cpu / max(1, looks))
        report.figure("looks_of_polls", looks * given.poll / (took * given.tables))
        if pipe is not None:
            goal = Goal(figure="requests_per_look", limit=_REQUESTS, at_least=False)
            report.figure("requests_per_look", sum(counted.values()) / max(1, looks), goal)
        daemon.stop(Stop.FINISH)
        thread.join(60.0)


if __name__ == "__main__":
    sys.exit(main())
