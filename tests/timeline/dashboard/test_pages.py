"""The pages and their JSON: file groups worst first, an instant decoded, compactions with their ledgers, advice."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from phantombase.timeline.dashboard.compactions import table_debt
from phantombase.timeline.dashboard.orders import advice
from phantombase.timeline.dashboard.pages import chart, held_back, login_page, style, table_page
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.dashboard.table_rows import Trends
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import run_all
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep
from tests.support.service_client import Knows, ServiceClient, pending, tables_of_every_health

GOLDEN = ["v6_clustered", "v6_rolled_back", "v9_archived", "v9_compacted_cleaned", "v9_replaced", "v9_savepointed"]
MORE = ["v9_pending", "v9_log_compacted", "v9_clustered", "v6_pending", "v6_log_compacted", "v9_complex_key",
        "v9_types", "v9_bucket_nonpart", "v9_rolled_back", "v9_upgraded", "v8_two_pending"]  # fmt: skip


@pytest.mark.parametrize("archive", [*GOLDEN, *map(deep, MORE)])
def test_every_page_of_a_table_opens(archive: str, tmp_path: Path) -> None:
    path = unzip_golden(archive, tmp_path)
    client = ServiceClient.of(path)
    name = client.ask("/api/tables").json()["tables"][0]["served_as"]
    state = Table.open(str(path)).load_view()
    pages = ["/", "/fleet", f"/t/{name}", f"/t/{name}/groups"]
    pages += [f"/t/{name}/instant/{i.requested_time}" for i in state.timeline.instants]
    pages += [f"/t/{name}/groups?partition={quote(p)}" for p in {g.partition for g in state.groups}]
    for page in pages:
        path_, _, query = page.partition("?")
        reply = client.loop.run_until_complete(client.send(path_, query.encode()))
        assert (reply.status, "</html>" in reply.text) == (200, True), (page, reply.text)
        assert reply.text.count("<script") == reply.text.count('<script src="/page.js" defer></script>') <= 1
        assert "style=" not in reply.text
    for time in {i.requested_time for i in state.timeline.instants}:
        found = client.ask(f"/api/tables/{name}/instants/{time}").json()
        assert [a["problem"] for a in found["actions"]] == [None] * len(found["actions"]), found


def test_file_groups_come_worst_first_in_pages(tmp_path: Path) -> None:
    client = ServiceClient.of(unzip_golden("v9_pending", tmp_path))
    page = client.ask("/api/tables/pending/groups").json()
    assert (page["page"], page["pages"], page["count"], page["sort"]) == (1, 1, 2, "log_bytes")
    sizes = [group["log_bytes"] for group in page["groups"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {group["pending_compaction"] for group in page["groups"]} == {page["groups"][0]["pending_compaction"]}
    by_files = client.ask("/api/tables/pending/groups", sort="log_files").json()["groups"]
    assert by_files[0]["log_files"] == max(g["log_files"] for g in by_files)
    north = client.ask("/api/tables/pending/groups", partition="north").json()["groups"]
    assert [g["partition"] for g in north] == ["north"]


@pytest.mark.parametrize(
    ("query", "status"),
    [({"page": "2"}, 400), ({"page": "0"}, 400), ({"page": "-1"}, 400), ({"page": "²"}, 400), ({"page": "9" * 99}, 400),
     ({"sort": "x"}, 400), ({"partition": "none"}, 400), ({"partition": ""}, 200), ({"page": "1"}, 200)],
)  # fmt: skip
def test_odd_parameters_of_pages_get_a_reason(query: dict[str, str], status: int, tmp_path: Path) -> None:
    client = ServiceClient.of(unzip_golden("v9_pending", tmp_path))
    assert client.ask("/t/pending/groups", **query).status == status


PLACES = {
    "/": ("again", "find", "state", "pool", "sort", "page"),
    "/fleet": ("again",),
    "/t/pending": ("again",),
    "/t/pending/groups": ("sort", "partition", "page"),
    "/t/pending/instant/{}": (),
    "/api/fleet": (),
    "/api/tables": (),
    "/api/tables/pending": (),
    "/api/tables/pending/groups": ("sort", "partition", "page"),
    "/api/tables/pending/instants/{}": (),
    "/metrics": (),
}
"""The pages, their JSON and the metrics, with the parameters of each."""


@pytest.mark.parametrize("place", PLACES)
def test_a_parameter_that_a_page_does_not_have_is_named(place: str, tmp_path: Path) -> None:
    """Only names that it has count: a wish that nobody fulfils is an error, with the name that was meant."""
    path = unzip_golden("v9_pending", tmp_path)
    client, known = ServiceClient.of(path), PLACES[place]
    place = place.format(Table.open(str(path)).load_timeline().instants[0].requested_time)
    right = {"again": "never", "sort": "log_files", "partition": "north", "page": "1",
             "find": "end", "state": "needs care", "pool": ""}  # fmt: skip
    given = {name: right[name] for name in known}
    assert client.ask(place, **given).status == 200
    every = {"again", "sort", "partition", "page", "pretty", "instant", "basepath", "refreshoff", "x", "name[]"}
    for name in every - set(known):
        reply = client.ask(place, **given, **{name: "1"})
        assert (reply.status, repr(name) in reply.text, ", ".join(known) in reply.text) == (400, True, True), reply.text
    for name in known:
        for wrong in (name.upper(), name[:-1], name[0] + name):
            reply = client.ask(place, **{**given, wrong: right[name]})
            assert (reply.status, f"Did you mean {name}?" in reply.text) == (400, True), (wrong, reply.text)
        twice = f"{name}={right[name]}".encode()
        reply = client.loop.run_until_complete(client.send(place, twice + b"&" + twice))
        assert (reply.status, "given twice" in reply.text) == (400, True), reply.text
    if "again" in known:
        assert client.ask(place, again="no").status == 400


@pytest.mark.parametrize("time", ["20991121091340983", "x", "..", "<script>", "%00"])
def test_an_instant_that_is_not_there_is_said_so(time: str, tmp_path: Path) -> None:
    client = ServiceClient.of(unzip_golden("v9_pending", tmp_path))
    reply = client.ask_with({"accept": "text/html"}, f"/t/pending/instant/{quote(time)}")
    assert (reply.status, "<script>" in reply.text) == (400, False)


def test_compactions_show_their_ledgers(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    run_all(Table.open(str(path)))
    row = ServiceClient.of(path).ask("/api/tables/pending").json()
    (done,) = row["compactions"]
    assert (done["by"], done["balanced"], done["problem"]) == ("phantombase", True, None)
    assert (done["file_groups"], done["rows_out"] > 0, done["bytes_out"] > 0) == (2, True, True)
    assert done["log_entries"] > 0
    assert row["pending_compactions"] == 0
    kinds = {i["kind"] for i in row["instants"]}
    assert kinds == {"deltacommit", "compaction"}


def test_costs_are_those_of_the_last_work_and_a_history_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    client = ServiceClient.of(path)
    assert "Costs" not in client.ask("/t/pending").text
    run_all(Table.open(str(path)))
    row = client.ask("/api/tables/pending").json()
    assert [(one["kind"], one["outcome"]) for one in row["work_done"]] == [("compaction", "done")]
    assert (row["work_sums"][0]["units"], row["work_sums"][0]["bytes_written"] > 0) == (1, True)
    assert "Costs of the last work" in client.ask("/t/pending").text
    shutil.rmtree(path / ".hoodie/.phantombase/history")
    (path / ".hoodie/.phantombase/history").write_bytes(b"")
    assert client.ask("/api/tables/pending").json()["work_done"] == []


def test_what_hudi_compacted_has_no_ledger(tmp_path: Path) -> None:
    row = ServiceClient.of(unzip_golden("v9_compacted_cleaned", tmp_path)).ask("/api/tables/compacted_cleaned").json()
    assert {(c["by"], c["balanced"]) for c in row["compactions"]} == {("hudi", None)}


def test_services_are_named_as_what_they_are(tmp_path: Path) -> None:
    for archive, kind in (("v9_clustered", "clustering"), ("v9_log_compacted", "logcompaction")):
        path = unzip_golden(archive, tmp_path / archive)
        instants = ServiceClient.of(path).ask(f"/api/tables/{archive[3:]}").json()["instants"]
        assert kind in {i["kind"] for i in instants}


def with_fleet_info(path: Path, fleet_info: Knows) -> ServiceClient:
    tables = ServedTables([str(path)])
    client = ServiceClient.of_tables(tables)
    return ServiceClient(ServiceApp(tables, 1 << 20, pages=PeopleApp(tables, 60, fleet_info)), client.loop)


def test_a_page_shows_who_works_and_how_far_it_is(tmp_path: Path) -> None:
    client = with_fleet_info(unzip_golden("v9_pending", tmp_path), Knows())
    page = client.ask("/t/pending").text
    assert "daemon-1 on a, 7" in page
    assert "3 of 12" in page
    assert "3 min" in page  # three took one minute, nine are left
    assert "largest not done" in page
    assert "north/the-large-one" in page
    assert "compactor-daemon release" in page
    fleet = client.ask("/api/fleet").json()
    assert (fleet["zookeeper"], [p["served_as"] for p in fleet["parked"]]) == (True, ["pending"])
    assert [(e["error"], e["compactions"], e["what"]) for e in fleet["errors"]] == [
        ("StorageError", 1, "no space left")
    ]
    assert (fleet["states"], fleet["last_hour"]) == ({"parked": 1}, 0)
    page = client.ask("/fleet").text
    assert all(words in page for words in ("daemon-1", "StorageError", "no space left", "it failed", "1 parked"))


def test_a_parked_compaction_needs_care(tmp_path: Path) -> None:
    """The list names the process that holds it; the goal may be the daemon's."""
    path = unzip_golden("v9_pending", tmp_path)
    tables = ServedTables([str(path)])
    client = ServiceClient.of_tables(tables)

    def first(fleet_info: Knows) -> dict[str, Any]:
        people = PeopleApp(tables, None, fleet_info)
        with_it = ServiceClient(ServiceApp(tables, 1 << 20, pages=people), client.loop)
        assert "daemon-1 on a, 7, for 1 min" in with_it.ask("/").text
        (row,) = with_it.ask("/api/tables").json()["tables"]
        assert row["work"][0]["work"]["holder"] == "daemon-1"
        return dict(row)

    parked = first(Knows())
    assert (parked["health"], parked["reason"]) == (
        "needs care",
        f"compaction {parked['work'][0]['instant']} has failed too often and is not tried any more (it failed)",
    )
    health = [first(Knows("running", slo_s=s))["health"] for s in (None, 1, 1e12)]
    assert health == ["well", "needs care", "well"]
    assert "held by" not in client.ask("/").text


def test_a_crew_that_does_not_answer_is_said_so_and_hides_nothing(tmp_path: Path) -> None:
    page = with_fleet_info(unzip_golden("v9_pending", tmp_path), Knows(fails=True)).ask("/t/pending").text
    assert "ZooKeeper does not answer" in page
    assert "Timeline" in page


def row(**more: Any) -> dict[str, Any]:
    return {"path": "/data/my table", "health": "well", "pending": [], "file_groups_waiting": 0, **more}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([pending()], ["archiving of later instants; cleaning of later writes; other plans for its file groups"]),
        ([pending(instant="00", action="clean"), pending(kind="compaction")],
         ["archiving of later instants", "cleaning of later writes; other plans for its file groups"]),
        ([pending(instant="0", action="deltacommit"), pending()],
         ["archiving of later instants; cleaning of later writes; the end of 1 compaction: 1",
          "other plans for its file groups"]),
        ([pending(action="replacecommit", kind="clustering")],
         ["archiving of later instants; cleaning of later writes; compactions and writes of its file groups"]),
    ],
)  # fmt: skip
def test_what_is_held_back(rows: list[dict[str, Any]], words: list[str]) -> None:
    fleet_info = {"writes": [{"instant": "0", "holds": ["1"]}, {"instant": "9", "holds": ["1"]}]}
    assert list(held_back(rows, fleet_info if len(rows) > 1 else None).values()) == words


HALF_WAY = {"action": "restore", "instant": "2", "todo": "`compactor-daemon restore TABLE`"}


@pytest.mark.parametrize(
    ("known", "commands"),
    [
        (row(), []),
        (row(health="broken"), ["timeline audit '/data/my table'"]),
        (row(pending=[pending()]), []),
        (row(health="needs care", pending=[pending()]), ["compactor-daemon compact '/data/my table'"]),
        (row(health="broken", pending=[pending(problem="torn")]),
         ["timeline audit '/data/my table'", "compactor-daemon unschedule '/data/my table' 1"]),
        (row(file_groups_waiting=3, log_bytes_waiting=9, delta_commits_since_request=5),
         ["compactor-daemon schedule '/data/my table'"]),
        (row(file_groups_waiting=3, log_bytes_waiting=9, delta_commits_since_request=4), []),
        (row(fleet_info={"pending": [], "in_progress": [HALF_WAY]}),
         ["compactor-daemon restore '/data/my table' --lock LOCK"]),
    ],
)  # fmt: skip
def test_what_can_be_done(known: dict[str, Any], commands: list[str]) -> None:
    assert [one["command"] for one in advice(known)] == commands


def test_a_trend_has_a_sample_a_minute() -> None:
    trends, none = Trends(), table_debt(1, ())
    for second in range(0, 200, 10):
        trends.add("t", second, replace(none, log_bytes=second))
    assert [s["log_bytes"] for s in trends.of("t")] == [0, 60, 120, 180]
    drawn = chart("logs", [(20.0, 0), (10.0, 50), (0.0, 100)], (20.0, 0.0), "100")
    assert (drawn.points, drawn.begun, drawn.ended) == ("0,58.0 500,30.0 1000,2.0", "20 s ago", "now")


@pytest.mark.parametrize(("age", "word"), [(10.0, "ok"), (49.0, "soon"), (61.0, "late")])
def test_the_goal_as_a_bar(age: float, word: str, tmp_path: Path) -> None:
    found = ServiceClient.of(unzip_golden("v9_pending", tmp_path), slo_s=60).ask("/api/tables/pending").json()
    page = table_page({**json.loads(json.dumps(found)), "oldest_pending_s": age}, None)
    assert f'class="meter {word}"' in page


# The pages for eyes and for those who listen: contrast, names of drawings, labels; `test_in_chromium` shows them.


TEXTS = ("text", "faint", "link", "well", "care", "broken")
GRAPHICS = ("bar", "open")
VOID = {"meta", "link", "input", "rect", "polyline", "br", "wbr"}


def schemes() -> list[dict[str, str]]:
    """The colours of the light and the dark scheme."""
    blocks = re.findall(r":root\s*\{([^}]*)\}", style().decode())
    return [dict(re.findall(r"--(\w+):\s*(#[0-9a-f]{6})", block)) for block in blocks]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_and_graphics_stand_out_in_both_schemes() -> None:
    """WCAG 2.1, 1.4.3 and 1.4.11: 4.5 to 1 for text, 3 to 1 for what is drawn."""
    light, dark = schemes()
    for scheme in (light, dark):
        low = {n: contrast(scheme[n], scheme["ground"]) for n in TEXTS}
        assert {n: c for n, c in low.items() if c < 4.5} == {}
        drawn = {n: contrast(scheme[n], scheme["ground"]) for n in GRAPHICS}
        assert {n: c for n, c in drawn.items() if c < 3} == {}


class Accessible(HTMLParser):
    """Collects what a page owes to those who do not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.levels: list[int] = []
        self.ids: list[str] = []
        self.labels: set[str] = set()
        self.inputs: set[str] = set()
        self._open: list[str] = []
        self._text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids += [v for k, v in attributes if k == "id" and v]
        if tag == "html" and not given.get("lang"):
            self.problems.append("the page has no language")
        if tag == "svg" and not (given.get("role") == "img" and given.get("aria-label")):
            self.problems.append("a drawing without a name")
        if tag == "th" and "scope" not in given:
            self.problems.append("a head cell without a scope")
        if given.get("role") == "region" and not given.get("aria-label"):
            self.problems.append("a region without a name")
        if "scroll" in (given.get("class") or "").split() and given.get("tabindex") != "0":
            self.problems.append("a region that the keyboard cannot scroll")
        if re.fullmatch(r"h\d", tag):
            self.levels.append(int(tag[1]))
        if tag == "label":
            self.labels.add(str(given.get("for")))
        if tag == "input":
            self.inputs.add(str(given.get("id")))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "a":
            self._text = ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")
        if tag == "a" and not self._text.strip():
            self.problems.append("a link without words")

    def found(self) -> list[str]:
        problems = list(self.problems)
        if self.levels.count(1) != 1 or any(b - a > 1 for a, b in zip(self.levels, self.levels[1:], strict=False)):
            problems.append(f"headings {self.levels}")
        if len(set(self.ids)) != len(self.ids):
            problems.append("an id twice")
        return problems + [f"the input {i} has no label" for i in self.inputs - self.labels]


@pytest.fixture
def tables(tmp_path: Path) -> list[Path]:
    return tables_of_every_health(tmp_path)


PAGES = ("/", "/t/pending", "/t/two_pending", "/t/compacted_cleaned", "/t/plain", "/t/none", "/t/pending/groups",
         "/t/pending/instant/20261121091332703", "/fleet", "/nowhere")  # fmt: skip


def test_pages_say_what_they_show(tables: list[Path]) -> None:
    client = ServiceClient.of(*tables, slo_s=60)
    texts = {page: client.ask_with({"accept": "text/html"}, page).text for page in PAGES}
    found = {}
    for page, text in {**texts, "login": login_page(wrong=True)}.items():
        reader = Accessible()
        reader.feed(text)
        found[page] = reader.found()
    assert {page: problems for page, problems in found.items() if problems} == {}


def test_every_health_is_among_the_tables(tables: list[Path]) -> None:
    rows = ServiceClient.of(*tables, slo_s=60).ask("/api/tables").json()["tables"]
    assert {r["health"] for r in rows} == {"broken", "needs care", "well"}
