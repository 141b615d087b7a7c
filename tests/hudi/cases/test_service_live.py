"""The service beside Hudi's own server of 1.2.0, asked the same about tables in states that no recorded answer has."""

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

import pytest

from phantombase.timeline.format.file_name import parse_data_file
from tests.hudi.judge.timeline_server import hudi_server
from tests.support.golden_tables import unzip_golden
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep
from tests.support.service_client import ServiceClient, difference

pytestmark = pytest.mark.interop

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
