"""Faults that Hudi's clients meet, and what the service answers: a short stall rather than an error, an error with its
reason rather than a wrong answer.

Clients of 0.15.0 do not try an error again, and a `REMOTE_ONLY` write dies of one; all repeat a request by themselves
whose connection was closed without an answer."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from phantombase.timeline.errors import StorageError
from phantombase.timeline.service import marker_app, served_tables
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.service.marker_app import MARKER_PREFIX
from phantombase.timeline.service.routes import PREFIX
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import LATEST, Reply, ServiceClient, known
from tests.support.watched_service import serving

INSTANT = "20991121091340983"
NAME = "north/f_1-0-1_20991121091340983.parquet.marker.CREATE"


def together(client: ServiceClient, *sent: tuple[str, str, dict[str, str]]) -> list[Reply]:
    """The answers to (path, method, query), sent at once."""

    async def run() -> list[Reply]:
        return list(await asyncio.gather(*(client.send(p, urlencode(q).encode(), m) for p, m, q in sent)))

    return client.loop.run_until_complete(run())


def test_a_slow_load_stalls_its_table_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets an error: who asks for the slow table waits, who asks for another one does not."""
    slow, fast = unzip_golden("v9_plain", tmp_path), unzip_golden("v9_pending", tmp_path)
    answered = threading.Event()

    def slowly(table: Any, before: Any, **options: bool) -> Any:
        if table.storage.base_path == str(slow):
            assert answered.wait(60)
        return load_state(table, before, **options)

    monkeypatch.setattr(served_tables, "load_state", slowly)
    client = ServiceClient.of(slow, fast)

    async def ask(table: Path) -> int:
        reply = await client.send(LATEST, f"basepath={table}&partition=north&refreshoff=true".encode())
        if table == fast:
            answered.set()
        return reply.status

    async def both() -> list[int]:
        return list(await asyncio.gather(ask(slow), ask(slow), ask(fast)))

    assert client.loop.run_until_complete(both()) == [200, 200, 200]


@pytest.mark.parametrize("failures", [1, 3])
def test_a_storage_that_fails_for_a_while_is_an_error_with_its_reason(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request reads again: nothing is kept of the failure, and what was known before stays answered."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table)
    now = known(table)
    assert client.ask(LATEST, partition="north", **now).status == 200
    left = [failures]

    def failing(*given: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StorageError("the disk does not answer", path=str(table))
        return load_state(*given, **options)

    monkeypatch.setattr(served_tables, "load_state", failing)
    other = {**now, "timelinehash": "of another timeline"}
    for _ in range(failures):
        reply = client.ask(LATEST, partition="north", **other)
        assert (reply.status, "the disk does not answer" in reply.text) == (500, True)
        assert client.ask(LATEST, partition="north", **now).status == 200
    assert client.ask(LATEST, partition="north", **other).status == 400
    assert client.ask("/api/tables/plain").json()["health"] == "well"


def test_a_client_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    """A request whose connection is closed before its answer, many times; the service goes on, and ends well."""
    table = unzip_golden("v9_pending", tmp_path)
    with serving(table, "--markers") as address:
        host = address.removeprefix("http://")
        for _ in range(20):
            connection = HTTPConnection(host, timeout=60)
            connection.request("GET", f"{PREFIX}refresh/?basepath={table}")
            connection.close()
        connection = HTTPConnection(host, timeout=60)
        connection.request("GET", f"{LATEST}?basepath={table}&partition=north&refreshoff=true")
        reply = connection.getresponse()
        assert (reply.status, len(json.loads(reply.read())) > 0) == (200, True)
        connection.close()


def test_a_table_that_goes_and_comes_back(tmp_path: Path) -> None:
    """While it is away it is 404, on which a REMOTE_FIRST client goes on by itself; then it is answered as before."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table)
    asked = {**known(table), "partition": "north"}
    before = client.ask(LATEST, **asked)
    shutil.move(table, tmp_path / "away")
    client.ask(f"{PREFIX}refresh/", "POST", basepath=str(table))
    gone = client.ask(f"{PREFIX}refresh/", "POST", basepath=str(table))
    assert (gone.status, bool(gone.body)) == (404, True)
    shutil.move(tmp_path / "away", table)
    assert client.ask(f"{PREFIX}refresh/", "POST", basepath=str(table)).json() is True
    assert client.ask(LATEST, **asked).json() == before.json()


def test_a_marker_whose_answer_was_lost_is_there_and_says_so(tmp_path: Path) -> None:
    """The client creates it again: false, as from Hudi's server; it is there once."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    asked = {"markerdirpath": f"{table}/.hoodie/.temp/{INSTANT}", "markername": NAME}
    create = (f"{MARKER_PREFIX}create", "POST", asked)
    assert [r.json() for r in together(client, create)] == [True]
    assert [r.json() for r in together(client, create)] == [False]
    again = ServiceClient.of(table, markers=True)  # the service was started again meanwhile
    assert [r.json() for r in together(again, create)] == [False]
    assert again.ask(f"{MARKER_PREFIX}all", **asked).json() == [NAME]


def test_a_marker_that_cannot_be_written_is_an_error_and_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that went on without it could not be rolled back. Afterwards it is created as ever."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    asked = {"markerdirpath": f"{table}/.hoodie/.temp/{INSTANT}", "markername": NAME}

    def failing(*_: Any, **__: Any) -> Any:
        raise StorageError("no space left", path="MARKERS0")

    with monkeypatch.context() as patched:
        patched.setattr(marker_app, "append", failing)
        reply = client.ask(f"{MARKER_PREFIX}create", "POST", **asked)
        assert (reply.status, "no space left" in reply.text) == (500, True)
    assert client.ask(f"{MARKER_PREFIX}all", **asked).json() == []
    assert client.ask(f"{MARKER_PREFIX}create", "POST", **asked).json() is True


def test_a_marker_folder_that_cannot_be_deleted_stays_and_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi's rollback goes on without it; the next delete removes it."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    asked = {"markerdirpath": f"{table}/.hoodie/.temp/{INSTANT}"}
    assert client.ask(f"{MARKER_PREFIX}create", "POST", markername=NAME, **asked).json() is True

    def failing(*_: Any) -> Any:
        raise StorageError("not permitted", path=INSTANT)

    with monkeypatch.context() as patched:
        patched.setattr(marker_app, "delete_markers", failing)
        assert client.ask(f"{MARKER_PREFIX}dir/delete", "POST", **asked).status == 500
    assert client.ask(f"{MARKER_PREFIX}all", **asked).json() == [NAME]
    assert client.ask(f"{MARKER_PREFIX}dir/delete", "POST", **asked).json() is True
    assert client.ask(f"{MARKER_PREFIX}dir/exists", **asked).json() is False


def test_a_late_marker_begins_its_folder_anew(tmp_path: Path) -> None:
    """Its client gave up, and the write was rolled back: as with Hudi's server the marker is there again, readable."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    asked = {"markerdirpath": f"{table}/.hoodie/.temp/{INSTANT}"}
    for name in ("a", "b"):
        assert client.ask(f"{MARKER_PREFIX}create", "POST", markername=f"{name}.marker.CREATE", **asked).json() is True
    assert client.ask(f"{MARKER_PREFIX}dir/delete", "POST", **asked).json() is True
    assert client.ask(f"{MARKER_PREFIX}create", "POST", markername="a.marker.CREATE", **asked).json() is True
    folder = table / f".hoodie/.temp/{INSTANT}"
    assert (folder / "MARKERS.type").read_text() == "TIMELINE_SERVER_BASED"
    assert client.ask(f"{MARKER_PREFIX}all", **asked).json() == ["a.marker.CREATE"]


def test_a_delete_beside_creates_leaves_whole_lines(tmp_path: Path) -> None:
    """All at once: every name that is left is one that was created."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    asked = {"markerdirpath": f"{table}/.hoodie/.temp/{INSTANT}"}
    names = [f"p/f{n}.marker.MERGE" for n in range(40)]
    sent = [(f"{MARKER_PREFIX}create", "POST", {**asked, "markername": name}) for name in names]
    sent.insert(20, (f"{MARKER_PREFIX}dir/delete", "POST", asked))
    assert {r.status for r in together(client, *sent)} == {200}
    assert set(client.ask(f"{MARKER_PREFIX}all", **asked).json()) <= set(names)


def test_a_form_in_the_body_is_not_looked_at(tmp_path: Path) -> None:
    """Hudi's server takes its parameters for missing, and a missing folder for its own root; here it is 400."""
    table = unzip_golden("v9_plain", tmp_path)
    client = ServiceClient.of(table, markers=True)
    body = f"markerdirpath={table}/.hoodie/.temp/{INSTANT}&markername={NAME}".encode()
    for route in ("create", "dir/delete"):
        sent = client.send(f"{MARKER_PREFIX}{route}", b"", "POST", body=body)
        assert client.loop.run_until_complete(sent).status == 400
    assert not (table / f".hoodie/.temp/{INSTANT}").exists()


def test_many_clients_of_many_timelines_at_once(tmp_path: Path) -> None:
    """Clients that know the table, and some that do not, from several threads of one process: 200 or 400, no other."""
    table = unzip_golden("v9_two_pending", tmp_path)
    now, found = known(table), []
    with serving(table) as address:

        def ask(number: int) -> None:
            connection = HTTPConnection(address.removeprefix("http://"), timeout=60)
            for step in range(20):
                query = dict(now, partition="north")
                if (number + step) % 3 == 0:
                    query["timelinehash"] = "0" * 64
                connection.request("GET", f"{LATEST}?{urlencode(query)}")
                reply = connection.getresponse()
                found.append(((number + step) % 3 == 0, reply.status, bool(reply.read())))
            connection.close()

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(found) == {(True, 400, True), (False, 200, True)}
