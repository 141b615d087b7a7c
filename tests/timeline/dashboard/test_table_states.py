"""The state of tables as JSON: one verdict each, worst first."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener, urlopen

import pytest
from typer.testing import CliRunner

from phantombase import schedule
from phantombase.timeline.cli.main import app
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.dashboard.actions import ActionApp, OrderRunner
from phantombase.timeline.dashboard.orders import CommandSettings, Order, OrderName
from phantombase.timeline.dashboard.overview import PendingReport, unfinished
from phantombase.timeline.dashboard.pages import bars
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.dashboard.verdict import CheckOptions, TableFacts, care_of
from phantombase.timeline.errors import MalformedError, UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.section import LockSeen, LockState
from phantombase.timeline.locks.table_lock import HUDI_LOCK, inspect_lock, parse_lock, table_lock
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.asgi import COOKIE, Access
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.places import capture_logs
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.servers.zookeeper_server import ZooKeeper, free_ports
from tests.support.service_client import ACCESS, COMMAND, SOLE, TOKEN, Reply, ServiceClient, service
from tests.support.watched_service import serving


def pending(action: str = "compaction", **more: Any) -> PendingReport:
    row = {"instant": "20261121090001000", "action": action, "state": "requested", "age_s": 50.0, "plan": None}
    return PendingReport(**{**row, "heartbeat": "none", "heartbeat_age_s": None, "problem": None, **more})


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (pending(), None),
        (pending(age_s=70.0), "no-process"),
        (pending(age_s=70.0, heartbeat="fresh"), "late"),
        (pending("clean", age_s=70.0), None),
        (pending("logcompaction", age_s=70.0), "no-process"),
        (pending(age_s=None), None),
        (pending("deltacommit", age_s=70.0, heartbeat="fresh", heartbeat_age_s=1.0), None),
        (pending("deltacommit", heartbeat="stale", heartbeat_age_s=200.0), "dead-writer"),
        (pending(problem=MalformedError("not Avro")), "pending-unknown"),
    ],
)
def test_what_the_timeline_and_heartbeats_show_of_a_pending_instant(row: PendingReport, found: str | None) -> None:
    facts = TableFacts(kind="", has_logs=True, completed=1, pending=(unfinished(row),))
    assert [one.name for one in care_of(facts, CheckOptions(), 60)] == ([] if found is None else [found])
    if row.problem is None:
        assert [one.name for one in care_of(facts, CheckOptions())] == ([found] if found == "dead-writer" else [])


def test_tables_come_worst_first(tmp_path: Path) -> None:
    fine = unzip_golden("v9_plain", tmp_path / "1")
    late = unzip_golden("v9_pending", tmp_path / "2")
    stuck = unzip_golden("v9_types", tmp_path / "3")
    broken = unzip_golden("v9_compacted_cleaned", tmp_path / "4")
    begun = "20991121091340983"
    (stuck / f".hoodie/timeline/{begun}.deltacommit.requested").touch()
    beat = stuck / ".hoodie/.heartbeat" / begun
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    os.utime(beat, (time.time() - 500,) * 2)
    max(broken.glob("*/*.parquet"), key=lambda p: p.name.rpartition("_")[2]).unlink()
    client = ServiceClient.of(fine, late, stuck, broken, slo_s=60)
    reply = client.ask("/api/tables")
    assert reply.headers["content-type"] == "application/json"
    rows = reply.json()["tables"]
    words = {"compacted_cleaned": "broken", "pending": "needs care", "types": "needs care", "plain": "well"}
    assert [(row["served_as"], row["health"]) for row in rows] == list(words.items())
    assert "does not exist" in rows[0]["reason"]
    assert (rows[1]["pending_compactions"], rows[1]["file_groups"], rows[1]["log_files_max"]) == (1, 2, 5)
    assert (rows[1]["last_compaction"], rows[1]["delta_commits_since_compaction"]) == (None, 6)


def test_one_table_has_the_names_of_show(tmp_path: Path) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    shown = json.loads(CliRunner().invoke(app, ["show", str(table), "--json"]).stdout)
    found = ServiceClient.of(table).ask("/api/tables/pending").json()
    assert found.keys() >= shown.keys()
    plain = [[{k: v for k, v in row.items() if k != "kind"} for row in one["instants"]] for one in (found, shown)]
    assert plain[0] == plain[1]
    assert found["table"] == shown["table"]


def test_two_tables_of_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    paths = [unzip_golden("v9_plain", tmp_path / n) for n in "ab"]
    rows = ServiceClient.of(*paths).ask("/api/tables").json()["tables"]
    assert [(row["served_as"], row["path"]) for row in rows] == [
        (f"{n}/plain", str(path)) for n, path in zip("ab", paths, strict=True)
    ]


@pytest.mark.parametrize(
    "path", ["/api/tables/none", "/api/tables/../plain", "/api/tablesx", "/x", "/t/", "/t/none", "/t/../x"]
)
def test_other_paths_are_not_found(path: str, tmp_path: Path) -> None:
    reply = ServiceClient.of(unzip_golden("v9_plain", tmp_path)).ask(path)
    assert (reply.status, bool(reply.text)) == (404, True)


def test_pages_need_no_script_and_let_nothing_else_in(tmp_path: Path) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    odd = tmp_path / "<script>alert(1)<"
    odd.mkdir()
    client = ServiceClient.of(table, odd)
    for path in ("/", "/t/pending", "/t/%3Cscript%3Ealert(1)%3C"):
        page = client.ask(path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert re.findall("<script.*?>", page.text) == ['<script src="/page.js" defer>']
        assert "style=" not in page.text
    first = client.ask("/").text
    assert first.index("broken") < first.index("/t/pending")
    assert client.ask("/page.css").headers["content-type"].startswith("text/css")
    assert client.ask("/page.js").headers["content-type"].startswith("text/javascript")
    one = client.ask("/t/pending").text
    assert one.count("<rect") == 2 * 7  # in the chart, and in the list
    assert one.count('class="open"') == 2 * 1


def test_bars_of_instants() -> None:
    def row(second: int, done: int | None, state: str = "completed") -> dict[str, Any]:
        end = None if done is None else f"202611210900{done:02d}000"
        return {"instant": f"202611210900{second:02d}000", "action": "commit", "state": state,
                "completion_time": end}  # fmt: skip

    rows = [row(0, 5), row(10, None), row(20, None, "inflight"), {**row(1, None), "instant": "00000000000001"}]
    found = bars(rows, datetime(2026, 11, 21, 9, 0, 50))
    assert [(b.x, b.width, b.open, b.took_s) for b in found] == [
        (800, 200, True, 30.0),  # to the right edge
        (400, 6, False, None),
        (0, 200, False, 5.0),
    ]
    assert bars([], datetime(2026, 11, 21)) == []


def test_times_are_of_the_zone_that_was_given(tmp_path: Path) -> None:
    """`--timezone`, as the table's writers have it; a table that names UTC keeps to it."""
    table = unzip_golden("v9_pending", tmp_path)
    found = {}
    for zone in ("UTC", "Asia/Kolkata"):
        tables = ServedTables([str(table)], clock=ClockOptions(timezone=zone))
        row = ServiceClient.of_tables(tables).ask("/api/tables/pending").json()
        assert row["timezone"] == zone
        found[zone] = row["oldest_pending_s"]
    assert found["Asia/Kolkata"] - found["UTC"] == pytest.approx(5.5 * 3600, abs=60)


# The table lock on a table's page: which process holds it, as far as that can be seen.


HUDI = "org.apache.hudi.client.transaction.lock."
PROVIDER = "hoodie.write.lock.provider"


def snapshot(path: object, given: str | None = None, properties: Mapping[str, str] | None = None) -> LockSeen:
    return inspect_lock(open_storage(str(path)), given, properties or {}, clock_ms())


@contextmanager
def held_elsewhere(path: Path, lock: str) -> Iterator[int]:
    """Another process holds a lock."""
    code = (
        "import sys; from phantombase.timeline.locks.table_lock import table_lock\n"
        "from phantombase.timeline.storage.open_storage import open_storage\n"
        "with table_lock(open_storage(sys.argv[1]), sys.argv[2]).hold('test'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path), lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


@pytest.mark.parametrize("kind", ["storage", "file"])
def test_a_lock_file_names_the_process_of_this_machine(kind: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    lock = "storage" if kind == "storage" else f"file:{tmp_path}/lock"
    assert snapshot(table, lock).state is LockState.FREE
    with held_elsewhere(table, lock) as pid:
        seen = snapshot(table, lock)
        assert (seen.state, f"process {pid}" in str(seen.holder)) == (LockState.HELD, True), seen
    assert snapshot(table, lock).state is LockState.FREE


def test_a_lock_in_zookeeper_names_its_holder(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    lock = f"zookeeper:{zookeeper.hosts}/served/{tmp_path.name}"
    assert snapshot(tmp_path, lock).state is LockState.FREE
    with parse_lock(lock).hold("write"):
        seen = snapshot(tmp_path, lock)
    assert (seen.state, f"pid {os.getpid()}: write" in str(seen.holder)) == (LockState.HELD, True), seen
    assert seen.for_s is not None
    where = {"url": zookeeper.hosts, "base_path": "/served", "lock_key": tmp_path.name}
    by_hudi = {f"hoodie.write.lock.zookeeper.{name}": value for name, value in where.items()}
    by_hudi[PROVIDER] = f"{HUDI}ZookeeperBasedLockProvider"
    with parse_lock(lock).hold("write"):
        assert snapshot(tmp_path, properties=by_hudi).state is LockState.HELD
    assert snapshot(tmp_path, properties=by_hudi).state is LockState.FREE


def test_zookeeper_that_is_away_is_unknown_and_soon_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    seen = snapshot(tmp_path, f"zookeeper:127.0.0.1:{port}/served/t")
    assert (seen.state, time.monotonic() - began < 60) == (LockState.UNKNOWN, True)
    assert str(port) in seen.why


def test_the_lock_of_an_object_store_names_its_holder(s3: S3Server) -> None:
    """The object of Hudi's StorageBasedLockProvider: also found where nothing names the lock."""
    url = f"s3://{s3.new_bucket()}/t"
    storage = open_storage(url)
    assert snapshot(url).state is LockState.UNKNOWN
    with table_lock(storage, "storage").hold("write"):
        owner = json.loads(storage.read(HUDI_LOCK))["owner"]
        for seen in (
            snapshot(url),
            snapshot(url, "storage"),
            snapshot(url, None, {PROVIDER: f"{HUDI}StorageBasedLockProvider"}),
        ):
            assert (seen.state, seen.holder) == (LockState.HELD, owner)
    assert snapshot(url).state is LockState.FREE
    other = s3.new_bucket()
    s3.put(f"{other}/t/{HUDI_LOCK}", b"not a lock")
    assert snapshot(f"s3://{other}/t").state is LockState.UNKNOWN


@pytest.mark.parametrize(
    ("until_ms", "expired", "state"),
    [(60_000, False, "held"), (60_000, True, "free"), (-60_000, False, "free"), (-100, False, "held")],
)
def test_an_object_counts_as_long_as_hudi_says(until_ms: int, expired: bool, state: str, tmp_path: Path) -> None:
    (tmp_path / HUDI_LOCK).parent.mkdir(parents=True)
    text = json.dumps({"expired": expired, "validUntil": 1_000_000 + until_ms, "owner": "x"})
    (tmp_path / HUDI_LOCK).write_text(text)
    seen = inspect_lock(LocalStorage(str(tmp_path)), None, {}, 1_000_000)
    assert seen.state.value == state


@pytest.mark.parametrize(
    ("provider", "state"),
    [
        ("org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider", "unknown"),
        (f"{HUDI}InProcessLockProvider", "unknown"),
        ("", "unknown"),
        (f"{HUDI}FileSystemBasedLockProvider", "free"),
        (f"{HUDI}ZookeeperBasedLockProvider", "unknown"),  # nothing says where
    ],
)
def test_unknown_is_never_free(provider: str, state: str, tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    assert snapshot(tmp_path, None, {PROVIDER: provider}).state.value == state


def test_hudis_lock_file_is_held_as_long_as_it_is_there(tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / ".hoodie/lock").touch()
    seen = snapshot(tmp_path, None, {PROVIDER: f"{HUDI}FileSystemBasedLockProvider"})
    assert (seen.state, seen.for_s is not None) == (LockState.HELD, True)


def test_the_page_shows_it(tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    lock = f"file:{tmp_path}/{{name}}.lock"
    settings = CommandSettings(lock=lock)
    tables = ServedTables([str(table)])
    client = ServiceClient.of_tables(tables)
    assert client.ask("/api/tables/plain").json()["lock"]["state"] == "unknown"
    assert "which lock the writers share is not known here" in client.ask("/t/plain").text
    client = ServiceClient(ServiceApp(tables, 1 << 20, pages=PeopleApp(tables, settings=settings)), client.loop)
    name = client.ask("/api/tables/plain").json()["table"]["name"]
    with held_elsewhere(table, lock.replace("{name}", name)) as pid:
        found = client.ask("/api/tables/plain").json()["lock"]
        assert (found["state"], found["lock"]) == ("held", f"{tmp_path}/{name}.lock")
        assert f"by process {pid}" in client.ask("/t/plain").text


# Buttons: who may order, what is run, and what is shown of it.


BEARER = {"authorization": f"Bearer {TOKEN}"}
OWN = {"origin": "http://localhost"}
ECHO = (sys.executable, "-c", "import sys; print(sys.argv[1:])")


def cookie(at: float | None = None) -> dict[str, str]:
    return {"cookie": f"{COOKIE}={ACCESS.session(time.time() if at is None else at)}"}


def proof(headers: dict[str, str]) -> str:
    return ACCESS.proof({k.encode(): v.encode() for k, v in headers.items()})


def order(client: ServiceClient, path: str, headers: dict[str, str], **fields: str) -> Reply:
    """`path`: a query string may follow."""
    body, (path, _, query) = urlencode(fields).encode(), path.partition("?")
    return client.loop.run_until_complete(client.send(path, query.encode(), "POST", headers, body))


def pending_of(path: Path) -> list[str]:
    return [i.requested_time for i in Table.open(str(path)).load_timeline().pending_compactions]


def forms(page: str) -> list[tuple[str, dict[str, str]]]:
    """Where each form of a page goes, and its fields."""
    found = re.findall(r'<form class="order" method="post" action="([^"]+)">(.*?)</form>', page, re.DOTALL)
    field = r'<input type="hidden" name="(\w+)" value="([^"]*)">'
    return [(unescape(to), {n: unescape(v) for n, v in re.findall(field, inside)}) for to, inside in found]


def test_a_person_takes_a_plan_back_by_a_button(tmp_path: Path) -> None:
    """Without a script: the page has a form, its command beside it; the answer is the page, with what was done."""
    table = unzip_golden("v9_two_pending", tmp_path)
    (*_, newest) = pending_of(table)
    client, me = service(table), cookie()
    page = client.ask_with(me, "/t/two_pending").text
    assert page.count("<script") == 1
    offered = {to.rpartition("/")[2]: fields for to, fields in forms(page) if fields.get("instant") == newest}
    assert offered.keys() == {"unschedule", "release"}
    assert f"compactor-daemon unschedule {table} {newest} --sole-writer" in page
    with capture_logs() as lines:
        reply = order(client, "/t/two_pending/actions/release", me | OWN, **offered["release"])
    assert (reply.status, reply.headers["location"]) == (303, "/t/two_pending#done")
    ordered, ended = (line for line in lines if line["event"].startswith("action"))
    assert (ordered["by"], ordered["action"], ordered["instant"]) == ("127.0.0.1 (login)", "release", newest)
    assert (ended["exit_code"], ended["table"]) == (0, str(table))
    after = client.ask_with(me, "/t/two_pending").text
    assert 'id="done"' in after
    assert "● done" in after


def test_a_program_schedules_with_the_token(tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    client = service(table)
    reply = order(client, "/api/tables/plain/actions/schedule", BEARER)
    found = reply.json()
    assert (reply.status, found["exit_code"], found["by"]) == (200, 0, "127.0.0.1 (token)"), found
    (instant,) = pending_of(table)
    assert instant in found["output"]
    assert found["command"] == f"compactor-daemon schedule {table} --sole-writer"
    back = order(client, "/api/tables/plain/actions/unschedule", BEARER, instant=instant).json()
    assert (back["exit_code"], pending_of(table)) == (0, []), back


def test_what_a_command_refuses_is_shown(tmp_path: Path) -> None:
    """On version 6 rows that were written since would be lost without the plan."""
    table = unzip_golden("v6_pending", tmp_path)
    (instant,) = pending_of(table)
    client, me = service(table), cookie()
    done = order(client, "/api/tables/pending/actions/unschedule", BEARER, instant=instant).json()
    assert (done["exit_code"], pending_of(table)) == (1, [instant])
    assert "error:" in done["output"]
    assert "✖ failed (1)" in client.ask_with(me, "/t/pending").text


@pytest.mark.parametrize(
    ("headers", "form", "status"),
    [
        ({}, {}, 401),
        ({"authorization": "Bearer wrong"}, {}, 401),
        (cookie() | OWN, {}, 403),
        (cookie() | OWN, {"proof": ""}, 403),
        (cookie() | OWN, {"proof": "x" * 64}, 403),
        (cookie() | OWN, {"proof": "é"}, 403),
        (cookie(time.time() - 1) | OWN, {"proof": "of another login"}, 403),
        (cookie(), {"proof": "right"}, 403),  # no Origin: not from a form of a browser
        (cookie() | {"origin": "null"}, {"proof": "right"}, 403),
        (cookie() | {"origin": "https://attacker.example"}, {"proof": "right"}, 403),
        (cookie() | OWN | {"sec-fetch-site": "cross-site"}, {"proof": "right"}, 403),
        (cookie() | OWN | {"sec-fetch-site": "same-site"}, {"proof": "right"}, 403),
        (cookie(0) | OWN, {"proof": "right"}, 401),  # the login has ended
        (cookie() | OWN, {"proof": "right"}, 303),
    ],
)
def test_only_forms_of_this_login_are_answered(
    headers: dict[str, str], form: dict[str, str], status: int, tmp_path: Path
) -> None:
    """Nothing is run, and the table stays as it is, unless the last column says so."""
    table = unzip_golden("v9_plain", tmp_path)
    client = service(table)
    right = {"right": proof(headers), "of another login": proof(cookie())}
    fields = {name: right.get(value, value) for name, value in form.items()}
    reply = order(client, "/t/plain/actions/schedule", headers, **fields)
    if reply.status == 303 and reply.headers["location"] == "/login":
        reply = Reply(401, reply.headers, reply.body)
    assert (reply.status, len(pending_of(table))) == (status, int(status == 303)), reply.text


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_only_post_orders(method: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    client = service(table)
    for path in ("/t/plain/actions/schedule", "/api/tables/plain/actions/schedule"):
        assert client.ask_with(BEARER, path, method).status == 404
    assert pending_of(table) == []


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("plain/actions/compact", {}, 400),
        ("plain/actions/restore", {"instant": "20261121100337006"}, 400),
        ("plain/actions/", {}, 400),
        ("none/actions/schedule", {}, 404),
        ("plain/actions/schedule/x", {}, 404),
        ("plain/actions/schedule", {"instant": "20261121100337006"}, 400),
        ("plain/actions/unschedule", {}, 400),
        ("plain/actions/unschedule", {"instant": "--sole-writer"}, 400),
        ("plain/actions/unschedule", {"instant": "2026; rm -rf /"}, 400),
        ("plain/actions/unschedule", {"instant": "20261121100337006"}, 409),  # not pending
        ("plain/actions/release", {"instant": "²" * 17}, 400),
        ("plain/actions/schedule", {"instnat": "20261121100337006"}, 400),
        ("plain/actions/schedule?lock=x", {}, 400),
        ("plain/actions/schedule", {'{"dry_run": true}': ""}, 400),
        ("plain/actions/unschedule?instant=20261121100337006", {"instant": "20261121100337006"}, 400),
    ],
)
def test_odd_orders_get_a_reason(path: str, fields: dict[str, str], status: int, tmp_path: Path) -> None:
    client = service(unzip_golden("v9_plain", tmp_path), command=("false",))
    reply = order(client, f"/api/tables/{path}", BEARER, **fields)
    assert (reply.status, bool(reply.body)) == (status, True), reply.text


def test_without_actions_there_are_commands_only(tmp_path: Path) -> None:
    client = ServiceClient.of(unzip_golden("v9_pending", tmp_path), access=ACCESS)
    page = client.ask_with(BEARER, "/t/pending").text
    assert ("<form" in page, "compactor-daemon unschedule" in page) == (False, True)
    assert order(client, "/api/tables/pending/actions/schedule", BEARER).status == 404


@pytest.mark.parametrize(
    ("access", "settings", "reason"),
    [(Access(), SOLE, "needs a token"), (ACCESS, CommandSettings(), "which other processes write")],
)
def test_actions_need_a_token_and_a_lock(access: Access, settings: CommandSettings, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        ActionApp(access, OrderRunner(COMMAND), settings)


def test_one_order_at_a_time(tmp_path: Path) -> None:
    """The second one is told so; one that waits too long is answered while it runs."""
    refused = tmp_path / "refused"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(refused)!r}).exists(): time.sleep(0.01)"
    client = service(unzip_golden("v9_plain", tmp_path), command=(sys.executable, "-c", wait))

    async def both() -> list[int]:
        found = []
        sent = [client.send("/api/tables/plain/actions/schedule", b"", "POST", BEARER) for _ in range(2)]
        for reply in asyncio.as_completed(sent):
            found.append((await reply).status)
            refused.touch()
        return found

    assert client.loop.run_until_complete(both()) == [409, 200]


def test_secrets_are_not_in_the_command(tmp_path: Path) -> None:
    """Others of this machine can read a command line. Its environment has them."""
    show = "import os, sys; print(sys.argv[1:], os.environ['AWS_SECRET_ACCESS_KEY'])"
    runner = OrderRunner((sys.executable, "-c", show), {"region": "eu", "secret_access_key": "hush"})
    words = Order(name=OrderName.SCHEDULE).words("/t", "t", SOLE)
    done = asyncio.run(runner.run(Order(name=OrderName.SCHEDULE), "/t", words, "me", 60))
    assert done.command == "compactor-daemon schedule /t --sole-writer"
    assert done.output == "['schedule', '/t', '--sole-writer', '--storage-option', 'region=eu'] hush"


@pytest.mark.parametrize(
    ("name", "instant", "settings", "words"),
    [
        ("schedule", None, SOLE, "schedule /t --sole-writer"),
        ("schedule", None, CommandSettings(lock="file:/{name}"), "schedule /t --lock file:/n"),
        ("schedule", None, CommandSettings(lock="x", timezone="UTC"), "schedule /t --lock x --timezone UTC"),
        ("unschedule", "1", CommandSettings(lock="storage", timezone="UTC"), "unschedule /t 1 --lock storage"),
        ("release", "1", SOLE, "release /t 1"),
        ("schedule", None, CommandSettings(), "schedule /t"),
    ],
)  # fmt: skip
def test_the_words_of_an_order(name: str, instant: str | None, settings: CommandSettings, words: str) -> None:
    assert Order.parse(name, instant).words("/t", "n", settings) == words.split()


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None: ...


@pytest.mark.parametrize("beside", [deep(False), True])
def test_buttons_of_a_process(beside: bool, tmp_path: Path) -> None:
    """`timeline serve --allow-actions`: log in, press, look. `beside`: the table's lock is a file."""
    table = unzip_golden("v9_plain", tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    lock = ["--lock", f"file:{tmp_path}/lock"] if beside else ["--sole-writer"]
    with serving(table, "--token-file", tmp_path / "token", "--allow-actions", *lock) as address:
        opener, own = build_opener(_Stay()), {"origin": address}

        def post(path: str, headers: dict[str, str], **fields: str) -> urllib.error.HTTPError:
            with pytest.raises(urllib.error.HTTPError) as answer:
                opener.open(Request(f"{address}{path}", urlencode(fields).encode(), headers), timeout=60)
            return answer.value

        session = post("/login", own, token=TOKEN).headers["set-cookie"].partition(";")[0]
        page = urlopen(Request(f"{address}/t/plain", headers={"cookie": session}), timeout=60).read().decode()
        ((to, fields),) = forms(page)
        assert post(to, own | {"cookie": session}, **fields).code == 303
        found = json.load(urlopen(Request(f"{address}/api/tables/plain", headers=BEARER), timeout=60))
    assert (found["pending_compactions"], len(pending_of(table))) == (1, 1)
    assert found["lock"]["state"] == "free"


def test_a_plan_that_cannot_be_read_is_taken_back_by_a_button(tmp_path: Path) -> None:
    """The table cannot be read for it; its page shows why, and the button."""
    table = unzip_golden("v9_plain", tmp_path)
    client, me = service(table), cookie()
    schedule(table, sole_writer=True)
    (newest,) = pending_of(table)
    plan = next(table.glob(f".hoodie/timeline/{newest}.compaction.requested"))
    plan.write_bytes(b"")
    os.utime(plan, times=(1_700_000_000, 1_700_000_000))  # no process is still writing it
    found = client.ask_with(BEARER, "/api/tables/plain").json()
    assert (found["health"], newest in found["reason"]) == ("broken", True), found["reason"]
    page = client.ask_with(me, "/t/plain").text
    ((to, fields),) = ((to, f) for to, f in forms(page) if to.endswith("unschedule") and f["instant"] == newest)
    assert order(client, to, me | OWN, **fields).status == 303
    found = client.ask_with(BEARER, "/api/tables/plain").json()
    assert found["health"] == "well", found["reason"]
