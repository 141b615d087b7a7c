"""The pages in a real Chromium: what it complains of, their width, what axe finds, and forms without scripts.

`PHANTOMBASE_SHOTS=FOLDER` keeps a picture of each."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest

from phantombase.timeline.dashboard import actions
from phantombase.timeline.dashboard.actions import ActionApp, OrderRunner, installed
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.people_app import LoginApp, PeopleApp
from phantombase.timeline.dashboard.table_rows import TableRows
from phantombase.timeline.service.asgi import Access
from phantombase.timeline.service.run import HttpService, ServeOptions
from phantombase.timeline.service.served_tables import ServedTable, ServedTables
from phantombase.timeline.terminal.text_table import Row
from tests.support.selection import deep
from tests.support.servers import axe
from tests.support.servers.chromium import Browser, Page, SnapshotStorage, chromium
from tests.support.servers.debian import NotInstalledError
from tests.support.service_client import Knows, rows_of, tables_of_every_health

TOKEN = "a token of twenty-seven bytes"
SETTINGS = CommandSettings(sole_writer=True)

ALONE = {"/": 200, "/t/pending": 200, "/t/two_pending": 200, "/t/compacted_cleaned": 200, "/t/plain": 200,
         "/t/none": 200, "/t/pending/groups": 200, "/t/two_pending/groups?partition=north&sort=log_files": 200,
         "/t/pending/instant/20261121091332703": 200, "/fleet": 200, "/t/nowhere": 404, "/t/pending?again=never": 200,
         "/t/pending/groups?page=99": 400}  # fmt: skip
"""Pages of a service of its own, about tables that are late, fine, broken, and none."""

WITH_CREW = {"/": 200, "/t/pending": 200, "/fleet": 200}
"""Pages inside a daemon, with buttons, behind a login."""

FORM = {"/login": 200, "/t/pending": 200}
"""What is shown before the login."""

LOOKS = [SnapshotStorage(width=w, dark=d, script=s) for w, d, s in product((390, 1280), (False, True), (True, False))]
PAGES = {"alone": ALONE, "crew": WITH_CREW, "form": FORM}
CASES = [(where, page) for where, pages in PAGES.items() for page in pages]
SOME = [(*case, LOOKS[n * 3 % len(LOOKS)]) for n, case in enumerate(CASES)]
REST = [(*case, snapshot) for case in CASES for snapshot in LOOKS if (*case, snapshot) not in SOME]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    try:
        axe.source()
        with chromium(tmp_path / "profile") as found:
            yield found
    except NotInstalledError as error:
        pytest.skip(f"NO CHROMIUM HERE: the pages are not opened in a browser: {error}")


def service(paths: list[Path], *, crew: bool) -> HttpService:
    """As `timeline serve`, and with a crew as inside a daemon with buttons."""

    def pages(tables: ServedTables, access: Access) -> tuple[PeopleApp, LoginApp]:
        app = ActionApp(access, OrderRunner(installed()), SETTINGS) if crew else None
        people = PeopleApp(tables, 60, Knows() if crew else None, settings=SETTINGS, actions=app)
        return people, LoginApp(access)

    token = TOKEN if crew else None
    return HttpService(paths=[str(p) for p in paths], options=ServeOptions(port=0), pages=pages, token=token)


def log_in(browser: Browser, address: str) -> None:
    """In a tab without scripts; the cookie is the browser's."""
    page = Page(browser, SnapshotStorage(script=False))
    assert page.open(address) == 200
    page.type("another token")
    assert "This is not the token" in page.html
    page.type(TOKEN)
    assert "<h1>Tables" in page.html
    assert page.problems == []
    assert page.open(f"{address}/login") == 200
    assert "<h1>Tables" in page.html
    page.close()


@pytest.mark.parametrize("shown", [SOME, deep(REST)], ids=["some", "all"])
def test_pages_are_as_they_should_be(
    shown: list[tuple[str, str, SnapshotStorage]], browser: Browser, tmp_path: Path
) -> None:
    """No complaint of the browser, none of axe, no wider than the window; the same without scripts."""
    paths = tables_of_every_health(tmp_path)
    shots = os.environ.get("PHANTOMBASE_SHOTS")
    found: dict[str, object] = {}
    with service(paths, crew=False).in_thread() as alone, service(paths, crew=True).in_thread() as crew:
        log_in(browser, crew)
        for where, path, snapshot in shown:
            page, name = Page(browser, snapshot, private=where == "form"), f"{where} {path} {snapshot}"
            expected = PAGES[where][path]
            status = page.open(f"{alone if where == 'alone' else crew}{path}")
            page.open_details()
            wrong: dict[str, object] = {"status": status} if status != expected else {}
            wrong |= {"problems": page.problems} if page.problems and status == 200 else {}
            wrong |= {"too wide": wide} if (wide := page.too_wide()) else {}
            wrong |= {"axe": bad} if snapshot.script and (bad := page.violations()) else {}
            if "<h1" not in page.html:
                wrong["empty"] = page.html
            if shots:
                page.picture(Path(shots) / f"{re.sub('[^a-z0-9_]+', '-', name.lower()).strip('-')}.png")
            page.close()
            if wrong:
                found[name] = wrong
    assert found == {}


@pytest.mark.parametrize("count", [1, 40, 2000])
def test_an_index_of_any_size_is_as_it_should_be(
    count: int, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In light and dark and in both widths; a script filters while somebody types, and the server without one."""

    async def rows(self: TableRows, tables: Iterable[ServedTable]) -> list[Row]:
        return rows_of(count)

    monkeypatch.setattr(TableRows, "all", rows)
    with service(tables_of_every_health(tmp_path)[:1], crew=False).in_thread() as address:
        found = {}
        for look in LOOKS:
            page = Page(browser, look)
            assert page.open(f"{address}/?sort=name") == 200
            wrong = [page.too_wide(), page.problems, page.violations() if look.script else []]
            if any(wrong):
                found[str(look)] = wrong
            page.close()
        assert found == {}
        page = Page(browser, SnapshotStorage(script=False))
        assert page.open(f"{address}/?find=orders_1&sort=name") == 200
        assert ">sales/<wbr>orders_<wbr>1<" in page.html


def test_a_button_is_pressed_without_scripts(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the keyboard: the plan that cannot be read is taken back, and the page says so."""
    monkeypatch.setattr(actions, "_WAIT_S", 170.0)  # else a slow machine answers that it still runs
    paths = tables_of_every_health(tmp_path)
    (plan,) = paths[3].glob(".hoodie/timeline/*.compaction.requested")
    os.utime(plan, (time.time() - 500,) * 2)  # a process may still be writing a younger one
    with service(paths, crew=True).in_thread() as address:
        log_in(browser, address)
        page = Page(browser, SnapshotStorage(width=390, script=False))
        assert page.open(f"{address}/t/plain") == 200
        assert "broken" in page.html
        assert page.press("form.order button") == 200
        assert "● done" in page.html
        assert "broken" not in page.html
        assert page.problems == []


def test_a_page_reads_itself_again_until_it_is_paused(browser: Browser, tmp_path: Path) -> None:
    paths = tables_of_every_health(tmp_path)
    with service(paths, crew=False).in_thread() as address:
        page = Page(browser, SnapshotStorage(script=False))
        page.open(f"{address}/t/pending")
        assert 'http-equiv="refresh"' in page.html
        page.press(".again a")
        assert "Paused" in page.html
        assert 'http-equiv="refresh"' not in page.html
        page.press(".again a")
        assert 'http-equiv="refresh"' in page.html
