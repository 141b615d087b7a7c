"""Who may ask what: tokens, cookies, networks, and pages of other sites."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.service.asgi import COOKIE, SESSION_S, Access
from phantombase.timeline.service.marker_app import MARKER_PREFIX
from phantombase.timeline.service.routes import PREFIX
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import Reply, ServiceClient

TOKEN = "a token of twenty-seven bytes"
REMOTE = Access(host="0.0.0.0", token=TOKEN, hudi_clients=("10.1.0.0/16",), names=("timeline",))
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def remote(tmp_path: Path) -> ServiceClient:
    return ServiceClient.of(unzip_golden("v9_plain", tmp_path), access=REMOTE, markers=True)


def ask(service: ServiceClient, path: str, headers: dict[str, str] | None = None, **more: object) -> Reply:
    return service.loop.run_until_complete(service.send(path, headers=headers, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"host": "0.0.0.0"}, "needs a token"),
        ({"host": "::"}, "needs a token"),
        ({"host": "10.1.2.3"}, "needs a token"),
        ({"host": "example.org"}, "needs a token"),
        ({"token": "short"}, "too short"),
        ({"token": "a token with\na line in it"}, "too short"),
        ({"hudi_clients": ("10.1.0.0/8",)}, "not a network"),
        ({"hudi_clients": ("everybody",)}, "not a network"),
    ],
)
def test_what_is_not_safe_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Access(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.5"])
def test_on_this_machine_no_token_is_needed(host: str) -> None:
    assert Access(host=host).may_look({}, 0)


@pytest.mark.parametrize("path", ["/api/tables", "/api/tables/plain", "/metrics", "/x", "/api/../x"])
def test_json_needs_the_token(remote: ServiceClient, path: str) -> None:
    assert ask(remote, path).status == 401
    assert ask(remote, path, {"authorization": f"Bearer {TOKEN}x"}).status == 401
    assert ask(remote, path, {"authorization": "Bearer "}).status == 401
    assert ask(remote, path, {"authorization": f"Basic {TOKEN}"}).status == 401
    assert ask(remote, path, {"cookie": f"{COOKIE}={TOKEN}"}).status == 401
    assert ask(remote, f"{path}?token={TOKEN}").status == 401
    assert ask(remote, path, BEARER).status != 401


def test_a_person_logs_in_with_a_form(remote: ServiceClient) -> None:
    reply = ask(remote, "/")
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    form = ask(remote, "/login")
    assert (form.status, TOKEN in form.text, 'type="password"' in form.text) == (200, False, True)
    wrong = ask(remote, "/login", method="POST", body=b"token=wrong")
    assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
    right = ask(remote, "/login", {"origin": "http://localhost"}, method="POST", body=f"token={TOKEN}".encode())
    assert (right.status, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert ask(remote, "/", {"cookie": cookie.partition(";")[0]}).status == 200


def test_a_form_of_another_site_is_refused(remote: ServiceClient) -> None:
    sent = {"origin": "https://attacker.example"}
    assert ask(remote, "/login", sent, method="POST", body=f"token={TOKEN}".encode()).status == 403


def test_a_form_that_is_too_long_is_not_read(remote: ServiceClient) -> None:
    assert ask(remote, "/login", method="POST", body=b"token=" + b"x" * 5000).status == 413


def test_a_session_ends_and_cannot_be_made_longer() -> None:
    now = time.time()
    cookie = REMOTE.session(now)

    def may_look(cookie: str, at: float) -> bool:
        return REMOTE.may_look({b"cookie": f"{COOKIE}={cookie}".encode()}, at)

    assert may_look(cookie, now + SESSION_S - 2)
    assert not may_look(cookie, now + SESSION_S + 1)
    until, _, signature = cookie.partition(".")
    assert not may_look(f"{int(until) + 1}.{signature}", now)
    assert not may_look(f"{until}.", now)
    assert not may_look("", now)
    assert not Access(host="0.0.0.0", token=TOKEN + "2").may_look({b"cookie": f"{COOKIE}={cookie}".encode()}, now)


@pytest.mark.parametrize(
    ("client", "status"),
    [("127.0.0.1", 200), ("10.1.200.3", 200), ("::ffff:10.1.200.3", 200), ("10.2.0.1", 403), ("8.8.8.8", 403)],
)
def test_hudis_routes_answer_networks_that_were_named(
    remote: ServiceClient, tmp_path: Path, client: str, status: int
) -> None:
    table = tmp_path / "plain"
    query = f"basepath={table}".encode()
    assert ask(remote, f"{PREFIX}timeline/instants/all", query=query, client=client).status == status
    made = f"markerdirpath={table}/.hoodie/.temp/20991121091340983&markername=f.marker.CREATE".encode()
    reply = ask(remote, f"{MARKER_PREFIX}create", method="POST", query=made, client=client)
    assert (reply.status, (table / ".hoodie/.temp/20991121091340983").exists()) == (status, status == 200)


def test_the_token_does_not_open_hudis_routes(remote: ServiceClient) -> None:
    assert ask(remote, f"{PREFIX}timeline/instants/all", BEARER, client="10.2.0.1").status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [("timeline:26754", 200), ("TIMELINE", 200), ("10.1.0.4:1", 200), ("[fd00::1]:26754", 200), ("fd00::1", 200),
     ("localhost", 200), ("attacker.example", 403), ("", 403), ("10.1.0.4.attacker.example", 403)],
)  # fmt: skip
def test_names_that_are_not_ours_are_refused(remote: ServiceClient, host: str, status: int) -> None:
    assert ask(remote, "/api/tables", {**BEARER, "host": host}).status == status


def test_on_this_machine_only_its_own_addresses_are_names(tmp_path: Path) -> None:
    local = ServiceClient.of(unzip_golden("v9_plain", tmp_path))
    assert local.ask_with({"host": "127.0.0.1:26754"}, "/api/tables").status == 200
    assert local.ask_with({"host": "10.1.2.3:26754"}, "/api/tables").status == 403


def test_probes_need_nothing(remote: ServiceClient) -> None:
    assert ask(remote, "/healthz", {"host": "any"}, client="8.8.8.8").status == 200
    assert ask(remote, "/readyz", {"host": "any"}).status == 503
    ask(remote, "/api/tables", BEARER)
    assert ask(remote, "/readyz").status == 200
