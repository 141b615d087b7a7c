"""Answers of real Hudi servers (0.15.0 and 1.2.0) about the golden tables, replayed against the service.

`tests/golden/served/<archive>@<server>.jsonl.gz`: a header, then one request and its answer a line, as Hudi's own
remote view sent it. Compared as sets: lists to which Hudi gives no order.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.golden_tables import unzip_golden
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.service_client import ServiceClient, difference

CORPORA = sorted(path.name.removesuffix(".jsonl.gz") for path in (GOLDEN_FOLDER / "served").glob("*.jsonl.gz"))
SAMPLE = {
    "v6_compacted_cleaned@0.15.0",
    "v6_replaced@0.15.0",
    "v6_two_pending@1.2.0",
    "v9_clustered@1.2.0",
    "v9_complex_key@1.2.0",
}


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
