"""`compactor-daemon cluster`: joins small base files into larger ones, or shows which would be joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.terminal.console import configure_logging, emit, reporting
from phantombase.timeline.terminal.text_table import Column, RowsTable, human_bytes, plural

from ...clustering.cluster import cluster_table, take_back_pending
from ...clustering.options import ClusterOptions
from ...options import ExecuteOptions
from ..option_flags import (
    CLOCK,
    EXECUTE,
    OUTPUT,
    Json,
    Lock,
    Only,
    SoleWriter,
    StorageOption,
    TablePath,
    flags_of,
    offers,
    open_to_change,
    typed_options,
)

_CLUSTER = ClusterOptions()
_OF_CLUSTERING = (*flags_of(ClusterOptions), *flags_of(OutputOptions), "threads", "conf", "props")


@offers
def cluster_command(
    ctx: typer.Context,
    table: TablePath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="change nothing; show what would be joined, and what cannot be")
    ] = False,
    take_back: Annotated[
        bool,
        typer.Option(
            "--cancel", help="only cancel clusterings that dead processes left pending, and remove unreadable plans"
        ),
    ] = False,
    options: ClusterOptions = _CLUSTER,
    execute: Annotated[ExecuteOptions, Only("threads")] = EXECUTE,
    output: OutputOptions = OUTPUT,
    lock: Lock = None,
    sole_writer: SoleWriter = False,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Cluster small base files: join those that writers appended one by one, so that readers open fewer files.

    For tables to which new rows are appended. Only base files without log files are joined, at least `--min-file-num`
    in a row, in the order in which they were written. It is a clustering of Hudi: other processes see its plan. While
    it is pending, updates of these files are refused; other writes go on. No row changes, and no read of the past.

    `--copy try` copies large row groups as bytes, which takes less CPU time. It keeps their size and their codec.

    Bucket-indexed tables are refused, and tables with a record index or secondary index: their rows must stay where
    they are. Flink's own state index does not notice that rows moved either: do not cluster what Flink upserts with it.

    All writers must share `--lock`, or `--sole-writer` is needed. If a run is killed, the next one finishes its work.

    Examples: `compactor-daemon cluster /data/events --dry-run`,
    `compactor-daemon cluster /data/events --min-file-num 10 --target-size 256m --lock LOCK`
    """
    configure_logging(json)
    if dry_run and take_back:
        raise UsageError("--dry-run and --cancel cannot be combined")
    if take_back and (idle := typed_options(ctx, _OF_CLUSTERING)):
        raise UsageError(
            "--cancel clusters nothing: options of clustering have no effect",
            found=", ".join(idle),
            todo="Leave them out, or run without --cancel: that finishes what is pending, and then clusters.",
        )
    opened, held = open_to_change(
        table,
        storage_option,
        lock,
        sole_writer,
        "cluster needs to know which other processes write to the table",
        "A write that knows nothing of the plan could lose its rows."
        + ("" if take_back else " --dry-run needs neither."),
        clock=clock,
        dry_run=dry_run,
    )
    if take_back:
        gone = take_back_pending(opened, held)
        emit({"table": table, "taken_back": gone}, json, _render_taken_back)
        return
    with reporting() as report:
        done = cluster_table(
            opened,
            options,
            held,
            output=output,
            threads=execute.threads,
            dry_run=dry_run,
            progress=lambda instant, made, files: report(f"clustering {instant}", made, files),
        )
    emit({"table": table, "dry_run": dry_run, **asdict(done)}, json, _render)


def _render_taken_back(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["taken_back"]:
        yield Text("nothing to cancel: no clustering of phantombase is pending")
    for instant in data["taken_back"]:
        yield Text(f"cancelled: {instant}")


_COPIED = Column(title="copied", cell=lambda r: f"{r['copied']:,}", right=True)


def _tried(row: Mapping[str, Any]) -> bool:
    return bool(row["copied"] or row["encoded"])


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    for instant in data["taken_back"]:
        taken = "would be cancelled" if data["dry_run"] else "cancelled"
        yield Text(f"{taken}: {instant}, of an earlier run, since its files had changed")
    earlier = "of an earlier run" if data["dry_run"] else "finished an earlier run"
    rows = [*({**one, "what": earlier} for one in data["finished"])]
    if data["done"] is not None:
        rows.append({**data["done"], "what": ""})
    if rows:
        yield RowsTable(
            title="would be clustered" if data["dry_run"] else "clustered",
            columns=(
                Column(title="instant", cell=lambda r: r["instant"] or "(none yet)"),
                Column(title="files", cell=lambda r: f"{r['files']:,}", right=True),
                Column(title="of", cell=lambda r: human_bytes(r["bytes"]), right=True),
                Column(title="become", cell=lambda r: f"{r['made']:,}", right=True),
                Column(title="of", cell=lambda r: human_bytes(r["bytes_made"]) if r["bytes_made"] else "", right=True),
                Column(title="rows", cell=lambda r: f"{r['rows']:,}" if r["bytes_made"] else "", right=True),
                *([_COPIED] if any(map(_tried, rows)) else []),
                Column(title="", cell=lambda r: r["what"]),
            ),
            rows=rows,
        )
    for why, count in sorted(sum((Counter(r["encoded"]) for r in rows), Counter[str]()).items()):
        yield Text(f"{plural(count, 'new file')} not copied as bytes: {why}")
    if repeated := sum(r["repeated_keys"] for r in rows):
        yield Text(
            f"{plural(repeated, 'row')} with the record key of another row of the same new file: on versions 8 and 9 "
            "a later upsert or delete of such a key changes only the first"
        )
    if data["why"]:
        small = f"; {plural(data['small'], 'small file')}" if data["small"] else ""
        yield Text(f"nothing to cluster: {data['why']}{small}")
    for why, count in sorted(data["kept"].items()):
        yield Text(f"{plural(count, 'file group')} cannot be clustered now: {why}")
    if data["left"]:
        yield Text(f"{plural(data['left'], 'new file')} more: left to the next run by --max-bytes")
