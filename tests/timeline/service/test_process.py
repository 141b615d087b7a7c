"""`timeline serve` as a process."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from phantombase.compactor_daemon.daemon.metrics import Metrics
from phantombase.timeline.cli.main import app
from phantombase.timeline.dashboard.people_app import PeopleApp, exposition
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import parse_time
from phantombase.timeline.service import run
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.service.run import BoundedHttp, collect, collect_from_time_to_time, listening
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal import boundary
from tests.support.compaction_steps import run_all
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import ServiceClient
from tests.support.watched_service import serving


def get(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=60) as reply:
            return reply.status, reply.read()
    except HTTPError as error:
        return error.code, error.read()


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    with serving(table, tmp_path / "none") as address:
        assert get(f"{address}/healthz") == (200, b"ok")
        query = urlencode({"basepath": table, "partition": "north", "refreshoff": "true"})
        status, body = get(f"{address}{PREFIX}slices/partition/latest/?{query}")
        assert (status, b"logFiles" in body) == (200, True)
        assert get(f"{address}{PREFIX}slices/all?{query}&x={'y' * (60 << 10)}")[0] == 200
        assert get(f"{address}{PREFIX}slices/all?{query}&x={'y' * (70 << 10)}")[0] == 414


def raw(address: str, *requests: str) -> str:
    """What comes back on one connection for requests that are sent at once; the last of them closes it."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("".join(requests).encode())
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode("latin-1")


def test_what_is_asked_again_is_answered_alike(tmp_path: Path) -> None:
    """Also where requests come in one behind the other, and never past the checks."""
    table = unzip_golden("v9_pending", tmp_path)
    query = urlencode({"basepath": table, "refreshoff": "true", "partition": "north"})
    paths = [f"{PREFIX}slices/partition/latest/?{query}", f"{PREFIX}timeline/instant/last?{query}"]

    def request(path: str, version: str = "1.1", **headers: str) -> str:
        shown = "".join(f"{name}: {value}\r\n" for name, value in {"host": "localhost", **headers}.items())
        return f"GET {path} HTTP/{version}\r\n{shown}\r\n"

    with serving(table) as address:
        for path in paths:
            first = get(f"{address}{path}")
            last = request(path, connection="close")
            replies = raw(address, request(path), request(path), request(path), last).split("HTTP/1.1 200 OK\r\n")[1:]
            bodies = [reply.partition("\r\n\r\n")[2] for reply in replies]
            assert bodies == [first[1].decode()] * 4
            assert all("content-type: text/plain" in r and "nosniff" in r for r in replies)
            zipped = raw(address, request(path, **{"accept-encoding": "gzip"}), last)
            assert ("content-encoding: gzip" in zipped) is (len(first[1]) >= 1500)
            assert raw(address, request(path, host="attacker.example"), last).startswith("HTTP/1.1 403")
            assert raw(address, request(path, origin="http://attacker.example"), last).startswith("HTTP/1.1 403")
            assert raw(address, request(path, version="1.0")).count("200 OK") == 1
            body = "content-length: 5\r\n"
            posted = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{body}\r\nhello"
            assert raw(address, posted, last).count("200 OK") == 2


def test_what_is_not_http_or_too_long_is_refused(tmp_path: Path) -> None:
    """And the service goes on."""
    with serving(tmp_path / "none") as address:
        for request, status in (
            (f"GET /{'x' * (70 << 10)} HTTP/1.1\r\nhost: localhost\r\n\r\n", "414"),
            (f"GET / HTTP/1.1\r\nhost: localhost\r\nx: {'x' * (40 << 10)}\r\n\r\n", "431"),
            (f"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n{'x' * 99999}", "413"),
            ("GET / HTTP/1.1\r\nhost localhost\r\n\r\n", "400"),
            ("\x16\x03\x01 no HTTP\r\n\r\n", "400"),
        ):
            assert raw(address, request).startswith(f"HTTP/1.1 {status}")
            assert get(f"{address}/healthz") == (200, b"ok")


def test_a_head_that_does_not_come_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_REQUEST_S", 0.2)
    with served_here() as port, socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: loc")
        with suppress(ConnectionResetError):
            assert connection.recv(10) == b""


@pytest.mark.parametrize("limit", ["_REQUEST_S", "_BODY_BYTES_MAX"])
def test_a_body_that_does_not_end_is_cut_off(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is sent slowly, and on a route that is answered without it."""
    monkeypatch.setattr(run, limit, 0.5 if limit == "_REQUEST_S" else 100)
    with served_here() as port, socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        with pytest.raises(OSError):
            send_slowly(connection, b"10\r\n0123456789abcdef\r\n")


def send_slowly(connection: socket.socket, data: bytes) -> None:
    for _ in range(1200):  # a minute
        connection.sendall(data)
        time.sleep(0.05)


@contextmanager
def served_here() -> Iterator[int]:
    """The port of a service in a thread of this process, without tables."""
    listener = listening(0)
    server = uvicorn.Server(uvicorn.Config(ServiceApp(ServedTables([]), 1 << 20), http=BoundedHttp, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["t", "t/"], "given twice"),
        (["t", "--max-memory", "x"], "size"),
        (["t", "--host", "0.0.0.0"], "needs a token"),
        (["t", "--token-file", "none"], "cannot be read"),
        (["t", "--hudi-clients", "all"], "not a network"),
    ],
)
def test_wrong_arguments(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        boundary.run(app, ["serve", *arguments])
    said = capsys.readouterr().err
    assert (end.value.code, reason in said) == (2, True), said


def test_a_port_that_is_taken_is_refused() -> None:
    with listening(0) as other, pytest.raises(UsageError, match="the port cannot be used"):
        listening(other.getsockname()[1])


def test_answers_on_one_connection_do_not_wait_for_acknowledgements() -> None:
    """With Nagle's algorithm each would take 40 ms: it is off on every connection."""

    async def accepted() -> int:
        asked = asyncio.get_running_loop()
        option: asyncio.Future[int] = asked.create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                taken = transport.get_extra_info("socket")
                option.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        with listening(0) as listener:
            async with await asked.create_server(Server, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                found = await option
                writer.close()
        return found

    assert asyncio.run(accepted()) == 1


# The service's metrics: names of the daemon, and what only the service knows.


def samples(client: ServiceClient, table: Path) -> dict[str, float]:
    """Those of a table, by name."""
    reply = client.ask("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain")
    found = [s for f in text_string_to_metric_families(reply.text) for s in f.samples]
    assert len({(s.name, tuple(sorted(s.labels.items()))) for s in found}) == len(found)
    return {s.name: s.value for s in found if s.labels.get("table") == str(table)}


def test_a_table_and_what_waits_in_it(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    client = ServiceClient.of(path, slo_s=60)
    before = samples(client, path)
    assert before["phantombase_pending"] == 1
    assert before["phantombase_oldest_pending_seconds"] > 1000
    assert (before["phantombase_table_up"], before["phantombase_health"]) == (1, 1)
    assert before["phantombase_backlog_file_groups"] == 0  # all are in the plan
    assert before["phantombase_log_bytes"] > 0
    assert before["phantombase_service_loads_total"] == 1
    assert before["phantombase_service_state_bytes"] > 1000
    assert len(before) <= 20
    run_all(Table.open(str(path)))
    after = samples(ServiceClient.of(path, slo_s=60), path)
    assert (after["phantombase_pending"], after["phantombase_health"]) == (0, 0)
    assert after["phantombase_oldest_pending_seconds"] == 0
    assert after["phantombase_backlog_file_groups"] == 2
    assert 0 < after["phantombase_backlog_log_bytes"] <= before["phantombase_log_bytes"]
    done = max(i.requested_time for i in Table.open(str(path)).load_timeline().completed if i.action == "commit")
    shown = after["phantombase_last_compaction_timestamp_seconds"]
    assert shown == pytest.approx(parse_time(done).astimezone().timestamp(), abs=2)


def test_times_are_since_the_epoch_whatever_the_zone_of_the_table() -> None:
    row = {"path": "t", "health": "well", "last_write": "20260102030405678", "utc_offset_s": 3600}
    text = exposition([], [row]).decode()
    (found,) = [f for f in text_string_to_metric_families(text) if f.name == "phantombase_last_write_timestamp_seconds"]
    assert found.samples[0].value == datetime(2026, 1, 2, 2, 4, 5, 678_000, tzinfo=UTC).timestamp()


def test_a_table_that_cannot_be_read_is_down(tmp_path: Path) -> None:
    fine, none = unzip_golden("v9_plain", tmp_path), tmp_path / "none"
    client = ServiceClient.of(fine, none)
    assert samples(client, none)["phantombase_table_up"] == 0
    assert samples(client, none)["phantombase_health"] == 2
    assert samples(client, fine)["phantombase_table_up"] == 1


def test_inside_a_daemon_nothing_is_said_twice(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    daemon = Metrics()
    daemon.snapshot_taken(str(path), pending=7, parked=0, oldest_s=1.0)
    tables = ServedTables([str(path)])
    pages = PeopleApp(tables, registry=daemon.registry)
    client = ServiceClient(ServiceApp(tables, 1 << 20, pages=pages), ServiceClient.of().loop)
    found = samples(client, path)
    assert found["phantombase_pending"] == 7  # the daemon's
    assert found["phantombase_backlog_file_groups"] == 0
    assert client.ask("/metrics").text.count("# TYPE phantombase_build_info ") == 1


# Garbage is collected from time to time, not within requests; afterwards Python is as it was.


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


class Ring:
    """Refers to itself: only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("unfrozen")
def test_what_came_since_the_last_time_is_freed() -> None:
    collect()
    seen = weakref.ref(Ring())
    collect()
    assert seen() is None


@pytest.mark.usefixtures("unfrozen")
def test_what_was_kept_then_is_freed_when_everything_is_looked_at() -> None:
    ring = Ring()
    seen = weakref.ref(ring)
    collect()
    del ring
    collect()
    assert seen() is not None
    collect(everything=True)
    assert seen() is None


@pytest.mark.usefixtures("unfrozen")
@pytest.mark.parametrize("every", [1, 1000], ids=["collected", "loaded"])
def test_full_collections_are_not_begun_meanwhile(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_GARBAGE_PAUSE_S", 0.005)
    monkeypatch.setattr(run, "_EVERY", every)
    before = gc.get_threshold()

    async def thresholds() -> tuple[int, int]:
        task = asyncio.create_task(collect_from_time_to_time(count().__next__))
        until = time.monotonic() + 60
        while (found := (gc.get_threshold()[2], gc.get_freeze_count()))[1] == 0 and time.monotonic() < until:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        return found

    full, frozen = asyncio.run(thresholds())
    assert (full > 1_000_000, frozen > 0) == (True, True)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
