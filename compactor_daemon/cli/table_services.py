"""The commands of table services: `clean`, `archive`, `cluster`, `orphans`, `sync`; what each did or would do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.pause import refuse_paused
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, StorageOption, Tries
from phantombase.timeline.terminal.console import reporting
from phantombase.timeline.terminal.option_group import Only, names_of
from phantombase.timeline.terminal.text_table import (
    Column,
    RowsTable,
    duration,
    first_rows,
    human_bytes,
    numbers,
    plain,
    plural,
    sizes,
)

from ..archiving.archive import archive_table
from ..archiving.choice import ArchiveOptions
from ..catalogs.options import SyncOptions
from ..catalogs.sync import sync_table
from ..cleaning.choice import CleanOptions
from ..cleaning.clean import clean_table
from ..cleaning.orphan_choice import OrphanOptions
from ..cleaning.orphans import remove_orphans
from ..clustering.cancel import cancel_pending_clusterings
from ..clustering.cluster import cluster_table
from ..clustering.options import ClusterOptions
from ..clustering.result import put_off
from ..execution.runners import CountingRunner, check_memory, open_runner, this_machine
from ..options import ExecuteOptions
from ..services.options import Service
from .option_flags import TableChange, TablePath, offers, typed_names, typed_options

_WRITTEN = tuple(name for name in names_of(OutputOptions) if name != "record_ttl")
_OF_CLUSTERING = (*names_of(ClusterOptions), *_WRITTEN, *names_of(ExecuteOptions), "conf", "props")


@offers
def cluster_command(
    ctx: typer.Context,
    at: Annotated[TableChange, Tries("change nothing; show what would be joined, and what cannot be")],
    *,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="only cancel clusterings that dead processes left pending, and remove unreadable plans"
        ),
    ] = False,
    options: ClusterOptions,
    execute: ExecuteOptions,
    output: Annotated[OutputOptions, Only(*_WRITTEN)],
) -> CommandResult:
    """Cluster a table: join small files, so that readers open fewer, or sort large ones, so that filters skip more.

    By default at least `--min-file-num` small files in a row, in the order in which they were written, become one. With
    `--grouping size` and `--sort-by` the rows of whole partitions are sorted, but those that are sorted already. Log
    files are merged on the way. Writes go on while the files are made; groups that were written to are left to the
    next run. Then it is a pending clustering of Hudi, until its files have their names: updates of these files wait. No
    row changes, and no read of the past.

    `--rewrite` is for files that are neither small nor to be sorted, but not as they should be: with another codec,
    columns that the table does not have any more, and so on. What was rewritten has no reason any more, so a run may be
    repeated until nothing is left.

    `--copy try` copies large row groups as bytes, which takes less CPU time. It keeps their size and their codec.

    Bucket-indexed tables are refused, and tables with an expression index that is not maintained: their rows must stay
    where they are. A record index over all partitions is maintained. Flink's own state index does not notice that rows
    moved: do not cluster what Flink upserts with it.

    All writers must share `--lock`, or `--sole-writer` is needed. If a run is killed, the next one finishes its work.

    Examples: `compactor-daemon cluster /data/events --dry-run`,
    `compactor-daemon cluster /data/events --min-file-num 10 --target-size 256m --lock LOCK`,
    `compactor-daemon cluster /data/events --grouping size --sort-by fare --lock LOCK`,
    `compactor-daemon cluster /data/events --rewrite codec,dropped-columns --codec zstd --dry-run`"""
    if at.dry_run and cancel:
        raise UsageError("--dry-run and --cancel cannot be combined", todo="Leave one of them out.")
    if cancel and (idle := typed_options(ctx, _OF_CLUSTERING)):
        raise UsageError(
            "--cancel clusters nothing: options of clustering have no effect",
            found=", ".join(idle),
            todo="Leave them out, or run without --cancel: that finishes what is pending, and then clusters.",
        )
    execute.refuse_idle(typed_names(ctx, execute.idle))
    table, lock = at.open(
        "cluster",
        "A write that knows nothing of the plan could lose its rows." + ("" if cancel else " --dry-run needs neither."),
        execute,
        service=None if cancel else Service.CLUSTER,
    )
    if cancel:
        gone = cancel_pending_clusterings(table, lock)
        return CommandResult({"table": at.table, "cancelled": gone}, _render_cancelled)
    if not at.dry_run:
        check_memory(output.memory_limit, execute, this_machine())
    with reporting() as report, ExitStack() as stack:
        runner = None if at.dry_run else CountingRunner(stack.enter_context(open_runner(execute)))

        def progress(instant: str, done: int, total: int) -> None:
            assert runner is not None, "a dry run makes nothing"
            what = f"clustering {instant}" if instant else "staging groups to cluster"
            report(what, done, total, **runner.counts)

        done = cluster_table(table, options, lock, output=output, runner=runner, dry_run=at.dry_run, progress=progress)
    return CommandResult(at.served(table, Service.CLUSTER, done), _render_clustered)


def _render_cancelled(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["cancelled"]:
        yield "nothing to cancel: no clustering of phantombase is pending"
    for instant in data["cancelled"]:
        yield f"cancelled: {instant}"


_COPIED = numbers("copied")


def _tried(row: Mapping[str, Any]) -> bool:
    return bool(row["copied"] or row["encoded"])


def _render_clustered(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    for instant in data["cancelled"]:
        taken = "would be cancelled" if data["dry_run"] else "cancelled"
        yield f"{taken}: {instant}, of an earlier run, since its files had changed"
    earlier = "planned before" if data["dry_run"] else "finished what was planned before"
    rows = [*({**one, "what": earlier} for one in data["finished"])]
    if data["done"] is not None:
        rows.append({**data["done"], "what": ""})
    if rows:
        yield RowsTable(
            "would be clustered" if data["dry_run"] else "clustered",
            (
                Column("instant", lambda r: r["instant"] or "(none yet)"),
                numbers("files"),
                sizes("of", "bytes"),
                numbers("become", "made"),
                Column("of", lambda r: human_bytes(r["bytes_made"]) if r["bytes_made"] else "", right=True),
                Column("rows", lambda r: f"{r['rows']:,}" if r["bytes_made"] else "", right=True),
                *([_COPIED] if any(map(_tried, rows)) else []),
                Column("", lambda r: r["what"]),
            ),
            rows,
        )
    if data["reasons"]:
        reasons = [{"reason": reason, **of} for reason, of in data["reasons"].items()]
        yield RowsTable("files with a reason to be rewritten", ("reason", numbers("files"), sizes("bytes")), reasons)
    for instant, why in sorted(data["left_to_hudi"].items()):
        yield f"left to Hudi: its plan {instant}: {why}"
    for why, number in sorted(sum((Counter(r["encoded"]) for r in rows), Counter[str]()).items()):
        yield f"{plural(number, 'new file')} not copied as bytes: {why}"
    if repeated := sum(r["repeated_keys"] for r in rows):
        yield (
            f"{plural(repeated, 'row')} with the record key of another row of the same new file: on versions 8 and 9 "
            "a later upsert or delete of such a key changes only the first"
        )
    if data["why"]:
        small = f"; {plural(data['small'], 'small file')}" if data["small"] and "small" in data["why"] else ""
        yield f"nothing to cluster: {data['why']}{small}"
    if data["left_out"]:
        yield put_off(data["left_out"], data["done"])
    for why, number in sorted(data["kept"].items()):
        yield f"{plural(number, 'file group')} cannot be clustered now: {why}"
    if data["left"]:
        yield f"{plural(data['left'], 'new file')} more: left to the next run by --max-bytes"


@offers
def clean_command(
    at: Annotated[TableChange, Tries("change nothing; show what would go, and what keeps the rest")],
    options: CleanOptions,
) -> CommandResult:
    """Remove old file slices and replaced file groups, which only reads of the past still need.

    The newest state always stays, and so does what a pending compaction, a savepoint, a pin of a reader, or a query
    that began less than `--floor` seconds ago needs. A read of the past, or an incremental read, whose state was
    removed ends with an error that names the earliest one that works. All file groups are looked at each time.

    It must not race with a process that makes savepoints or restores the table, so one of these is needed: `--lock`, if
    all writers share that lock, or `--sole-writer`. If a run is killed, the next one, or Hudi, finishes its work.

    Examples: `compactor-daemon clean lake/orders --dry-run`,
    `compactor-daemon clean lake/orders --policy hours --retain 48 --lock LOCK`"""
    table, lock = at.open(
        "clean",
        "A savepoint that is made meanwhile without the same lock may lose files. --dry-run needs neither.",
        service=Service.CLEAN,
    )
    done = clean_table(table, options, lock, dry_run=at.dry_run)
    return CommandResult(at.served(table, Service.CLEAN, done), _render_cleaned)


def _render_cleaned(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    for one in data["finished"]:
        did = "would finish" if data["dry_run"] else "finished"
        yield f"{did} clean {one['instant']} of an earlier run: {plural(one['files'], 'file')}"
    if not data["gone"]:
        yield f"nothing to clean: {data['why']}"
    else:
        rows = _by_partition(data["gone"])
        old, replaced = numbers("old slices", "old"), numbers("of replaced groups", "replaced")
        columns = ("partition", old, replaced, numbers("files"), sizes("bytes"))
        yield first_rows("would be removed" if data["dry_run"] else "removed", columns, rows)
        since = f"states from {data['retained']} on stay: {data['why']}" if data["retained"] else data["why"]
        yield f"{plural(data['files'], 'file')}, {human_bytes(data['bytes'])}; {since}"
    for why, number in sorted(data["kept"].items()):
        yield f"{plural(number, 'old slice')} stay: {why}"
    if data["left"]:
        yield f"{plural(data['left'], 'file')} more: left to the next clean by --max-files or --max-partitions"


def _by_partition(gone: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"old": 0, "replaced": 0, "files": 0, "bytes": 0})
    for one in gone:
        row = found[one["partition"]]
        row[one["why"]] += 1
        row["files"] += len(one["files"])
        row["bytes"] += one["bytes"]
    return [{"partition": partition or "(none)", **row} for partition, row in sorted(found.items())]


@offers
def archive_command(
    at: Annotated[TableChange, Tries("change nothing; show which instants would go, and why the others stay")],
    options: ArchiveOptions,
) -> CommandResult:
    """Move the oldest completed instants from the active timeline into the archive, as Hudi does after commits.

    Every read and write lists the active timeline, so it must not grow without end. Archived instants count as before:
    no row changes, and no data file is touched.

    An instant stays while something needs it: a pending instant, a savepoint, replaced files that no clean has removed,
    a trigger of compactions, the metadata table (before its first compaction nothing is archived), a compaction that
    phantombase has not cleaned up behind. The output says what stopped it.

    It must not race with another process that archives, so one of these is needed: `--lock`, if all writers share that
    lock, or `--sole-writer`, if no other process writes. If a run is killed, the next one finishes its work.

    Examples: `compactor-daemon archive lake/orders --dry-run`,
    `compactor-daemon archive lake/orders --min-instants 50 --max-instants 60 --sole-writer`"""
    table, lock = at.open(
        "archive",
        "Two processes that archive at once could lose instants of the archive. --dry-run needs neither.",
        service=Service.ARCHIVE,
    )
    done = archive_table(table, options, lock, dry_run=at.dry_run)
    files, size = (sum(getattr(one, name) for one in done.archived) for name in ("files", "bytes"))
    data = {"instants": len(done.archived), "files": files, "bytes": size, **asdict(done)}
    return CommandResult(at.served(table, Service.ARCHIVE, data), _render_archived)


def _render_archived(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if data["finished"]:
        instants = plural(len(data["finished"]), "archived instant")
        did = "an earlier run would be finished" if data["dry_run"] else "finished an earlier run"
        yield f"{did}: {instants} removed"
    if not data["archived"]:
        yield f"nothing to archive: {data['why']}"
    else:
        title = f"{'would be archived' if data['dry_run'] else 'archived'}: {plural(data['instants'], 'instant')}"
        yield first_rows(title, ("instant", "action", numbers("files"), sizes("bytes")), data["archived"])
    others = [one for one in data["kept"] if one["why"] != data["why"]]
    if data["dry_run"] and data["kept"] and (data["archived"] or others):
        title = f"would stay: {plural(len(data['kept']), 'instant')}"
        yield first_rows(title, ("instant", "action", "why"), data["kept"])
    if data["archived"]:
        yield (
            f"{plural(data['instants'], 'instant')}, {plural(data['files'], 'file')} of the active timeline, "
            f"{human_bytes(data['bytes'])}"
        )


@offers
def orphans_command(
    at: Annotated[TableChange, Tries("change nothing, also with --remove")],
    options: OrphanOptions,
    remove: Annotated[bool, typer.Option("--remove", help="remove the files that are shown otherwise")] = False,
) -> CommandResult:
    """Show the files that no record of a table names, and remove them with --remove.

    Such files are left by writers that were killed, and by tasks that outlived the rollback of their write. No reader
    sees them, but archiving stops before their instant. A file stays while an instant on the timeline or in the
    archive, a plan, a savepoint, a pin, a heartbeat, a marker, the metadata table or a record of an attempt names it,
    and while it is younger than `--older-than`. Files with names of neither Hudi nor phantombase are only counted.

    Without `--remove` nothing changes, and no lock is taken: what is removed cannot be brought back, and only this
    service removes what no plan names. With `--remove` one of these is needed: `--lock`, if all writers share that
    lock, or `--sole-writer`. If a run is killed, the next one removes the rest.

    Examples: `compactor-daemon orphans lake/orders`,
    `compactor-daemon orphans lake/orders --older-than 7d --remove --lock LOCK`"""
    at = replace(at, dry_run=at.dry_run or not remove)
    table, lock = at.open(
        "orphans --remove",
        "A process that undoes or completes a write meanwhile must share the lock. Without --remove neither is needed.",
        service=Service.ORPHANS,
    )
    done = remove_orphans(table, options, lock, dry_run=at.dry_run)
    return CommandResult(at.served(table, Service.ORPHANS, done), _render_orphans)


def _render_orphans(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    rows = data["orphans"]
    if not rows:
        yield "no orphan files"
    else:
        age = Column("age", duration("age_s"), right=True)
        columns = ("path", Column("", plain("kind")), "why", sizes("bytes"), age)
        yield first_rows("orphan files" if data["dry_run"] else "removed", columns, rows)
        todo = "; --remove removes them" if data["dry_run"] else ""
        yield f"{plural(data['files'], 'file')}, {human_bytes(data['bytes'])}{todo}"
    if data["uploads"]:
        did = "would be aborted" if data["dry_run"] else "aborted"
        yield f"{plural(data['uploads'], 'unfinished upload')} {did}"
    for why, count in sorted(data["reasons"].items()):
        yield f"{plural(count, 'item')} kept: {why}"
    if foreign := data["foreign"]:
        kept = f"{plural(len(foreign), 'file')} with names of neither Hudi nor phantombase kept"
        yield f"{kept}, as {foreign[0]}"


@offers
def sync_command(
    *,
    table: TablePath,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only ask the catalog; show what would change")] = False,
    options: SyncOptions,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Make a Hive Metastore or AWS Glue show the table as it is now: its names there, columns and partitions.

    Engines that find tables in a catalog then find this one: Spark SQL, Hive, Trino, Athena. What is made is what
    Hudi's own sync makes, so both may sync one table. Only what has changed since the last sync is sent: the tables of
    the catalog say up to which write they were synced.

    To an Iceberg catalog the read-optimized view is published, as fresh as the last compaction: the same data files,
    and one snapshot for all that has changed. Options that are about Hive are refused there.

    No lock is needed: the table itself is only read, and syncs may run concurrently. As a service, `run --services
    sync`, or after each commit of a writer, it runs by itself.

    Examples: `compactor-daemon sync lake/orders --to hive:metastore:9083 --database sales`,
    `compactor-daemon sync lake/orders --to glue:eu-west-1 --dry-run`"""
    opened = Table.open(table, parse_pairs(storage_option), reading=True)
    if not dry_run:
        refuse_paused(opened.storage, Service.SYNC.value)
    done = sync_table(opened, options, dry_run=dry_run)
    at = TableChange(table=table, dry_run=dry_run)
    return CommandResult(at.served(opened, Service.SYNC, done), _render_synced)


def _render_synced(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    where = f"{data['catalog']} {data['database']}"
    if data["why"]:
        yield f"nothing to sync: {data['why']}"
        return
    changed = [one for one in data["tables"] if _is_changed(one)]
    if not changed:
        yield f"up to date: {where}: {', '.join(one['name'] for one in data['tables'])}"
        return
    columns = (
        Column("name", plain("name")),
        Column("", lambda r: "new" if r["created"] else "altered" if r["altered"] else ""),
        Column("columns", lambda r: ", ".join(r["columns"]), shorten=True),
        *(numbers(f"{changed[0]['of']}s {did}", did) for did in ("added", "moved", "dropped")),
    )
    yield RowsTable(f"{'would be synced' if data['dry_run'] else 'synced'} in {where}", columns, changed)


def _is_changed(one: Mapping[str, Any]) -> bool:
    return any(one[what] for what in ("created", "altered", "added", "moved", "dropped"))
