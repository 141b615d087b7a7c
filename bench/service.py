"""The timeline service against Hudi's own server on the same tables: requests per second, first answers, memory.

    python -m bench.service [--quick] [--refreshes N]

Tables of version 9 with 1 k, 20 k and 100 k file groups (quick: without the last), 100 groups in a partition, each with
an empty base file and two empty logs. Both servers are asked with the same requests, one after the other, by `wrk`
(Debian: `apt-get install wrk`) with 16 and 64 connections, one thread, `--seconds` a cell after two of warming.

`first answer`: one delta commit of three partitions is completed, then a client that knows it asks for a partition;
the time until it is answered. `grown`: resident memory of the service over `--refreshes` such steps, each answered.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import TypeAlias
from urllib.parse import urlencode

from bench.report import Goal, Report
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.service.marker_app import MARKER_PREFIX
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.hudi.judge.timeline_server import hudi_server

_GROUPS = (1_000, 20_000, 100_000)
_PER_PARTITION = 100
_CONNECTIONS = (16, 64)
_START = datetime(2026, 1, 1)
_COMMITS = 30
_STEPS = 40
_ASKED = 2_000
_SCRIPT = Path(__file__).with_name("service.lua")
_FIRST_MS = {1_000: 50.0, 20_000: 50.0, 100_000: 100.0}
_GROWN_MIB = 64.0
_MARK = ".hoodie_partition_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteGoal:
    """Our throughput and p95 over Hudi's: at least, at most."""

    rps: float
    p95: float


_ROUTES = {
    "partition": RouteGoal(rps=10, p95=0.1),
    "group": RouteGoal(rps=1, p95=0.5),
    "tiny": RouteGoal(rps=0.8, p95=1),
    "marker": RouteGoal(rps=1, p95=1),
}


# --- the table -----------------------------------------------------------------------------------------------------


def make_table(path: Path, groups: int) -> Table:
    """See the module."""
    path.mkdir(parents=True)
    spec = NewTable(name="served", version=9, key_fields=("id",), partition_fields=("p",))
    table = create_table(LocalStorage(str(path)), spec)
    times = [format_time(_START + timedelta(minutes=n)) for n in range(_COMMITS)]
    for time_ in times:
        commit(table, time_, range(3))
    for number in range(groups // _PER_PARTITION):
        folder = path / partition(number)
        folder.mkdir()
        (folder / _MARK).write_text(f"commitTime={times[0]}\npartitionDepth=1\n")
        for group in range(_PER_PARTITION):
            file_id = f"{uuid.UUID(int=(number << 64) + group + (1 << 100))}-0"
            base = BaseFileName(file_id=file_id, token=f"{group}-10-{group}", instant=times[0], extension="parquet")
            logs = [LogFileName(file_id=file_id, instant=t, version=1, token=f"{group}-20-{group}") for t in times[1:3]]
            for name in (base, *logs):
                (folder / str(name)).touch()
    return table


def partition(number: int) -> str:
    return f"p{number:04d}"


def commit(table: Table, time_: str, partitions: range) -> None:
    """A completed delta commit that names these partitions."""
    base = Path(table.storage.base_path)
    done = Instant(
        requested_time=time_, action="deltacommit", state=State.COMPLETED, completion_time=str(int(time_) + 500)
    )
    stats = {partition(n): (WriteStat(file_id="none", path=f"{partition(n)}/none"),) for n in partitions}
    metadata = CommitMetadata(partition_to_write_stats=stats, operation_type="UPSERT")
    for state in (State.REQUESTED, State.INFLIGHT):
        (base / table.instant_path(done.at(state))).touch()
    written = base / f"{table.instant_path(done)}.new"  # it appears as a whole
    written.write_bytes(encode_commit(metadata, table.layout.encoding))
    written.rename(base / table.instant_path(done))


def known(table: Table) -> dict[str, str]:
    """What a client sends whose view is made now."""
    names = os.listdir(f"{table.storage.base_path}/{table.config.timeline_folder}")
    times = sorted(name.partition("_")[0] for name in names if name.endswith(".deltacommit"))
    text = "".join(f"{time_}_deltacommit_COMPLETED" for time_ in times)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"basepath": table.storage.base_path, "lastinstantts": times[-1], "timelinehash": digest}


def requests(table: Table, groups: int) -> dict[str, list[str]]:
    """Paths to ask for, by route."""
    chance, now = random.Random(1), known(table)
    last = now["lastinstantts"]
    partitions = [partition(n) for n in range(groups // _PER_PARTITION)]
    base = Path(table.storage.base_path)
    files = [(p, name.partition("_")[0]) for p in partitions for name in os.listdir(base / p) if name[0] not in "."]
    asked = chance.sample(files, min(_ASKED, len(files)))
    lists = [_path("slices/partition/latest/", {**now, "partition": p}) for p in partitions]
    lists += [
        _path("slices/merged/beforeoron/latest/", {**now, "partition": p, "maxinstant": last}) for p in partitions
    ]
    return {
        "partition": lists,
        "group": [_path("slices/file/latest/", {**now, "partition": p, "fileid": f}) for p, f in asked],
        "tiny": [_path("timeline/instant/last", now), _path("compactions/pending/", now)],
    }


def _path(route: str, query: dict[str, str]) -> str:
    return f"{PREFIX}{route}?{urlencode(query)}"


# --- measuring -----------------------------------------------------------------------------------------------------


Cells: TypeAlias = dict[tuple[str, int], dict[str, float]]
"""By route and number of connections."""


def load(address: str, seconds: float, connections: int, **environment: str) -> dict[str, float]:
    """What wrk found. RuntimeError: an error in an answer."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "60s", "-s", str(_SCRIPT), address]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found.pop("errors"):
        raise RuntimeError(f"{address} answered errors: {done.stdout}")
    return found


def cells(
    address: str, table: Table, paths: dict[str, Path], seconds: float
) -> dict[tuple[str, int], dict[str, float]]:
    """Each route with each number of connections."""
    found = {}
    for route, path in paths.items():
        load(address, 2, _CONNECTIONS[0], PATHS=str(path))
        for connections in _CONNECTIONS:
            found[route, connections] = load(address, seconds, connections, PATHS=str(path))
    folder = f"{table.storage.base_path}/.hoodie/.temp/20270101000000000"
    for connections in _CONNECTIONS:
        query = urlencode({"markerdirpath": folder, "basepath": table.storage.base_path})
        create = f"{MARKER_PREFIX}create?{query}&markername=p0000%2Ff{connections}-{uuid.uuid4()}-"
        found["marker", connections] = load(address, seconds, connections, MARKERS=create)
        shutil.rmtree(folder, ignore_errors=True)
    return found


class Client:
    """One connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=300)

    def ask_ms(self, path: str) -> float:
        """Milliseconds until it is answered. RuntimeError: not with 200."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"Accept-Encoding": "gzip,deflate"})
        reply = self._connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {body[:300]!r}")
        return (time.perf_counter() - began) * 1000


def first_answers_ms(address: str, table: Table, groups: int, steps: int, begun: datetime) -> list[float]:
    """See the module."""
    client, took, chance = Client(address), [], random.Random(2)
    for step in range(steps):
        first = chance.randrange(groups // _PER_PARTITION - 2)
        commit(table, format_time(begun + timedelta(seconds=step)), range(first, first + 3))
        took.append(client.ask_ms(_path("slices/partition/latest/", {**known(table), "partition": partition(first)})))
    return took


def p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1]


@contextmanager
def ours(path: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of the service."""
    command = [sys.executable, "-m", "phantombase.timeline.cli.main", "serve", "--port", "0", "--markers", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rpartition(" ")[2].strip(), process.pid
        finally:
            process.terminate()


def resident_mib(pid: int) -> float:
    line = next(t for t in Path(f"/proc/{pid}/status").read_text().splitlines() if t.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def grown_mib(table: Table, groups: int, refreshes: int) -> float:
    """How much more memory the service has after `refreshes` steps than after the first tenth of them.

    Each step is undone at once: the table stays as large as it is.
    """
    base, chance = Path(table.storage.base_path), random.Random(3)
    with ours(base) as (address, pid):
        client = Client(address)
        after_tenth = 0.0
        for step in range(refreshes):
            time_ = format_time(_START + timedelta(days=700, milliseconds=step * 2))
            first = chance.randrange(groups // _PER_PARTITION - 2)
            commit(table, time_, range(first, first + 3))
            client.ask_ms(_path("slices/partition/latest/", {**known(table), "partition": partition(first)}))
            for name in (base / table.config.timeline_folder).glob(f"{time_}*"):
                name.unlink()
            if step == refreshes // 10:
                after_tenth = resident_mib(pid)
        return resident_mib(pid) - after_tenth


def cold_s(address: str, table: Table) -> float:
    """The first answer about a table that was never asked for."""
    return Client(address).ask_ms(_path("slices/partition/latest/", {**known(table), "partition": partition(0)})) / 1000


def measure(report: Report, folder: Path, groups: int, seconds: float) -> None:
    """One size: both servers, one after the other."""
    path = folder / f"served-{groups}"
    table = make_table(path, groups)
    paths = {}
    for route, asked in requests(table, groups).items():
        paths[route] = folder / f"{route}-{groups}.txt"
        paths[route].write_text("".join(f"{p}\n" for p in asked))
    name = f"{groups // 1000} k"
    with hudi_server("1.2.0") as address:
        theirs = cells(address, table, paths, seconds)
        report.figure(f"{name}, first answer after one instant, Hudi, p95 ms",
                      p95(first_answers_ms(address, table, groups, _STEPS, _START + timedelta(days=300))))  # fmt: skip
    shutil.rmtree(path)
    table = make_table(path, groups)
    with ours(path) as (address, pid):
        _held(report, f"{name}, loaded cold, s", cold_s(address, table), 20, at_least=False)
        found = cells(address, table, paths, seconds)
        figure = f"{name}, first answer after one instant, p95 ms"
        took = first_answers_ms(address, table, groups, _STEPS, _START + timedelta(days=300))
        report.figure(figure, p95(took), Goal(figure=figure, limit=_FIRST_MS[groups], at_least=False))
        report.figure(f"{name}, resident MiB", resident_mib(pid))
    for (route, connections), cell in found.items():
        other, goal = theirs[route, connections], _ROUTES[route]
        text = f"{name}, {route}, {connections} connections"
        report.facts[text] = f"{_said(cell)}; Hudi {_said(other)}"
        _held(report, f"{text}, throughput", cell["rps"] / other["rps"], goal.rps, at_least=True)
        _held(report, f"{text}, p95", cell["p95_ms"] / other["p95_ms"], goal.p95, at_least=False)


def _said(cell: dict[str, float]) -> str:
    return f"{cell['rps']:.0f}/s, p95 {cell['p95_ms']:.1f} ms"


def _held(report: Report, figure: str, value: float, limit: float, *, at_least: bool) -> None:
    report.figure(figure, value, Goal(figure=figure, limit=limit, at_least=at_least))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without 100 k file groups")
    parser.add_argument("--groups", type=int, choices=_GROUPS, help="only this size")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell")
    parser.add_argument("--refreshes", type=int, default=0, help="steps of the memory measurement, on 20 k file groups")
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        print("bench.service needs wrk (Debian: apt-get install wrk)", file=sys.stderr)
        return 2
    report = Report(bench="service")
    sizes = [given.groups] if given.groups else _GROUPS[:-1] if given.quick else _GROUPS
    with tempfile.TemporaryDirectory(prefix="phantombase-bench-") as folder:
        for groups in sizes if not given.refreshes else ():
            measure(report, Path(folder), groups, given.seconds)
        if given.refreshes:
            table = make_table(Path(folder) / "refreshed", 20_000)
            grown = grown_mib(table, 20_000, given.refreshes)
            _held(report, f"grown over {given.refreshes} refreshes, MiB", grown, _GROWN_MIB, at_least=False)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
