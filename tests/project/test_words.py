"""The texts of the code and the docs name processes and records by their terms, one word for one thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.project.doc_pages import ALL_PAGES
from tests.support.places import ROOT

PACKAGES = ("timeline", "compactor_daemon", "writer_hooks", "phantombase", "pyspark_phantombase")

BANNED = re.compile(
    r"\b(whoever|somebody|nobody|anybody|of ours|books"
    r"|stitch(es|ed|ing|ings)|bury|buried|burial|digs? up|crew|pulse|footprint|fates?|ruling|fallen|lanes?"
    r"|goes again|c[ao]mes? too late|half-way|anew|told|noted|so many)\b",
    re.IGNORECASE,
)
"""Say which process is meant (writer, reader, daemon, compactor), and ledger for books; the others have these words of
the field instead: cluster, tombstone, fleet, heartbeat, write set, outcome, validity, invalid, pool; is removed, stale,
in progress, again, notified, recorded, at most."""

_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def files() -> list[str]:
    """The source files of the packages."""
    return sorted(str(p.relative_to(ROOT)) for package in PACKAGES for p in (ROOT / package).rglob("*.py"))


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings, strings and comments of a source, each with its line. Implicitly joined strings are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def banned(text: str) -> list[str]:
    """The banned words in a text; a line break between two words counts as a space."""
    return [m[0] for m in BANNED.finditer(" ".join(text.split()))]


def test_no_banned_word_is_in_the_texts_of_a_file() -> None:
    read = ((file, line, text) for file in files() for line, text in texts((ROOT / file).read_text()))
    assert [(file, line, words) for file, line, text in read if (words := banned(text))] == []


def test_no_banned_word_is_in_a_page() -> None:
    """Code blocks are skipped: they show the output of commands, which the packages write."""
    pages = {page: banned(_CODE_BLOCK.sub("", (ROOT / page).read_text())) for page in ALL_PAGES}
    assert {page: words for page, words in pages.items() if words} == {}


def test_a_banned_word_is_found_in_every_kind_of_text() -> None:
    source = '"""Whoever\ncomes."""\nX = "a record of" " ours"  # nobody\nY = f"{X} keeps books"\n'
    assert sorted(word.lower() for _, text in texts(source) for word in banned(text)) == [
        "books",
        "nobody",
        "of ours",
        "whoever",
    ]
