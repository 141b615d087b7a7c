"""What docs/performance.md shows of a day of a table, and docs/lake.md of one of a lake: figures and a picture, made of
the recorded results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench.report import with_part

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "day.svg"
RECORD = ROOT / "bench" / "recorded" / "day.json"
LAKE, LAKE_PICTURE = ROOT / "docs" / "lake.md", ROOT / "docs" / "lake.svg"
LAKE_RECORD = ROOT / "bench" / "recorded" / "lake_day.json"
MARK, LAKE_MARK = "bench.day", "bench.lake_day"
Side: TypeAlias = tuple[str, str]
SIDES: dict[str, Side] = {
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
    batches = max(len(document["runs"][f"{name}_cpu"]) for name in shown)
    charts = {
        title: {SIDES[name]: document["runs"][f"{name}_{runs}"] for name in shown}
        for runs, title in (("cpu", "core-seconds since the morning"), ("reads", "a read, seconds"))
    }
    return _picture([SIDES[name] for name in shown], charts, f"batch {batches}")


def _picture(sides: Sequence[Side], charts: Mapping[str, Mapping[Side, Sequence[float]]], last: str) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH + 3 * _LEFT} {_HEIGHT + _TOP + 50}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, colour) in enumerate(sides):
        parts.append(f'<text x="{_LEFT + number * 215}" y="20" fill="{colour}">■ {title}</text>')
    for number, (title, series) in enumerate(charts.items()):
        parts += _chart(_LEFT + number * (_WIDTH + _LEFT), title, series, last)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(left: int, title: str, series: Mapping[Side, Sequence[float]], last: str) -> list[str]:
    most = max(max(values) for values in series.values())
    batches = max(len(values) for values in series.values())
    bottom = _TOP + _HEIGHT
    parts = [
        f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{title}</text>',
        f'<text x="{left + _WIDTH}" y="{bottom + 32}" text-anchor="end">{last}</text>',
    ]
    for part in range(5):
        y = bottom - _HEIGHT * part / 4
        parts.append(f'<path d="M{left} {y:g}H{left + _WIDTH}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{most * part / 4:.3g}</text>')
    for (_, colour), values in series.items():
        points = (
            f"{left + _WIDTH * number / batches:.1f},{bottom - _HEIGHT * value / most:.1f}"
            for number, value in enumerate(values, 1)
        )
        line = " ".join(points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts


def clock(seconds: float) -> str:
    """A time of the day."""
    return f"{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}"


def record_lake(document: dict[str, Any]) -> None:
    """Keeps a day of a lake, and makes its figures and picture."""
    LAKE_RECORD.write_text(json.dumps(document, indent=1) + "\n")
    LAKE.write_text(with_part(LAKE.read_text(), LAKE_MARK, lake_table(document)))
    LAKE_PICTURE.write_text(lake_picture(document))


_LAKE_FIGURES = (
    ("writes", "delta commits"),
    ("rows", "rows written"),
    ("verified", "tables that read as the model says, snapshot and read-optimized"),
    ("lag_p50", "lag of a write, part of its table's goal: p50"),
    ("lag_p95", "p95"),
    ("lag_max", "at most, but for the sick table"),
    ("lag_max_sick", "the sick table, at most"),
    ("late_writes", "writes of other tables that missed the goal"),
    ("wrong_lag_s", "the lag that `status --root` shows against the model's, at most, s"),
    ("taken_over_s", "from the loss of a daemon to the end of what it had begun, s"),
    ("sick_found_s", "from the damage of a file to the verdict, s"),
    ("real_s", "the run, s"),
    ("cpu_s", "processor time, s"),
    ("peak_mb", "memory, MB"),
)
_LAKE_LINES = {
    "lag": ("the latest table, by the model", "#0969da"),
    "said": ("as daemons say, with the sick one", "#54aeff"),
    "sick": ("the sick table", "#cf222e"),
}


def lake_table(document: dict[str, Any]) -> str:
    """The figures, what the history of the tables has, and what happened."""
    lines = ["| figure | |", "| --- | --- |"]
    lines += [f"| {title} | {document[name]:,g} |" for name, title in _LAKE_FIGURES]
    lines += ["", "| history | units | failed | core-seconds | MB read | MB written |", "|" + " --- |" * 6]
    lines += [f"| {kind} | {' | '.join(f'{n:,g}' for n in of.values())} |" for kind, of in document["history"].items()]
    lines += ["", *(f"- {clock(at)} {what}." for at, what in document["story"])]
    sick, by = document["sick"], ", ".join(f"{name} {n:,}" for name, n in document["compactions"].items())
    lines += ["", f"Compactions by daemon: {by}. Before the file was restored `check` had of the sick table:", ""]
    lines += [f"- {one}" for one in sick["findings"]]
    lines += ["", "The daemons' reasons why it was late:", "", *(f"- {one}" for one in sick["whys"])]
    lines += [f"- {table}, late: {'; '.join(whys)}" for table, whys in document["late_whys"].items()]
    what = f"`{document['command']}`: {document['tables']} tables, {document['hours']:g} hours"
    load = f"load {document['load_before']:.1f} before, {document['machine']['load']:.1f} after"
    return "\n".join([*lines, "", f"{what}; {load}.", "", "![A day of a lake](lake.svg)"])


def lake_picture(document: dict[str, Any]) -> str:
    """Two charts over the day: the greatest lag as a part of the goal, and compactions in progress."""
    samples = document["samples"]
    lags = {side: [min(one[name], 2.0) for one in samples] for name, side in _LAKE_LINES.items()}
    work = {_LAKE_LINES["lag"]: [one["running"] for one in samples]}
    charts = {"greatest lag, part of the goal (2: or more)": lags, "compactions in progress": work}
    return _picture([*_LAKE_LINES.values()], charts, clock(samples[-1]["at_h"] * 3600))
