"""Odd paths, parameters and bytes: an answer or a reason, never an error of the service, never a file outside."""

from __future__ import annotations

import random
from pathlib import Path
from urllib.parse import quote

import pytest

from phantombase.timeline.service.marker_app import MARKER_PREFIX
from phantombase.timeline.service.routes import PREFIX, ROUTES
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import ServiceClient

NAMES = ("basepath", "partition", "fileid", "instant", "maxinstant", "mininstant", "instants", "currentinstant",
         "includependingcompaction", "lastinstantts", "timelinehash", "refreshoff", "pretty", "markerdirpath",
         "markername", "partitions", "", "x")  # fmt: skip
VALUES = ("", "0", "true", "north", "south", "north/", "../secret", "/etc/passwd", "north/../../secret", ".", "..",
          "%00", "%2e%2e%2f", "%ff%fe", "a" * 300, "é", "\U0001f600", "20991121091340983", "null", "{}", "[]", "-1",
          "1e999", ".hoodie", ".hoodie/timeline", "north/.hoodie_partition_metadata", "file:///etc", "s3://x/y",
          "north\nsouth", "x.marker.CREATE", "../../x.marker.CREATE", "☃" * 900)  # fmt: skip
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "X")


def request(chance: random.Random, table: Path) -> tuple[str, bytes, str]:
    """A path, a query string and a method, most of them nearly right."""
    markers = ("create", "dir/delete", "dir/exists", "all", "create-and-merge", "append")
    path = chance.choice([PREFIX + r for r in ROUTES] + [MARKER_PREFIX + m for m in markers])
    if chance.random() < 0.1:
        path = chance.choice(["/", "//", path * 2, path + "/..", "/../" + path, path.upper(), "/t/../..", "/healthz/x"])
    given = {name: chance.choice(VALUES) for name in NAMES if chance.random() < 0.4}
    if chance.random() < 0.9:
        given["basepath"] = str(table)
    if chance.random() < 0.5:
        given["refreshoff"] = "true"
    if chance.random() < 0.5:
        inside = chance.choice(["20991121091340983", "x", "..", "", "20991121091340983/.."])
        given["markerdirpath"] = f"{table}/.hoodie/.temp/{inside}"
    pairs = [f"{quote(k)}={v if '%' in v else quote(v)}" for k, v in given.items()]
    query = "&".join(pairs).encode()
    if chance.random() < 0.05:
        query += bytes(chance.randrange(256) for _ in range(20))
    return path, query, chance.choice(METHODS[:2] if chance.random() < 0.8 else METHODS)


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {p: None if p.is_dir() else p.read_bytes() for p in folder.rglob("*")}


@pytest.mark.parametrize("seed", range(4))
def test_odd_requests_get_a_reason(seed: int, tmp_path: Path) -> None:
    table = unzip_golden("v9_clustered", tmp_path / "served")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/secret-0_0-1-2_20261121091340983.parquet").write_bytes(b"x")
    before = contents(tmp_path / "secret")
    table_before = {p: c for p, c in contents(table).items() if ".temp" not in p.parts}
    client, chance = ServiceClient.of(table, markers=True), random.Random(seed)
    found = set()
    for number in range(400):
        path, query, method = request(chance, table)
        reply = client.loop.run_until_complete(client.send(path, query, method))
        assert reply.status in (200, 400, 404, 414), (number, path, query, method, reply.text)
        assert b"secret-0" not in reply.body, (number, path, query)
        assert reply.body, (number, path, query)
        found.add(reply.status)
    assert found >= {200, 400, 404}
    assert contents(tmp_path / "secret") == before
    after = {p: c for p, c in contents(table).items() if not {".temp", ".phantombase"} & set(p.parts)}
    assert after == table_before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:26754"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "attacker.example:26754"}, 403),
        ({"host": ""}, 403),
        ({"host": "10.1.2.3:26754"}, 403),  # an address, but none of this machine alone
        ({"host": "localhost:26754", "origin": "https://attacker.example"}, 403),
    ],
)
def test_pages_of_other_sites_get_no_answer(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    """Neither by a name of their own for this address, nor across origins: no marker is made by them."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    assert client.ask_with(headers, "/api/tables").status == status
    folder = table / ".hoodie/.temp/20991121091340983"
    made = client.ask_with(
        headers, f"{MARKER_PREFIX}create", "POST", markerdirpath=str(folder), markername="f.marker.CREATE"
    )
    assert (made.status, folder.exists()) == (status, status == 200)


def page_request(chance: random.Random) -> tuple[str, bytes, str]:
    """A page or its JSON, most of it nearly right."""
    name = chance.choice(["clustered", "clustered", "clustered", "none", *(quote(v, safe="") for v in VALUES)])
    time = "20261121100337006"
    lasts = ["", "/groups", f"/instants/{time}", f"/instant/{time}", "/x", "//groups", "/groups/"]
    last = chance.choice([*lasts, f"/instants/{quote(chance.choice(VALUES), safe='')}"])
    others = ["/", "/fleet", "/api/fleet", "/metrics", "/login", "/healthz", "/api", "/api/x", "/page.css"]
    odd = f"/{quote(chance.choice(VALUES))}"
    path = chance.choice([f"/t/{name}{last}", f"/api/tables/{name}{last}", odd, chance.choice(others)])
    names = ("sort", "page", "partition", "", "x")
    given = [f"{n}={quote(chance.choice(VALUES))}" for n in names if chance.random() < 0.4]
    if chance.random() < 0.3:
        given.append(f"sort={chance.choice(['log_bytes', 'log_files', 'partition', 'read_amplification'])}")
    query = "&".join(given).encode()
    if chance.random() < 0.05:
        query += bytes(chance.randrange(256) for _ in range(20))
    return path, query, chance.choice(METHODS[:1] if chance.random() < 0.8 else METHODS)


@pytest.mark.parametrize("seed", range(2))
def test_odd_requests_for_pages_get_a_reason(seed: int, tmp_path: Path) -> None:
    client, chance = ServiceClient.of(unzip_golden("v9_clustered", tmp_path)), random.Random(seed)
    found = set()
    for number in range(250):
        path, query, method = page_request(chance)
        headers = {"accept": chance.choice(["text/html", "*/*", ""])}
        reply = client.loop.run_until_complete(client.send(path, query, method, headers))
        assert reply.status in (200, 400, 404, 414), (number, path, query, method, reply.text)
        assert b"<script" not in reply.body, (number, path, query)
        assert b"Traceback" not in reply.body
        found.add(reply.status)
    assert found >= {200, 400, 404}
