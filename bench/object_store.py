"""An object store that takes 25 ms to answer: compaction against the same on a disk, snapshot reads against hudi-rs.

    python -m bench.object_store [--quick] [--runs N] [--delay MILLISECONDS]

The store is the tests' S3 server in a process of its own; each request waits for the delay before it is served. The
small table of `bench.compaction`, Avro logs, zstd, `--executor local`, from process start. `bytes_s` is the time in
which the store, asked for nothing else, takes and gives the bytes of the table; it is no part of the goal's 1.5 times.
`requests_*` are those of one run, by kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from bench.child import THREADS
from bench.processes import child, run
from bench.report import Goal, Report
from bench.tables import copy_of, make, readable, small
from tests.support.servers.s3_server import Asked, Fault, S3Server, s3_server

_READS = 3


def kind(asked: Asked) -> str:
    """A request in S3's words."""
    if asked.method == "GET" and "list-type" in asked.query:
        return "LIST"
    if asked.method == "POST" and asked.query.startswith("delete"):
        return "DELETE"
    return asked.method


def serve(delay_s: float) -> None:
    """A server: prints its port; for each line that it reads, the requests since the last one, by kind."""

    def late(_: Asked) -> Fault:
        time.sleep(delay_s)
        return Fault.NONE

    with s3_server() as server:
        server.faults = late
        print(server.port, flush=True)
        for _ in sys.stdin:
            asked, server.asked = server.asked, []
            print(json.dumps(Counter(map(kind, asked))), flush=True)


class Store:
    """A server in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self.server = S3Server(port=int(self._out.readline()))

    def requests(self) -> dict[str, int]:
        """Those since the last call, by kind."""
        print(file=self._in, flush=True)
        found: dict[str, int] = json.loads(self._out.readline())
        return found


@contextmanager
def started(delay_ms: float) -> Iterator[Store]:
    """A server that answers late."""
    command = [sys.executable, "-m", "bench.object_store", "--serve", "--delay", str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            store = Store(process)
            os.environ |= store.server.environment()
            yield store
        finally:
            process.kill()


def bytes_s(store: Store, table: Path) -> float:
    """Seconds in which the store takes the table's bytes as one object, and gives them back."""
    size = sum(f.stat().st_size for f in table.rglob("*") if f.is_file())
    bucket = S3Store(store.server.new_bucket())
    began = time.perf_counter()
    obstore.put(bucket, "bytes", bytes(size), use_multipart=False)
    obstore.get(bucket, "bytes").bytes()
    return time.perf_counter() - began


def compact(table: str) -> float:
    """Seconds from process start."""
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact", table, "--json"]
    return run([*command, "--executor", "local", "--threads", str(THREADS)]).seconds


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Compaction and snapshot reads on an object store that answers late.")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--runs", type=int, default=3, help="rounds [default: 3; with --quick: 1]")
    parser.add_argument("--delay", type=float, default=25, help="milliseconds a request waits [default: 25]")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.delay / 1000)
        return 0
    made, read = make(small("avro")), make(readable(quick=True))
    seconds: dict[str, list[float]] = defaultdict(list)
    report = Report(bench="object_store")
    facts: dict[str, Any] = {"delay_ms": arguments.delay, "file_groups": made.spec.slices}
    with started(arguments.delay) as store:
        url = store.server.upload(read.path, store.server.new_bucket(), "t")
        for _ in range(1 if arguments.quick else arguments.runs):
            with copy_of(made) as copy:
                seconds["compact_local"].append(compact(str(copy)))
            there = store.server.upload(made.path, store.server.new_bucket(), "t")
            seconds["bytes"].append(bytes_s(store, made.path))
            store.requests()
            seconds["compact"].append(compact(there))
            facts["requests_compact"] = store.requests()
            for name, command in (("read_ours", "read-ours"), ("read_hudi_rs", "read-hudi-rs")):
                ran = child(command, url, str(_READS))
                seconds[name].append(ran.answer["seconds"][-1])
                facts[f"requests_{name}"] = {k: n // _READS for k, n in store.requests().items()}
                if ran.answer["rows"] != read.spec.rows_after:
                    raise RuntimeError(f"{name}: {ran.answer['rows']} rows, written {read.spec.rows_after}")
    report.facts |= facts
    taken = {name: report.timed(name, each) for name, each in seconds.items()}
    ratio = (taken["compact"] - taken["bytes"]) / taken["compact_local"]
    report.figure("ratio_local", ratio, Goal(figure="ratio_local", limit=1.5, at_least=False))
    faster = taken["read_hudi_rs"] / taken["read_ours"]
    report.figure("ratio_hudi_rs", faster, Goal(figure="ratio_hudi_rs", limit=2))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
