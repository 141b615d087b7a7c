"""Requests that were answered before take a short way: the answer is the one of the long way, or none."""

from __future__ import annotations

import asyncio
import gzip
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from uvicorn.server import ServerState

from phantombase.timeline.service import asgi, run
from phantombase.timeline.service.asgi import Access
from phantombase.timeline.service.routes import PREFIX, ROUTES
from phantombase.timeline.service.run import QuickHttp
from phantombase.timeline.service.served_tables import ServedTables
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import Reply, ServiceClient, known, put, take_back_last

LATEST = f"{PREFIX}slices/partition/latest/"
LINES = {"Host": "localhost", "Accept-Encoding": "gzip,deflate"}


@dataclass(slots=True)
class Wire(asyncio.Transport):
    """One connection of `QuickHttp`, without a network. `long`: how many requests went the long way."""

    client: ServiceClient
    address: str = "127.0.0.1"
    out: bytes = b""
    closed: bool = False
    aborted: bool = False
    long: int = 0
    protocol: QuickHttp = field(init=False)

    def __post_init__(self) -> None:
        self.client.loop.run_until_complete(self._connect())

    async def _connect(self) -> None:
        config = uvicorn.Config(self.client.app, http=QuickHttp, lifespan="off", log_config=None)
        config.load()
        self.protocol = QuickHttp(config=config, server_state=ServerState(), app_state={})
        app = self.protocol.app

        async def counted(*args: object) -> None:
            self.long += 1
            await app(*args)

        self.protocol.app = counted
        self.protocol.connection_made(self)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": (self.address, 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.out += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def ask(self, target: str, method: str = "GET", version: str = "1.1", **lines: str) -> Reply:
        """One request, and what came back."""
        return reply_of(self.raw(request(target, method, version, **lines)), method)

    def raw(self, data: bytes) -> bytes:
        self.out = b""
        self.client.loop.run_until_complete(self._feed(data))
        return self.out

    async def _feed(self, data: bytes) -> None:
        self.protocol.data_received(data)
        while self.protocol.tasks:
            await asyncio.sleep(0)


def request(target: str, method: str = "GET", version: str = "1.1", **lines: str) -> bytes:
    given = {**LINES, **{name.replace("_", "-"): value for name, value in lines.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {target} HTTP/{version}\r\n{head}\r\n".encode()


def reply_of(data: bytes, method: str = "GET") -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    headers.pop("server", None)
    assert method == "HEAD" or int(headers["content-length"]) == len(body)
    return Reply(int(first.split()[1]), headers, body)


def target(route: str, **query: str) -> str:
    return f"{route}?{urlencode(query)}"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return unzip_golden("v9_pending", tmp_path)


@pytest.fixture
def wire(table: Path) -> Wire:
    return Wire(ServiceClient.of(table))


def test_the_second_time_the_answer_is_the_same_and_nothing_runs(wire: Wire, table: Path) -> None:
    asked = target(LATEST, partition="north", **known(table))
    first = wire.ask(asked)
    assert first.status == 200
    assert first.body
    assert wire.long == 1
    assert [wire.ask(asked), wire.ask(asked)] == [first, first]
    assert wire.long == 1


def test_a_client_that_takes_no_gzip_gets_none(wire: Wire, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "GZIP_FROM_BYTES", 100)
    asked = target(f"{PREFIX}timeline/instants/all/", basepath=str(table))
    packed = wire.ask(asked)
    assert packed.headers["content-encoding"] == "gzip"
    plain = wire.ask(asked, Accept_Encoding="identity")
    assert wire.long == 1
    assert "content-encoding" not in plain.headers
    assert plain.body == gzip.decompress(packed.body)


@pytest.mark.parametrize(
    "lines",
    [{"Host": "elsewhere.example"}, {"Origin": "http://elsewhere.example"}, {"X_Forwarded_For": "10.1.1.1"}],
    ids=str,
)
def test_headers_that_decide_are_looked_at(wire: Wire, table: Path, lines: dict[str, str]) -> None:
    """The service trusts a proxy on this machine, so the client is the one that the proxy names."""
    asked = target(LATEST, partition="north", **known(table))
    assert wire.ask(asked).status == wire.ask(asked).status == 200
    assert wire.ask(asked, **lines).status == 403


def test_another_address_gets_nothing(wire: Wire, table: Path) -> None:
    asked = target(LATEST, partition="north", **known(table))
    wire.ask(asked)
    assert Wire(wire.client, "10.1.1.1").ask(asked).status == 403
    near = Access(host="10.0.0.1", token="a token of twenty-seven bytes", hudi_clients=("10.0.0.0/8",))
    client = ServiceClient.of(table, access=near)
    assert [Wire(client, at).ask(asked, Host="10.0.0.1").status for at in ("10.1.1.1", "10.1.1.1")] == [200, 200]
    assert Wire(client, "11.1.1.1").ask(asked, Host="10.0.0.1").status == 403


@pytest.mark.parametrize(
    ("how", "closes"), [({"method": "HEAD"}, False), ({"version": "1.0"}, True), ({"Connection": "close"}, True)]
)
def test_other_requests_go_the_long_way(wire: Wire, table: Path, how: dict[str, str], closes: bool) -> None:
    asked = target(LATEST, partition="north", **known(table))
    body = wire.ask(asked).body
    reply = wire.ask(asked, **how)
    assert (reply.status, reply.body) == (200, b"" if "method" in how else body)
    assert (wire.long, wire.closed) == (2, closes)


def test_an_answer_for_people_is_printed_each_time(wire: Wire, table: Path) -> None:
    asked = target(LATEST, partition="north", pretty="true", **known(table))
    first = wire.ask(asked)
    assert b"\n" in gzip.decompress(first.body) if "content-encoding" in first.headers else b"\n" in first.body
    assert wire.ask(asked) == first


def test_what_is_answered_by_post_is_not_by_get(wire: Wire, table: Path) -> None:
    asked = target(f"{PREFIX}loadallpartitions/", basepath=str(table))
    assert [wire.ask(asked, method).status for method in ("POST", "GET")] == [200, 404]


def test_a_connection_waits_for_its_next_request(wire: Wire, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as after any answer, not only the seconds that a request may take."""
    asked = target(LATEST, partition="north", **known(table))
    wire.ask(asked)
    limits: list[asyncio.TimerHandle] = []
    later = wire.client.loop.call_later

    def noted(delay: float, do: Callable[..., object], *given: Any, **named: Any) -> asyncio.TimerHandle:
        timer = later(delay, do, *given, **named)
        limits.extend([timer] if delay == run._REQUEST_S else [])
        return timer

    monkeypatch.setattr(run, "_REQUEST_S", 1234.5)
    monkeypatch.setattr(wire.client.loop, "call_later", noted)
    before = wire.protocol.timeout_keep_alive_task
    assert wire.ask(asked).status == 200
    assert limits != []
    assert all(limit.cancelled() for limit in limits)
    assert not wire.aborted
    assert wire.protocol.timeout_keep_alive_task not in (None, before)


def test_a_body_is_read(wire: Wire, table: Path) -> None:
    asked = target(LATEST, partition="north", **known(table))
    first = wire.ask(asked)
    both = wire.raw(request(asked, content_length="5") + b"GET /" + request(asked))
    assert both.count(b"HTTP/1.1 200 OK") == 2
    assert reply_of(both[: len(both) // 2]).body == first.body


def test_answers_come_in_the_order_of_the_requests(wire: Wire, table: Path) -> None:
    """The second of these waits for nothing, the first runs."""
    asked = [target(LATEST, partition=p, **known(table)) for p in ("north", "south")]
    north, south = map(wire.ask, asked)
    assert north.body != south.body
    slow = target(f"{PREFIX}slices/partition/latest/stateless/", partition="north", **known(table))
    found = wire.raw(request(slow) + request(asked[1]))
    assert found.count(b"HTTP/1.1 200 OK") == 2
    assert found.endswith(south.body)
    assert wire.ask(asked[0]) == north


def test_a_new_instant_is_seen(wire: Wire, table: Path) -> None:
    files = take_back_last(table)
    newest = target(f"{PREFIX}timeline/instant/last/", basepath=str(table))
    before, old = known(table), wire.ask(newest).body
    assert wire.ask(newest).body == old
    put(files)
    wire.ask(target(LATEST, partition="north", **known(table)))
    assert wire.ask(newest).body != old
    behind = target(LATEST, partition="north", **before)
    assert wire.ask(behind) == wire.ask(behind)
    assert wire.client.app.repeated(behind.encode(), {b"host": b"localhost"}, "127.0.0.1") is None


def test_a_table_that_went_is_not_answered_from_memory(table: Path) -> None:
    tables = ServedTables([f"{table.parent}/*"])
    tables.follow(tables.snapshot())
    wire = Wire(ServiceClient.of_tables(tables))
    asked = target(LATEST, partition="north", **known(table))
    assert wire.ask(asked).status == wire.ask(asked).status == 200
    shutil.move(table, table.parent.parent / "elsewhere")
    tables.follow(tables.snapshot())
    assert wire.ask(asked).status == 404


def test_what_is_remembered_is_bounded(table: Path) -> None:
    wire = Wire(ServiceClient.of(table, cache_bytes=10 * (16 << 10)))
    hudi = wire.client.app._hudi
    for number in range(35):
        assert wire.ask(target(LATEST, partition=str(number), **known(table))).status == 200
        assert len(hudi._by_target) <= 10
    wire.ask(target(LATEST, partition="x" * 250, padding="y" * 2000, **known(table)))
    assert all(len(t) < 1500 for t in hudi._by_target)


@pytest.mark.parametrize("seed", range(3))
def test_both_ways_answer_alike(seed: int, table: Path) -> None:
    """Random requests on a table that moves, each sent on a connection and asked for beside it."""
    chance = random.Random(seed)
    wire = Wire(ServiceClient.of(table))
    clients, files, short = [known(table)], dict[str, bytes](), 0
    asked: list[tuple[str, dict[str, str]]] = []
    for _ in range(250):
        match chance.randrange(30):
            case 0 if not files:
                files = take_back_last(table)
                clients.append(known(table))
            case 1 if files:
                put(files)
                files = {}
            case 2:
                next(iter(wire.client.app._tables.by_name.values())).forget()
        if not asked or chance.random() < 0.4:
            asked.append(some_request(chance, clients))
        route, query = chance.choice(asked[-8:])
        before = wire.long
        sent = wire.ask(target(route, **query))
        short += wire.long == before
        beside = wire.client.ask(route, **query)
        assert (sent.status, sent.headers) == (beside.status, beside.headers), f"seed {seed}: {route} {query}"
        if "content-encoding" in sent.headers:
            assert gzip.decompress(sent.body) == beside.body, f"seed {seed}: {route} {query}"
        else:
            assert sent.body == beside.body, f"seed {seed}: {route} {query}"
    assert short > 10, f"seed {seed}"


def some_request(chance: random.Random, clients: list[dict[str, str]]) -> tuple[str, dict[str, str]]:
    route = chance.choice([name for name, route in ROUTES.items() if route.method == "GET"])
    instant = chance.choice(clients)["lastinstantts"]
    bounds = dict.fromkeys(("maxinstant", "mininstant", "instants", "instant", "currentinstant"), instant)
    partition, pending = chance.choice(["north", "south"]), chance.choice(["true", "false"])
    query = {"partition": partition, "includependingcompaction": pending, "fileid": "none", **bounds}
    return f"{PREFIX}{route}/", {**query, **chance.choice(clients)}
