"""Odd paths, parameters and bytes: an answer or a reason, never an error of the service, never a file outside."""

from __future__ import annotations

import random
import socket
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from phantombase.timeline.service.marker_app import MARKER_PREFIX
from phantombase.timeline.service.routes import PREFIX, ROUTES
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import TOKEN, ServiceClient, service
from tests.support.watched_service import serving

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
        expected = (303,) if path == "/login" and method in ("GET", "HEAD") else (200, 400, 404, 414)
        assert reply.status in expected, (number, path, query, method, reply.text)
        assert b"<script" not in reply.body.replace(b'<script src="/page.js" defer></script>', b""), (
            number,
            path,
            query,
        )
        assert b"Traceback" not in reply.body
        found.add(reply.status)
    assert found >= {200, 400, 404}


def order_request(chance: random.Random) -> tuple[str, bytes, str, dict[str, str], bytes]:
    """An order, a login or another POST: path, query, method, headers and body, most of it nearly right."""
    name = chance.choice(["clustered", "clustered", quote(chance.choice(VALUES), safe="")])
    order = chance.choice(["schedule", "release", "unschedule", "compact", quote(chance.choice(VALUES), safe="")])
    paths = [f"/t/{name}/actions/{order}", f"/api/tables/{name}/actions/{order}", f"/t/{name}/actions", "/login", "/"]
    headers = dict(
        chance.sample(
            [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x"), ("origin", "http://localhost"),
             ("origin", "null"), ("cookie", f"phantombase={chance.choice(['', '1.x', '9' * 400, '..', '²'])}"),
             ("cookie", "\x00;=;"), ("content-type", "application/json"), ("sec-fetch-site", "cross-site")],
            chance.randrange(4),
        )
    )  # fmt: skip
    given = {n: chance.choice([*VALUES, "20261121100337006"]) for n in ("instant", "proof", "token", "x")}
    body = "&".join(f"{k}={quote(v)}" for k, v in given.items() if chance.random() < 0.5).encode()
    if chance.random() < 0.2:
        body = chance.choice([bytes(chance.randrange(256) for _ in range(60)), b"x" * 5000, b"{}", b"=&=&" * 50])
    return chance.choice(paths), body[:40] if chance.random() < 0.2 else b"", chance.choice(METHODS[:2]), headers, body


@pytest.mark.parametrize("seed", range(2))
def test_odd_orders_get_a_reason_and_run_nothing_but_commands(seed: int, tmp_path: Path) -> None:
    """What is run is one of the three commands about the served table."""
    ran = tmp_path / "ran"
    write = f"import sys; open({str(ran)!r}, 'a').write(repr(sys.argv[1:]) + chr(10))"
    table = unzip_golden("v9_clustered", tmp_path)
    client, chance = service(table, command=(sys.executable, "-c", write)), random.Random(seed)
    found = set()
    for number in range(250):
        path, query, method, headers, body = order_request(chance)
        reply = client.loop.run_until_complete(client.send(path, query, method, headers, body))
        assert reply.status in (200, 303, 400, 401, 403, 404, 409, 413, 414), (number, path, headers, body, reply.text)
        assert TOKEN.encode() not in reply.body
        found.add(reply.status)
    assert found >= {303, 400, 401, 403, 404}
    lines = ran.read_text().splitlines() if ran.exists() else []
    assert set(lines) <= {repr(["schedule", str(table), "--sole-writer"])}


@pytest.mark.parametrize("seed", range(2))
def test_odd_bytes_on_a_connection_stop_nothing(seed: int, tmp_path: Path) -> None:
    """Not even HTTP: an answer of 4xx or a closed connection, and the next request is answered."""
    table, chance = unzip_golden("v9_plain", tmp_path), random.Random(seed)
    lines = [
        b"GET / HTTP/1.1",
        b"POST /t/plain/actions/schedule HTTP/1.1",
        b"GET /" + b"x" * 70_000,
        b"GET",
        b"\x16\x03\x01",
    ]
    more = [b"Host: localhost", b"Content-Length: -1", b"Content-Length: 99999999999", b"Transfer-Encoding: chunked",
            b"X: " + b"y" * 40_000, b": x", b"\x00: \xff", b"Expect: 100-continue"]  # fmt: skip
    with serving(table) as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        for _ in range(60):
            parts = [chance.choice(lines), *chance.sample(more, chance.randrange(4))]
            sent = b"\r\n".join(parts) + b"\r\n\r\n" + chance.choice([b"", b"zz\r\n", bytes(range(256))])
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                with suppress(OSError):
                    connection.sendall(sent)
                    connection.shutdown(socket.SHUT_WR)
                got = b""
                with suppress(OSError):
                    got = connection.recv(1 << 16)
            assert not got.startswith(b"HTTP/1.1 5"), (sent[:200], got[:200])
        with urlopen(f"{address}/healthz", timeout=60) as reply:
            assert reply.read() == b"ok"


def test_hudis_routes_pass_over_parameters_that_they_do_not_know(tmp_path: Path) -> None:
    """As Hudi's server does, which looks up the names that it knows: a newer client may send further ones."""
    table = unzip_golden("v9_pending", tmp_path)
    client, right = ServiceClient.of(table, markers=True), {"basepath": str(table), "partition": "north"}
    instant = Table.open(str(table)).load_timeline().instants[-1].requested_time
    right |= {"maxinstant": instant, "mininstant": instant, "instants": instant, "instant": instant,
              "currentinstant": instant, "includependingcompaction": "true", "refreshoff": "true",
              "fileid": Table.open(str(table)).load_view().groups[0].file_id, "partitions": "[]",
              "markerdirpath": f"{table}/.hoodie/.temp/20991121091340983",
              "markername": "north/a-0_0-1-2_20991121091340983.parquet.marker.CREATE"}  # fmt: skip
    routes = {PREFIX + name: route.method for name, route in ROUTES.items()}
    routes |= {MARKER_PREFIX + name: "GET" for name in ("all", "create-and-merge", "append", "dir/exists")}
    for path, method in routes.items():
        plain = client.ask(path, method, **right)
        more = client.ask(path, method, **right, numbuckets="4", Partition="south", Refreshoff="x")
        assert (plain.status, more.status, more.json()) == (200, 200, plain.json()), path
