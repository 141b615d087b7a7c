"""What docs/performance.md shows of a day: a table and a picture, made of the recorded result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.report import with_part

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "day.svg"
RECORD = ROOT / "bench" / "recorded" / "day.json"
MARK = "bench.day"
SIDES = {
    "ours_inline": ("phantombase, inline", "#0969da"),
    "ours_async": ("phantombase, a daemon beside", "#54aeff"),
    "hudi_inline": ("Hudi 1.2.0, inline", "#cf222e"),
    "hudi_async": ("Hudi 1.2.0, asynchronous", "#ff8182"),
}
"""The names of the sides, and their colours."""
_COLUMNS = (
    ("core_s", "core-seconds"),
    ("start_core_s", "before: start and warm-up"),
    ("day_s", "the day, s"),
    ("written_mb", "bytes written, MB"),
    ("write_p50_s", "a batch, p50, s"),
    ("write_p95_s", "p95"),
    ("read_p50_s", "a read, p50, s"),
    ("read_p95_s", "p95"),
    ("lag_p50_s", "lag of read-optimized queries, p50, s"),
    ("lag_p95_s", "p95"),
    ("lag_max_batches", "at most, batches"),
)
_COMPARED = ("core_s", "written_mb")
"""What does not depend on other work on the machine."""
_WIDTH, _HEIGHT, _LEFT, _TOP = 380, 220, 50, 60


def record(document: dict[str, Any]) -> None:
    """Keeps a result, and makes the table and the picture of it."""
    RECORD.write_text(json.dumps(document, indent=1) + "\n")
    PAGE.write_text(with_part(PAGE.read_text(), MARK, table(document)))
    PICTURE.write_text(picture(document))


def table(document: dict[str, Any]) -> str:
    """One row for each side, and for each kind of compaction how many times ours Hudi takes."""
    names = [name for name in SIDES if f"{name}_core_s" in document]
    lines = ["| | " + " | ".join(title for _, title in _COLUMNS) + " |", "| --- |" + " --- |" * len(_COLUMNS)]
    for name in names:
        values = [f"{document[f'{name}_{figure}']:g}" for figure, _ in _COLUMNS]
        lines.append(f"| {SIDES[name][0]} | " + " | ".join(values) + " |")
    for kind in ("inline", "async"):
        if f"ratio_core_s_{kind}" in document:
            values = [f"{document[f'ratio_{f}_{kind}']:g}x" if f in _COMPARED else "" for f, _ in _COLUMNS]
            lines.append(f"| Hudi against phantombase, {kind} | " + " | ".join(values) + " |")
    load = f"{document['load_before']:.1f} before, {document['machine']['load']:.1f} after"
    what = f"{document['rows']:,} rows, {document['batches']} batches of {document['batch_rows']:,}"
    return "\n".join([*lines, "", f"`{document['command']}`: {what}; load {load}.", "", "![A day](day.svg)"])


def picture(document: dict[str, Any]) -> str:
    """Two charts over the batches: core-seconds so far, and seconds of each read."""
    shown = [name for name in SIDES if f"{name}_core_s" in document]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH + 3 * _LEFT} {_HEIGHT + _TOP + 50}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, name in enumerate(shown):
        title, colour = SIDES[name]
        parts.append(f'<text x="{_LEFT + number * 215}" y="20" fill="{colour}">■ {title}</text>')
    for number, (runs, title) in enumerate((("cpu", "core-seconds since the morning"), ("reads", "a read, seconds"))):
        series = {name: document["runs"][f"{name}_{runs}"] for name in shown}
        parts += _chart(_LEFT + number * (_WIDTH + _LEFT), title, series)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(left: int, title: str, series: dict[str, list[float]]) -> list[str]:
    most = max(max(values) for values in series.values())
    batches = max(len(values) for values in series.values())
    bottom = _TOP + _HEIGHT
    parts = [
        f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{title}</text>',
        f'<text x="{left + _WIDTH}" y="{bottom + 32}" text-anchor="end">batch {batches}</text>',
    ]
    for part in range(5):
        y = bottom - _HEIGHT * part / 4
        parts.append(f'<path d="M{left} {y:g}H{left + _WIDTH}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{most * part / 4:.3g}</text>')
    for name, values in series.items():
        points = (
            f"{left + _WIDTH * number / batches:.1f},{bottom - _HEIGHT * value / most:.1f}"
            for number, value in enumerate(values, 1)
        )
        line = " ".join(points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{SIDES[name][1]}" stroke-width="2"/>')
    return parts
