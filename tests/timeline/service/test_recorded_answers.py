"""Answers of real Hudi servers (0.15.0 and 1.2.0) about the golden tables, replayed against the service.

`tests/golden/served/<archive>@<server>.jsonl.gz`: a header, then one request and its answer a line, as Hudi's own
remote view sent it. Compared as sets: lists to which Hudi gives no order.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_tables import unzip_golden
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.service_client import Reply, ServiceClient

CORPORA = sorted(path.name.removesuffix(".jsonl.gz") for path in (GOLDEN_FOLDER / "served").glob("*.jsonl.gz"))
SAMPLE = {
    "v6_compacted_cleaned@0.15.0",
    "v6_replaced@0.15.0",
    "v6_two_pending@1.2.0",
    "v9_clustered@1.2.0",
    "v9_complex_key@1.2.0",
}

_IN_ORDER = ("logFiles", "slices", "instants")
_LOADED_SO_FAR = "datafiles/all/latest/"
"""The real server answers this one of the partitions that were loaded so far; the service of all."""


def _canonical(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _canonical(v, k) for k, v in value.items()}
    if isinstance(value, list):
        items = [_canonical(v) for v in value]
        return items if name in _IN_ORDER else sorted(items, key=lambda v: json.dumps(v, sort_keys=True))
    return value


def _comparable(value: Any, name: str = "", *, old: bool, version_6: bool) -> Any:
    """The answer without what cannot be reproduced: modification times, completion times of version 6, and what
    0.15.0 did not know; the first file group's timeline is compared apart."""

    def below(v: Any, key: str) -> Any:
        return _comparable(v, key, old=old, version_6=version_6)

    if isinstance(value, dict):
        kept = dict(value)
        if "ts" in kept and old:
            kept = {k: v for k, v in kept.items() if k not in ("requestedTime", "completionTime")}
        if "completionTime" in kept and version_6:
            kept["completionTime"] = "*"
        if "modificationTime" in kept:
            assert kept["modificationTime"] == "*" or isinstance(kept["modificationTime"], int)
            kept["modificationTime"] = "*"
        if "slices" in kept:
            kept.pop("timeline")
        return {k: below(v, k) for k, v in kept.items()}
    if isinstance(value, list):
        return [below(v, name) for v in value]
    return value


def _all_of_it(value: Any) -> Any:
    return value


def _shared_timeline(value: Any) -> Any:
    """The timeline that the first of some file groups carries."""
    items = [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
    return next((v["timeline"] for v in items if v.get("timeline")), None)


def difference(request: dict[str, Any], reply: Reply, base: str, *, old: bool, version_6: bool) -> str:
    """Why a reply is not the recorded one; "" if it is."""
    if request["status"] >= 500 and reply.status < 500:
        return ""
    if reply.status != request["status"]:
        return f"status {reply.status}, recorded {request['status']}: {reply.text[:200]}"
    if reply.status != 200:
        return ""
    answer = json.loads(reply.text.replace(base, "{base}"))
    recorded = request["response"]
    if "://" in base:
        text = json.dumps(recorded).replace("file://{base}", "{base}").replace("file:{base}", "{base}")
        recorded = json.loads(text)
    if request["path"].endswith(_LOADED_SO_FAR) and not recorded:
        return ""
    for part in (_all_of_it, _shared_timeline):
        got, want = (_canonical(_comparable(part(v), old=old, version_6=version_6)) for v in (answer, recorded))
        if got != want:
            return f"answered {json.dumps(got)[:1500]}\n   recorded {json.dumps(want)[:1500]}"
    return ""


@pytest.mark.parametrize("corpus", [c if c in SAMPLE else deep(c) for c in CORPORA])
def test_the_answers_of_real_hudi_servers(corpus: str, tmp_path: Path) -> None:
    archive, _, server = corpus.partition("@")
    base = str(unzip_golden(archive, tmp_path))
    old, version_6 = server.startswith("0."), archive.startswith("v6_")
    check(corpus, ServiceClient.of(base), base, old=old, version_6=version_6)


@pytest.mark.parametrize("corpus", ["v9_complex_key@1.2.0", *map(deep, ["v6_two_pending@1.2.0", "v9_clustered@1.2.0"])])
def test_tables_of_an_object_store_get_the_same_answers(corpus: str, s3: S3Server, tmp_path: Path) -> None:
    """Hudi's clients spell the base path `s3a://`; every path of an answer is spelled like it."""
    archive, _, _ = corpus.partition("@")
    url = s3.upload(unzip_golden(archive, tmp_path), s3.new_bucket(), "lake/t")
    client, spelled = ServiceClient.of(url), url.replace("s3://", "s3a://")
    check(corpus, client, spelled, old=False, version_6=archive.startswith("v6_"))
    for page in ("/", "/t/t", "/t/t/groups", "/fleet"):
        assert client.ask(page).status == 200
    found = client.ask("/api/tables/t").json()
    assert (found["health"], found["path"]) == ("ok", url), found["reason"]


def check(corpus: str, client: ServiceClient, base: str, *, old: bool, version_6: bool) -> None:
    """Replays a corpus. What was recorded of a local table names it by `file:`."""
    lines = gzip.decompress((GOLDEN_FOLDER / "served" / f"{corpus}.jsonl.gz").read_bytes()).decode().splitlines()
    wrong: Counter[str] = Counter()
    first = ""
    for line in lines[1:]:
        request = json.loads(line)
        query = {k: v.replace("{base}", base) for k, v in request["query"].items()}
        reply = client.ask(request["path"], request["method"], **query)
        if found := difference(request, reply, base, old=old, version_6=version_6):
            wrong[request["path"]] += 1
            first = first or f"{request['path']} {query}\n   {found}"
    assert not wrong, f"{dict(wrong)}\n{first}"
