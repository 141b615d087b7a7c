"""Tables of rows in terminals that are too narrow for them."""

from __future__ import annotations

import io
from operator import itemgetter

import pytest
from rich.console import Console

from phantombase.timeline.terminal.text_table import Column, RowsTable, spoken

_INSTANT = "20261122115711425"
_WORDS = "a delta commit that began before it has not ended yet"


def shown(width: int, **row: str | None) -> str:
    """A table with one row, whose fields are the columns."""
    columns = [Column(title=name, cell=itemgetter(name), shorten=name == "by") for name in row]
    out = io.StringIO()
    Console(file=out, width=width).print(RowsTable(title="one", columns=columns, rows=[row]))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    return text


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_an_instant_is_never_broken(width: int) -> None:
    """Text beside it wraps."""
    text = shown(width, instant=_INSTANT, why=_WORDS, since=None)
    assert _INSTANT in text
    assert "…" not in text
    assert sum(text.count(word) for word in _WORDS.split()) >= len(_WORDS.split()) - 2


def test_an_instant_within_a_text_is_not_broken() -> None:
    """As in `timeline slices`, beside a file id that is shortened."""
    text = shown(
        80, by="f" * 38, base=_INSTANT, size="424.2 KiB", logs="1", log="3.3 KiB", outcome=f"in plan {_INSTANT}"
    )
    assert text.count(_INSTANT) == 2
    assert "f…" in text


@pytest.mark.parametrize("partition", ["north", "day=2026-11-26", "country=de/day=2026-11-26"])
def test_an_instant_breaks_behind_all_other_words(partition: str) -> None:
    """A table with a pending plan, as `timeline slices` shows it in a usual terminal."""
    sizes = {"base": "phantom", "logs": "3", "log size": "13.1 KiB"}
    text = shown(80, partition=partition, by="f" * 38, base_instant=_INSTANT, **sizes, outcome=f"in plan {_INSTANT}")
    assert text.count(_INSTANT) == 2
    if len(partition) < 10:  # where no word breaks, no title does
        assert "partition" in text
        assert "phantom" in text


def test_what_is_shortened_still_tells_rows_apart() -> None:
    """As the file ids of buckets, beside a plan, in a usual terminal."""
    buckets = [f"{n:08}-5bd3-47f1-8a6e-0e1f6a3c9d2{n}-0" for n in range(3)]
    rows = [{"file id": one, "base": _INSTANT, "of": "428.7 KiB", "plan": f"in plan {_INSTANT}"} for one in buckets]
    columns = [Column(title=name, cell=itemgetter(name), shorten=name == "file id") for name in rows[0]]
    out = io.StringIO()
    Console(file=out, width=66).print(RowsTable(title="three", columns=columns, rows=rows))
    assert [one[:8] in out.getvalue() for one in buckets] == [True] * 3
    assert "…" in out.getvalue()
    assert spoken(f"commits since {_INSTANT}") == "commits since 2026-11-22 11:57:11"


def test_columns_without_a_value_go_first() -> None:
    """They are shown where there is room."""
    row = {"instant": _INSTANT, "state": "requested", "by": None, "since": None, "try": None, "slices": None}
    assert "slices" in shown(80, **row)
    narrow = shown(34, **row)
    assert "slices" not in narrow
    assert _INSTANT in narrow
    assert "requested" in narrow


def test_what_may_be_shortened_is() -> None:
    """With an ellipsis, and no more than needed."""
    text = shown(32, instant=_INSTANT, by="builder-17.example:4711")
    assert _INSTANT in text
    assert "builder" in text
    assert "…" in text
