"""A page as a notebook shows results: `python -m tests.project.notebook_page TABLE FILE` makes one of a small table.

Cells are as in Jupyter: to the right unless they say otherwise, wide results scroll within their own cell."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

import phantombase

_STYLE = """
:root{color-scheme:light dark} body{margin:1em;font:14px/1.5 system-ui,sans-serif}
.out{overflow-x:auto} table{border-collapse:collapse;font-size:12px;margin-bottom:1em}
td,th{text-align:right;vertical-align:middle;padding:.5em}
tbody tr:nth-child(odd){background:light-dark(#f5f5f5,#1c1c1c)}
"""


def page(results: Iterable[object]) -> str:
    """The results, one below the other, each by its own table, or its text where it has none."""
    shown = (one._repr_html_() if hasattr(one, "_repr_html_") else html.escape(repr(one)) for one in results)
    cells = "".join(f'<div class="out">{one}</div>' for one in shown)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}<title>results</title></head><body>{cells}</body></html>"


def some_results(path: str) -> Iterable[object]:
    """What calls return that make, compact and check a new table."""
    rows = pa.table({"id": [str(n) for n in range(100)], "ts": range(100), "p": ["north", "south"] * 50})
    writes = phantombase.writer(rows).table("trips").key("id").partition("p").ordering("ts").buckets(1)
    yield writes
    yield writes.bulk_insert(path)
    yield writes.upsert(path)
    yield phantombase.schedule(path, sole_writer=True)
    yield phantombase.plan_compaction(path)
    yield phantombase.status(path)
    yield phantombase.check(path)
    yield phantombase.compact(path)
    yield writes.compact_inline(max_delta_commits=1).upsert(path)
    yield phantombase.audit(path)
    yield phantombase.validate(path)
    yield phantombase.replay(path)
    yield phantombase.savepoint(path, sole_writer=True)
    yield from (one(path, dry_run=True) for one in (phantombase.clean, phantombase.archive))
    yield phantombase.read(path)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(some_results(sys.argv[1])))
