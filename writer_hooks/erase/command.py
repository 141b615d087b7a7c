"""The commands `compactor-daemon erase` and `partition-ttl`. They write commits, so they lie with the writers, and
`cli.main` names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.compactor_daemon.cli.option_flags import TableChange, offers, typed_names
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, PartitionTtlOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.terminal.boundary import local_path
from phantombase.timeline.terminal.command import CommandResult, Tries
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import first_rows, numbers, plural

from ..options import WriteOptions
from .erase import EraseOptions, erase
from .partition_ttl import partition_ttl


@offers
def erase_command(
    ctx: typer.Context,
    at: Annotated[TableChange, Tries("change nothing; show how many keys there are, and the files that hold them")],
    *,
    keys: Annotated[
        Path,
        typer.Option(
            "--keys",
            metavar="FILE",
            parser=local_path,
            help="the keys: .csv, .parquet or .json (an object a line) with the key columns, and the partition columns "
            "to erase in some partitions only; any other file has a record key a line",
        ),
    ],
    options: EraseOptions,
    writes: Annotated[WriteOptions, Only("buckets", "bucket_fields")],
    execute: ExecuteOptions,
    output: OutputOptions,
    attempt: Annotated[AttemptOptions, Only("barrier_s")],
) -> CommandResult:
    """Erase keys: no file of the table holds them afterwards.

    Their rows are deleted by one commit. The file groups that held them are compacted, and their older file slices are
    removed, so that reads of the past that need these end with an error. Then every base and log file is read to prove
    it. A certificate in the table (`.hoodie/.phantombase/audit/erasures`) names the instants, the files that were read,
    and a salted hash of the list; it names no key.

    What a savepoint, a pin of a reader, a pending write or a pending service keeps is refused by name, with exit code
    1: run the same command again when that has ended. So it does when a run was killed. A query that is running may
    end with an error, unless it holds a pin, or `--floor` covers it.

    All writers must share `--lock`, or `--sole-writer` is needed. A table with a bucket index needs `--buckets`.

    Examples: `compactor-daemon erase lake/orders --keys keys.csv --dry-run`,
    `compactor-daemon erase lake/orders --keys keys.csv --lock LOCK`"""
    execute.refuse_idle(typed_names(ctx, execute.idle))
    table, _ = at.open(
        "erase", "A write that does not know of the erasure may bring the keys back. --dry-run needs neither."
    )
    done = erase(
        table,
        keys,
        lock=at.lock,
        sole_writer=at.sole_writer,
        options=options,
        writes=writes,
        execute=execute,
        output=output,
        attempt=attempt,
        dry_run=at.dry_run,
    )
    return CommandResult(at.row(done), _render, failed=bool(done.left) and not at.dry_run)


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    dry_run, left = data["dry_run"], data["left"]
    rows, groups = plural(data["rows"], "row"), plural(len(data["touched"]), "file group")
    if dry_run:
        yield f"{plural(data['keys'], 'key')}: {rows} would be deleted; {groups} would be compacted or cleaned"
    else:
        steps = Counter({name: len(data[f"{name}ed"]) for name in ("delet", "compact", "clean")})
        done = f"{plural(steps['compact'], 'compaction')}, {plural(steps['clean'], 'clean')}"
        yield f"{plural(data['keys'], 'key')}: {rows} deleted; {groups} of them, {done}"
    if left:
        title = "files that hold keys" if dry_run else "refused: these files still hold keys"
        yield first_rows(title, ("path", numbers("keys"), "why"), left)
    if not dry_run:
        yield f"{plural(len(data['checked']), 'file')} read: none of them holds a key"
        if data["metadata"]:
            yield f"metadata table: {data['metadata']}"
        yield f"certificate: {data['certificate']}"


@offers
def partition_ttl_command(
    at: Annotated[TableChange, Tries("change nothing; show the partitions that are past their time")],
    *,
    options: PartitionTtlOptions,
) -> CommandResult:
    """Delete partitions that are past their time, as Hudi's partition TTL does, in one commit.

    Nothing is deleted without `--days-retain`. `keep-by-time` counts from the last write of a partition, also one of
    log files, which Hudi does not count before a compaction. A partition that a pending compaction or clustering holds
    stays until that has ended; files are removed by the next clean.

    Examples: `compactor-daemon partition-ttl lake/orders --days-retain 90 --dry-run`,
    `compactor-daemon partition-ttl lake/orders --days-retain 90 --lock LOCK`"""
    table, _ = at.open("partition-ttl", "The rows of an unknown write that is under way may be lost.")
    done = partition_ttl(table, options, lock=at.lock, sole_writer=at.sole_writer, dry_run=at.dry_run)
    return CommandResult(at.row(done), _render_expired)


def _render_expired(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    found = data["partitions"]
    verb = "would be deleted" if data["dry_run"] else "deleted"
    if found:
        rows = [{"partition": partition, "since": time} for partition, time in found.items()]
        yield first_rows(f"{verb}: {plural(len(found), 'partition')}", ("partition", "since"), rows)
    else:
        yield "nothing to delete: no partition is past its time"
    if left := data["left"]:
        yield first_rows(f"left: {plural(len(left), 'partition')}", ("partition", "why"), left)
