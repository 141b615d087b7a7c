"""`compactor-daemon status --root`: a lake at a glance, and the daemons that serve it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.terminal.plain import Row, human_duration, plural
from phantombase.timeline.terminal.text_table import Column, RowsTable

from ..lake.lake import Lake
from ..lake.members import fleet_of, members_in
from ..records.failures import RetryOptions
from ..status.lake_rows import lake_rows
from ..zookeeper.session import ZooKeeperOptions, zookeeper_session

_SHOWN = 40
"""Rows on a terminal; the worst come first, and JSON has all."""


def lake_report(
    lake: Lake,
    options: StorageOptions,
    *,
    clock: ClockOptions,
    retry: RetryOptions,
    zookeeper: ZooKeeperOptions | None,
) -> Row:
    """All tables of the lake, and the daemons of its fleet. Errors of the tree: the tables cannot be listed."""
    paths = {name: path for name, path in lake.listing.tables().items() if lake.lanes.takes(name)}
    rows = lake_rows(paths, lake.lanes, options, clock, retry)
    daemons: list[Row] | None = None
    problem = None
    if zookeeper is not None:
        try:
            with zookeeper_session(zookeeper) as session:
                daemons = [dict(one) for one in members_in(session, fleet_of(lake.listing.shown))]
        except PhantombaseError as error:
            problem = str(error)
    return {"listing": lake.listing.shown, "tables": rows, "daemons": daemons, "daemons_problem": problem}


def render_lake(data: Row) -> Iterator[RenderableType]:
    """For a terminal."""
    rows = data["tables"]
    pending = sum(row["pending"] or 0 for row in rows)
    late, bad = sum(row["late"] for row in rows), [row for row in rows if row["problem"]]
    counts = [plural(len(rows), "table"), f"{pending:,} pending", f"{late:,} late", f"{len(bad):,} in trouble"]
    columns = (*_COLUMNS, *((_LANE,) if any(row["lane"] != "*" for row in rows) else ()))
    yield RowsTable(title=", ".join(counts), columns=columns, rows=rows[:_SHOWN])
    if len(rows) > _SHOWN:
        yield Text(f"and {len(rows) - _SHOWN:,} more, none of them worse; --json has all", "dim")
    for row in bad[:_SHOWN]:
        yield Text.assemble((f"{row['name']}: ", "bold red"), row["problem"])
    if data["daemons_problem"]:
        yield Text.assemble(("daemons unknown: ", "bold red"), data["daemons_problem"])
    if data["daemons"] is not None:
        yield ""
        yield from _daemons(data["daemons"])


def _daemons(daemons: list[Row]) -> Iterator[RenderableType]:
    if not daemons:
        yield Text("No daemon serves these tables.")
        return
    yield RowsTable(title=plural(len(daemons), "daemon"), columns=_DAEMON_COLUMNS, rows=daemons)
    lanes = [{**lane, "who": one["who"]} for one in daemons for lane in one.get("lanes", ())]
    if len({lane["lane"] for lane in lanes}) > 1:
        yield ""
        yield RowsTable(title="lanes, over the last minutes", columns=_USE_COLUMNS, rows=lanes)


def _state(row: Mapping[str, Any]) -> Text:
    if row["problem"]:
        return Text("trouble", "bold red")
    if row["parked"]:
        return Text("parked", "bold red")
    if row["late"]:
        return Text("late", "red")
    if row["backing_off"]:
        return Text("backing off", "yellow")
    return Text("waiting", "cyan") if row["pending"] else Text("ok", "green")


_LANE = Column(title="lane", cell=lambda r: r["lane"])
_COLUMNS = (
    Column(title="table", cell=lambda r: r["name"], shorten=True),
    Column(title="state", cell=_state),
    Column(title="pending", cell=lambda r: None if r["pending"] is None else f"{r['pending']:,}", right=True),
    Column(title="oldest", cell=lambda r: None if r["oldest_s"] is None else human_duration(r["oldest_s"]), right=True),
)
_DAEMON_COLUMNS = (
    Column(title="daemon", cell=lambda r: r["who"]),
    Column(title="tables", cell=lambda r: f"{r.get('tables', 0):,} of {r.get('of_tables', 0):,}", right=True),
    Column(title="in trouble", cell=lambda r: f"{r.get('troubled', 0):,}", right=True),
)
_USE_COLUMNS = (
    Column(title="lane", cell=lambda r: r["lane"]),
    Column(title="daemon", cell=lambda r: r["who"], shorten=True),
    Column(title="running", cell=lambda r: f"{r['running']:,}", right=True),
    Column(title="of its slots", cell=lambda r: f"{r['occupancy']:.0%}", right=True),
    Column(title="waits because", cell=lambda r: r["why_not"] or None),
)
