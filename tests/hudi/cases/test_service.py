"""Real Hudi writers that use the timeline service for view and markers: rows and timeline as without it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.table.table import Table
from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.judge.client import Judge
from tests.hudi.judge.fixtures import Judges
from tests.hudi.judge.table_files import TablePath
from tests.hudi.judge.timeline_server import hudi_server
from tests.support.golden_tables import unzip_golden
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import ALL, deep
from tests.support.servers.s3_server import S3Server
from tests.support.service_client import ServiceClient, difference
from tests.support.watched_service import Spoilt, watched_service

pytestmark = pytest.mark.interop
Options = dict[str, Any]


def remote(port: int) -> Options:
    """Settings of a writer that asks the service and nothing else."""
    return {
        "hoodie.embed.timeline.server": "false",
        "hoodie.filesystem.view.type": "REMOTE_ONLY",
        "hoodie.filesystem.view.remote.host": "127.0.0.1",
        "hoodie.filesystem.view.remote.port": str(port),
        "hoodie.write.markers.type": "TIMELINE_SERVER_BASED",
    }


def rows(first: int, count: int, ts: int) -> pa.Table:
    """Keys of three partitions."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "ts": pa.array([ts] * count, pa.int64()),
            "p": [f"p{n % 3}" for n in numbers],
            "v": pa.array([n * ts for n in numbers], pa.int64()),
        }
    )


def history(judge: Judge, path: TablePath, version: int, options: Options) -> None:
    """Every kind of operation a writer has."""
    judge.create(path, "served", rows(0, 90, 1), version=version, partition_field="p", options=options)
    judge.upsert(path, rows(0, 45, 2))
    judge.upsert(path, rows(30, 80, 3))
    assert judge.schedule_compaction(path) is not None
    judge.upsert(path, rows(0, 20, 4))
    assert judge.run_compaction(path)
    judge.upsert(path, rows(20, 30, 5))
    judge.savepoint(path)
    judge.upsert(path, rows(0, 10, 6))
    last = max(Table.open(str(path)).load_timeline().completed_writes)
    judge.rollback(path, last)
    judge.cluster(path)
    judge.upsert(path, rows(10, 20, 7))
    judge.delete(path, rows(60, 6, 8))
    judge.bulk_insert(path, rows(200, 12, 9))
    judge.insert_overwrite(path, pa.concat_tables([rows(0, 1, 10), rows(3, 1, 10)]))
    judge.clean(path, retain_commits=1)
    judge.upsert(path, rows(1, 20, 11))
    judge.archive(path)
    judge.upsert(path, rows(1, 5, 12), options={"hoodie.metadata.enable": "true"})


def short_history(judge: Judge, path: TablePath, version: int, options: Options) -> None:
    """The usual operations."""
    judge.create(path, "served", rows(0, 90, 1), version=version, partition_field="p", options=options)
    judge.upsert(path, rows(0, 45, 2))
    judge.upsert(path, rows(30, 80, 3))
    assert judge.schedule_compaction(path) is not None
    judge.upsert(path, rows(0, 20, 4))
    assert judge.run_compaction(path)
    judge.delete(path, rows(60, 6, 8))


def outcome(judge: Judge, path: TablePath) -> tuple[list[Any], list[tuple[str, str]]]:
    """The rows, and the timeline's actions and states in order."""
    found = judge.read(path).select(["id", "ts", "p", "v"]).sort_by([("id", "ascending"), ("p", "ascending")])
    timeline = Table.open(str(path)).load_timeline()
    return found.to_pylist(), [(i.action, i.state.name) for i in timeline.instants]


@pytest.mark.parametrize("version", [deep(6), deep(8), deep(9)], indirect=True)
def test_a_writer_through_the_service_does_what_it_does_without(version: int, judge: Judge, tmp_path: Path) -> None:
    through_the_service(judge, version, tmp_path / "plain", tmp_path / "served")
    assert not list((tmp_path / "served/.hoodie/.temp").glob("2*"))


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_a_writer_of_an_object_store_does_so_too(version: int, s3_judges: Judges, s3: S3Server) -> None:
    bucket = s3.new_bucket()
    through_the_service(s3_judges(HUDI[version]), version, f"s3a://{bucket}/plain", f"s3a://{bucket}/served")


def asking_first(port: int) -> Options:
    """Settings of a writer that asks the service as long as it answers."""
    return {
        **remote(port),
        "hoodie.filesystem.view.type": "REMOTE_FIRST",
        "hoodie.filesystem.view.remote.timeout.secs": "2",
        "hoodie.write.markers.type": "DIRECT",
    }


@pytest.mark.parametrize(
    ("version", "kind"),
    [(9, Spoilt.GONE), *(deep(v, kind) for v in (6, 8, 9) for kind in Spoilt if (v, kind) != (9, Spoilt.GONE))],
    indirect=["version"],
)
def test_a_writer_that_asks_first_goes_on_without_answers(
    version: int, kind: Spoilt, judge: Judge, tmp_path: Path
) -> None:
    """As with Hudi's own server: whatever becomes of a request, the writer then looks at the files itself."""
    plain, served = tmp_path / "plain", tmp_path / "served"
    steps = history if ALL else short_history
    steps(judge, plain, version, {})
    with watched_service(served) as service:
        once = kind is Spoilt.GONE
        service.spoil = lambda number: kind if number == 20 or (number % 9 == 8 and not once) else None
        steps(judge, served, version, asking_first(service.port))
    assert service.spoilt
    assert outcome(judge, served) == outcome(judge, plain)


def through_the_service(judge: Judge, version: int, plain: TablePath, served: TablePath) -> None:
    """The same history twice: its rows and its timeline are the same."""
    history(judge, plain, version, {})
    with watched_service(served) as service:
        history(judge, served, version, remote(service.port))
    assert {status for _, status in service.answered} == {200}, [a for a in service.answered if a[1] != 200]
    asked = {path for path, _ in service.answered}
    assert {f"{PREFIX}{r}" for r in ("compactions/pending/", "slices/partition/latest/stateless/")} <= asked
    if HUDI[version] != "0.15.0":  # which uses direct markers without its own server
        assert "/v1/hoodie/marker/create" in {path.rstrip("/") for path in asked}
    assert outcome(judge, served) == outcome(judge, plain)


# The service beside Hudi's own server of 1.2.0, asked the same about tables in states that no recorded answer has.


VIEW = "/v1/hoodie/view/"


def newest(table: Path, ending: str) -> Path:
    return max((table / ".hoodie/timeline").glob(f"*{ending}"))


def pending_write(table: Path) -> str:
    """The newest delta commit had not completed."""
    done = newest(table, ".deltacommit")
    done.unlink()
    return done.name.partition("_")[0]


def two_pending_writes(table: Path) -> str:
    pending_write(table)
    return pending_write(table)


def pending_clustering(table: Path) -> str:
    """Its plan is there, and files of it; it had not completed, and nothing came after it."""
    done = newest(table, ".replacecommit")
    done.unlink()
    time = done.name.partition("_")[0]
    for instant in (table / ".hoodie/timeline").glob("2*"):
        if instant.name[: len(time)] > time:
            instant.unlink()
    for file in table.glob("*/*"):
        name = parse_data_file(file.name)
        if name is not None and name.instant > time:
            file.unlink()
    return time


def pending_log_compaction(table: Path) -> str:
    """Its process died before the commit."""
    time = newest(table, ".logcompaction.requested").name.partition(".")[0]
    (done,) = (table / ".hoodie/timeline").glob(f"{time}_*.deltacommit")
    done.unlink()
    return time


STATES: list[tuple[str, Callable[[Path], str]]] = [
    ("v9_pending", pending_write),
    ("v9_two_pending", two_pending_writes),
    ("v9_bucket_nonpart", pending_write),
    ("v9_clustered", pending_clustering),
    ("v9_log_compacted", pending_log_compaction),
    ("v8_pending", pending_write),
    ("v8_clustered", pending_clustering),
]


def asked(address: str, path: str, method: str, query: dict[str, str]) -> tuple[int, Any]:
    try:
        with urlopen(Request(f"{address}{path}?{urlencode(query)}", method=method), timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except HTTPError as error:
        return error.code, None


def requests(archive: str, base: str, pending: str) -> list[dict[str, Any]]:
    """Those of the recorded corpus, without what a client knows; `pending`: the instant that is asked for."""
    corpus = GOLDEN_FOLDER / "served" / f"{archive}@1.2.0.jsonl.gz"
    found = []
    for line in gzip.decompress(corpus.read_bytes()).decode().splitlines()[1:]:
        request = json.loads(line)
        query = {k: v.replace("{base}", base) for k, v in request["query"].items()}
        query = {k: v for k, v in query.items() if k not in ("lastinstantts", "timelinehash")}
        query["refreshoff"] = "true"
        if "currentinstant" in query:
            found.append({**request, "query": {**query, "currentinstant": pending}})
        found.append({**request, "query": query})
    return found


USUAL = ("v9_two_pending", "v9_log_compacted")
"""Of pending writes and of pending services."""


@pytest.mark.parametrize(("archive", "make"), [(a, m) if a in USUAL else deep(a, m) for a, m in STATES])
def test_answers_are_those_of_hudis_own_server(archive: str, make: Callable[[Path], str], tmp_path: Path) -> None:
    table = unzip_golden(archive, tmp_path)
    pending = make(table)
    base, client = str(table), ServiceClient.of(table)
    wrong: Counter[str] = Counter()
    first = ""
    with hudi_server("1.2.0", heap="700m") as address:
        for route in ("refresh/", "loadallpartitions/"):
            asked(address, f"{VIEW}{route}", "POST", {"basepath": base})
        for request in requests(archive, base, pending):
            status, answer = asked(address, request["path"], request["method"], request["query"])
            plain = None if answer is None else json.loads(json.dumps(answer).replace(base, "{base}"))
            live = {**request, "status": status, "response": plain}
            reply = client.ask(request["path"], request["method"], **request["query"])
            if found := difference(live, reply, base, old=False, version_6=False):
                wrong[request["path"]] += 1
                first = first or f"{request['path']} {request['query']}\n   {found}"
    assert not wrong, f"{dict(wrong)}\n{first}"
