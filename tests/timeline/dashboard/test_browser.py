"""The pages for eyes and for those who listen: contrast, names of drawings, labels; `test_in_chromium` shows them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from phantombase.timeline.dashboard.pages import login_page, style
from tests.support.service_client import ServiceClient
from tests.support.table_healths import tables_of_every_health

TEXTS = ("text", "faint", "link", "ok", "late", "stuck", "broken")
GRAPHICS = ("bar", "open")
VOID = {"meta", "link", "input", "rect", "polyline", "br"}


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
    assert {r["health"] for r in rows} == {"broken", "stuck", "late", "ok"}
