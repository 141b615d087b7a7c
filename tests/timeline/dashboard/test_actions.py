"""Buttons: who may order, what is run, and what is shown of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import urllib.error
from html import unescape
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener, urlopen

import pytest

from phantombase.timeline.dashboard.action_app import ActionApp
from phantombase.timeline.dashboard.orders import CommandSettings, Order, OrderName
from phantombase.timeline.dashboard.runner import Runner
from phantombase.timeline.errors import UsageError
from phantombase.timeline.service.access import COOKIE, Access
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.logs import capture_logs
from tests.support.service_client import ACCESS, COMMAND, SOLE, TOKEN, Reply, ServiceClient, service
from tests.support.service_process import serving

BEARER = {"authorization": f"Bearer {TOKEN}"}
OWN = {"origin": "http://localhost"}
ECHO = (sys.executable, "-c", "import sys; print(sys.argv[1:])")


def cookie(at: float | None = None) -> dict[str, str]:
    return {"cookie": f"{COOKIE}={ACCESS.session(time.time() if at is None else at)}"}


def proof(headers: dict[str, str]) -> str:
    return ACCESS.proof({k.encode(): v.encode() for k, v in headers.items()})


def order(client: ServiceClient, path: str, headers: dict[str, str], **fields: str) -> Reply:
    body = urlencode(fields).encode()
    return client.loop.run_until_complete(client.send(path, b"", "POST", headers, body))


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
    assert "<script" not in page
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
        ActionApp(access, Runner(COMMAND), settings)


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
    runner = Runner((sys.executable, "-c", show), {"region": "eu", "secret_access_key": "hush"})
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


@pytest.mark.parametrize("beside", [False, True])
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
    assert order(client, "/api/tables/plain/actions/schedule", BEARER).json()["exit_code"] == 0
    (newest,) = pending_of(table)
    plan = next(table.glob(f".hoodie/timeline/{newest}.compaction.requested"))
    plan.write_bytes(b"")
    os.utime(plan, times=(1_700_000_000, 1_700_000_000))  # no process is still writing it
    found = client.ask_with(BEARER, "/api/tables/plain").json()
    assert (found["health"], newest in found["reason"]) == ("stuck", True), found["reason"]
    page = client.ask_with(me, "/t/plain").text
    ((to, fields),) = ((to, f) for to, f in forms(page) if to.endswith("unschedule") and f["instant"] == newest)
    assert order(client, to, me | OWN, **fields).status == 303
    found = client.ask_with(BEARER, "/api/tables/plain").json()
    assert found["health"] == "ok", found["reason"]
