"""`compactor-daemon history`: the work that was done on tables, what it took, and what it costs;
`replay`: what a daemon would have done under other settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import RenderableType

from phantombase.timeline.clocks import clock_ms, utc_text
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import duration_s
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.export import check_output, write_file
from phantombase.timeline.storage.open_storage import full_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.history import PriceOptions, history_rows, history_table, read_history, sums
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, StorageOption
from phantombase.timeline.terminal.console import reporting
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import (
    Column,
    RowsTable,
    duration,
    human_bytes,
    human_duration,
    labelled,
    numbers,
    plain,
    plural,
    readable,
    sizes,
)

from ..daemon.past_writes import ReplayOptions
from ..daemon.replay import replay_table
from ..services.options import read_policies
from ..unit_of_work import WorkKind
from .fleet_flags import CatalogFlags
from .option_flags import TablePath, given_names, name_idle, named_first, offers

_SHOWN = 20
_KINDS = get_args(WorkKind)


@offers
def history_command(
    ctx: typer.Context,
    *,
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="base paths of the tables")] = None,
    catalog: Annotated[CatalogFlags, Only("root", "catalog", "include", "exclude")],
    since: Annotated[str | None, typer.Option(metavar="AGE", help="only work that ended within this time")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="only work of this kind, such as compaction")] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write all rows to a file: .parquet, .arrow, .csv or .json (a row a line)"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace FILE if it exists")] = False,
    prices: PriceOptions,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Show the work that was done on tables: what it was, why it ran, what it took, who did it, and what it costs.

    Each compaction, clustering, clean and so on leaves a row in its table: bytes, rows, core-seconds, requests, memory
    and files, and what was expected of it by what the last work of its kind took. Work that had nothing to do leaves
    none. Rows are kept for 400 days, of one table the newest 20,000.

    `core s` is how long tasks held a core, and the processor time of the thread that led them. Prices are given as
    options, or in the table `[run]` of the configuration file.

    Examples: `compactor-daemon history lake/orders --since 7d --price-core-hour 0.04`,
    `compactor-daemon history --root s3://bucket/warehouse --output costs.parquet`"""
    options = parse_pairs(storage_option)
    since_ms = 0 if since is None else clock_ms() - duration_s(since, "--since") * 1000
    named, catalog = named_first(ctx, list(tables or ()), catalog)
    found = catalog.found(named, catalog.pools(None, ScheduleOptions()), options)
    paths = [full_path(one) for one in named] if found is None else list(found.taken().tables.values())
    if output is not None:
        check_output(None, output, overwrite)  # also where no table is found
    rows, unreadable = list[dict[str, Any]](), 0
    for path in paths:
        table = Table.open(path, options, reading=True)
        if output is not None:
            check_output(table, output, overwrite)
        history = read_history(table.storage)  # all of it: estimates are by what was before
        unreadable += history.unreadable
        rows += history_rows(history, prices)
    if kind not in (None, *_KINDS, *(row["kind"] for row in rows)):
        raise UsageError("no such kind of work", expected=", ".join(_KINDS), found=repr(kind))
    rows = [row for row in rows if row["ended_ms"] >= since_ms and kind in (None, row["kind"])]
    rows.sort(key=lambda row: (row["ended_ms"], row["id"]))
    if output is not None:
        found_rows = history_table(rows)
        write_file([found_rows], found_rows.schema, output)
    data = {
        "tables": paths,
        "rows": rows,
        "sums": sums(rows),
        "unreadable": unreadable,
        "output": output and str(output),
    }
    return CommandResult(data, _render)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    rows = data["rows"]
    if data["unreadable"]:
        yield f"{plural(data['unreadable'], 'unreadable file')} of the history left out"
    if data["output"]:
        yield f"{plural(len(rows), 'row')} written to {data['output']}"
        return
    if not rows:
        yield "no work is recorded"
        return
    several = len(data["tables"]) > 1
    more = f", the newest {_SHOWN} shown (--json has all)" if len(rows) > _SHOWN else ""
    costs = [_COST] if rows[0]["cost"] is not None else []
    columns: tuple[Column | str, ...] = (
        *([Column("table", lambda row: row["table"].rpartition("/")[2], shorten=True)] if several else []),
        Column("ended (UTC)", lambda row: utc_text(row["ended_ms"])),
        Column("work", _work),
        "instant",
        Column("took", duration("seconds"), right=True),
        _CORES,
        sizes("read", "bytes_read"),
        sizes("written", "bytes_written"),
        Column("files", _files, right=True),
        *costs,
        Column("why", lambda row: row["error"] or row["why"] or None, shorten=True),
    )
    yield RowsTable(f"{plural(len(rows), 'unit')} of work{more}", columns, rows[: -_SHOWN - 1 : -1])
    totals: tuple[Column, ...] = (Column("work", lambda row: row["kind"]), numbers("units"), numbers("failed"))
    took = (Column("took", duration("seconds"), right=True), _CORES)
    bytes_ = (sizes("read", "bytes_read"), sizes("written", "bytes_written"), sizes("removed", "bytes_removed"))
    yield ""
    yield RowsTable("in all", (*totals, *took, *bytes_, numbers("requests"), *costs), data["sums"])


_CORES = Column("core s", lambda row: f"{row['core_seconds']:,.1f}", right=True)
_COST = Column("cost", lambda row: f"{row['cost']:.4g}", right=True)


def _work(row: Mapping[str, Any]) -> str:
    return str(row["kind"]) if row["outcome"] == "done" else f"{row['kind']}, {row['outcome']}"


def _files(row: Mapping[str, Any]) -> str | None:
    before, after = row["files_before"], row["files_after"]
    return None if before is None else f"{before:,} to {after or 0:,}"


@offers
def replay_command(
    ctx: typer.Context,
    table: TablePath,
    *,
    best: Annotated[
        bool, typer.Option("--best", help="try other settings too; the cheapest that keep the --freshness")
    ] = False,
    options: ScheduleOptions,
    how: ReplayOptions,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Replay a table's history of commits under other settings: what compactions would cost, how old its rows would be.

    The commits are those of the timeline, active and archived. A simulated daemon plans by the options given here and
    those of the table, in the way of `run --schedule`, and compacts one plan at a time on --cores. The table's own
    compactions are shown beside it. No data file is read, and nothing is written.

    *Lag* is the age of the oldest row in no base file, which a read-optimized reader lacks; *depth* is the number of
    log files of a file group. With `--best` the exit code is 1 if no settings keep the goal.

    Examples: `compactor-daemon replay lake/orders --freshness 10m`,
    `compactor-daemon replay lake/orders --freshness 10m --best`,
    `compactor-daemon replay lake/orders --picking universal --max-delta-commits 3`"""
    opened = Table.open(table, parse_pairs(storage_option), reading=True)
    options = read_policies(opened.storage).over(options, given_names(ctx))
    name_idle(options)
    with reporting() as report:
        found = replay_table(opened, options, how, best=best, progress=partial(report, "replaying"))
    error = f"no settings keep the lag below {human_duration(found.goal_s or 0)}" if best and not found.best else ""
    return CommandResult({"table": table, **as_json(found)}, _render_replay, failed=bool(error), error=error)


def _render_replay(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    rates = data["rates"]
    yield (
        f"{plural(data['delta_commits'], 'delta commit')} in {plural(data['file_groups'], 'file group')}, "
        f"{readable(data['since'])} to {readable(data['until'])}"
    )
    yield (
        f"assumed: {rates['core_s_per_gb']:.3g} core-seconds for each GB read"
        f"{', as its own compactions took' if rates['measured'] else ''}; base files grow by {rates['growth']:.0%} of "
        "the log bytes"
    )
    if data["unknown_writes"]:
        yield labelled(
            "left out", "yellow", f"{plural(data['unknown_writes'], 'write')} without a record in the archive"
        )
    rows = [{"settings": "its own compactions", "keeps": None, **data["recorded"]}]
    rows += [{**one["outcome"], "settings": one["settings"], "keeps": one["keeps"]} for one in data["tried"]]
    yield ""
    goal = "" if data["goal_s"] is None else f"goal: lag below {human_duration(data['goal_s'])}"
    yield RowsTable(goal, _REPLAY_COLUMNS, rows)
    if data["best"] is not None:
        yield ""
        yield labelled("cheapest that keeps the goal", "green", data["best"]["settings"])


_REPLAY_COLUMNS = (
    Column("settings", plain("settings")),
    Column("goal", lambda r: None if r["keeps"] is None else "kept" if r["keeps"] else "missed"),
    Column("compactions", lambda r: f"{r['compactions'] + r['log_compactions']:,}", right=True),
    Column("moved", lambda r: human_bytes(r["bytes_read"] + r["bytes_written"]), right=True),
    Column("depth", lambda r: f"{r['log_depth_mean']:.1f}, {r['log_depth_max']}", right=True),
    Column("lag 95 %", duration("lag_p95_s"), right=True),
    Column("worst", duration("lag_max_s"), right=True),
    Column("core-hours", lambda r: f"{r['core_hours']:.2f}", right=True),
)
