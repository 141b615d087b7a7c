"""The commands `compact`, which executes pending compactions (and requests one with `--schedule`), and `demo`.

The demo's table is a small MERGE_ON_READ table that real Hudi wrote. Origin: `demo_table.zip` is the golden table
v9_two_pending, written by Apache Hudi 1.2.0 on Spark 3.5 (table version 9; record key `id`, partition `p`, ordering
field `ts`): 120 rows, two pending compactions on different file groups, writes between and after."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import ZipFile

import typer
from rich.console import RenderableType
from rich.text import Text

from phantombase.timeline.codec.avro_schema import COMMIT_SEQNO, FILE_NAME, RECORD_KEY
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.errors import UsageError, reason_of
from phantombase.timeline.locks.table_lock import check_writers_known
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.boundary import EXIT_FAILED, local_path
from phantombase.timeline.terminal.command import JSON, CommandResult, Tries
from phantombase.timeline.terminal.console import configure_logging, emit, steps_of
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.text_table import Column, RowsTable, duration, numbers, plural, sizes

from ..execution.run_compactions import run_compactions
from ..execution.spark_session import check_spark
from ..options import AttemptOptions, ExecuteOptions
from .option_flags import ATTEMPT, OUTPUT, TableChange, check_reachable, offers, typed_names

if TYPE_CHECKING:
    import pyarrow as pa


@offers
def compact(
    ctx: typer.Context,
    at: Annotated[TableChange, Tries("change nothing; show what would be executed, and what would be refused")],
    *,
    schedule: Annotated[
        bool,
        typer.Option(
            "--schedule",
            help="first request a compaction of every file group that has log files; needs --lock or --sole-writer",
        ),
    ] = False,
    instant: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="only this pending compaction [default: all, earliest first]")
    ] = None,
    drop_metadata_table_: Annotated[
        bool,
        typer.Option(
            "--drop-metadata-table",
            help="first turn off Hudi's metadata table, if it is on; the next Hudi writer with "
            "hoodie.metadata.enable=true builds it again. Without this option the metadata table is kept up to date",
        ),
    ] = False,
    execute: ExecuteOptions,
    output: OutputOptions,
    attempt: Annotated[AttemptOptions, Only("foreign_grace_s", "barrier_s", "claim_wait_s", "properties")],
) -> CommandResult:
    """Execute the pending compactions of a table.

    Each file slice is one task of the executor: it merges base file and log files into a new base file under Hudi's
    rules.
    When the ledger of every file group balances, one decision makes all files of the compaction visible. If a run is
    killed, the next one finishes its work.

    With `--schedule` one command compacts the table: a plan is requested as by `schedule`, then all pending plans are
    executed. If the run is killed in between, the plan stays pending for the next run. File groups that cannot be
    merged are left out; the exit code is 1 then.

    Examples: `compactor-daemon compact lake/orders`, `compactor-daemon compact lake/orders --schedule --sole-writer`"""
    if at.dry_run and drop_metadata_table_:
        raise UsageError("a dry run changes nothing", found="--drop-metadata-table", todo="Leave one of them out.")
    execute.refuse_idle(typed_names(ctx, execute.idle))
    if at.lock is not None and at.sole_writer:
        check_writers_known(at.lock, at.sole_writer, "compact", "Give --lock if other processes write.")
    if schedule and instant is not None:
        raise UsageError("--schedule requests a new instant", found=f"--instant {instant}", todo="Give one of them.")
    facts, left, error = None, list[dict[str, Any]](), ""
    if schedule:
        # late: what plans takes pyarrow, and `compact` mostly finds nothing to do
        from phantombase.timeline.metadata_table.create import drop_metadata_table
        from phantombase.timeline.planning.schedule import schedule_compaction

        from ..attempt.inputs import check_record_ttl
        from .schedule import left_out_line, scheduled_facts, unmergeable

        table, lock = at.open(
            "--schedule",
            "A plan made while an unknown write is running would lose that write's rows. --dry-run needs neither.",
            execute,
        )
        if execute.asks_for_spark and not at.dry_run:
            check_spark(execute)
        table = drop_metadata_table(table, lock) if drop_metadata_table_ else table
        requested = schedule_compaction(table, lock, check=partial(check_record_ttl, output), dry_run=at.dry_run)
        facts, left = scheduled_facts(requested), unmergeable(requested)
        error = left_out_line(left) if left else ""  # last: the table of what was compacted may be long
    data: dict[str, Any] = {"table": at.table, "scheduled": facts, "dry_run": at.dry_run}
    if at.dry_run:
        data |= {"compacted": [], "pending": _pending(at.opened(), instant, output)}
        return CommandResult(data, _render_dry_run, failed=bool(left))
    check_reachable(at.lock)
    with steps_of("compacting") as progress:
        results = run_compactions(
            at.table,
            instant=instant,
            lock=at.lock,
            sole_writer=at.sole_writer,
            drop_metadata=drop_metadata_table_,
            output=output,
            execute=execute,
            attempt=attempt,
            clock=at.clock,
            storage_options=parse_pairs(at.storage_option),
            progress=progress,
        )
    data |= {"compacted": as_json(results.done), "executors": as_json(results.executors)}
    return CommandResult(data, render_compacted, failed=bool(left), error=error)


def _pending(table: Table, instant: str | None, output: OutputOptions) -> list[dict[str, Any]]:
    """The pending instants that a run would take up, each with the error that would refuse it."""
    from ..attempt.compact_or_resume import pending_instants, preflight  # late: they take pyarrow

    seen = table.snapshot()
    instants = pending_instants(seen, instant)
    refused = preflight(seen, instants, output)
    return [
        {
            "instant": one,
            "file_groups": len(table.compaction_plan(one).operations),
            "refused": str(refused[one]) if one in refused else None,
        }
        for one in instants
    ]


def render_compacted(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield from _render_scheduled(data)
    if not data["compacted"]:
        yield _nothing(data)
        return
    written, time = sizes("written", "bytes_written"), Column("time", duration("seconds"), right=True)
    resumed = Column("", lambda r: "finished an earlier run" if r["resumed"] else "")
    columns = ("instant", numbers("file groups"), numbers("rows"), written, time, resumed)
    yield RowsTable("compacted", columns, data["compacted"])
    for one in data.get("executors", ()):
        if one["why"].startswith("--executor "):  # nothing new
            continue
        here = f"in this process, {one['threads']} at a time"
        yield Text(f"{'on Spark' if one['executor'] == 'spark' else here}: {one['why']}", "dim")


def _nothing(data: Mapping[str, Any]) -> str:
    scheduled = data.get("scheduled")
    if scheduled is None:
        return "nothing to do: no compaction is pending. To request one too: --schedule, with --lock or --sole-writer"
    return f"nothing to do: no compaction is pending, and none was requested: {scheduled['why']}"


def _render_scheduled(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if data.get("scheduled"):
        from .schedule import render_plans

        yield from render_plans(data["scheduled"], dry_run=data.get("dry_run", False))


def _render_dry_run(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield from _render_scheduled(data)
    if not data["pending"]:
        if not (data["scheduled"] and data["scheduled"]["plans"]):
            yield _nothing(data)
        return
    columns = ("instant", numbers("file groups"), "refused")
    yield RowsTable("would be executed", columns, data["pending"])


_TABLE = "two_pending"


@offers
def demo(
    execute: Annotated[ExecuteOptions, Only("executor")],
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=local_path,
            help="make the table here, in a new folder, and keep it [default: a temporary folder]",
        ),
    ] = None,
    json: JSON = False,
) -> None:
    """Compact a small table that real Apache Hudi 1.2.0 wrote.

    Shows the pending compactions, executes them, and checks that every row reads the same as before."""
    configure_logging(json)
    with tempfile.TemporaryDirectory(prefix="phantombase-demo-") as temporary, _whole(keep):
        path = str(unpack_demo_table(Path(temporary) / "table" if keep is None else keep))
        table = Table.open(path)
        pending = [one.requested_time for one in table.load_timeline().pending_merges]
        before, before_base = _both_reads(path)
        if not json:
            start = {"pending": pending, "rows": before.num_rows, "current": current_rows(before_base, before)}
            emit(start, json, _render_start)
        with steps_of("compacting") as progress:
            results = run_compactions(path, output=OUTPUT, execute=execute, attempt=ATTEMPT, progress=progress)
        after, after_base = _both_reads(path)
        data = {
            "table": path if keep else None,
            "pending": pending,
            "compacted": as_json(results.done),
            "snapshot_rows": after.num_rows,
            "snapshot_unchanged": same_rows(before, after),
            "rows_current_in_base_files_before": current_rows(before_base, before),
            "rows_current_in_base_files_after": current_rows(after_base, after),
        }
        emit(data, json, _render_demo)
        if not data["snapshot_unchanged"]:
            raise typer.Exit(EXIT_FAILED)


@contextmanager
def _whole(folder: Path | None) -> Iterator[None]:
    """What this makes is removed if the demo ends early, as on a full disk: so the next one may name the folder."""
    new = [one for one in (folder, *folder.parents) if not os.path.exists(one)] if folder is not None else []
    was_empty = folder is not None and _is_empty(folder)
    try:
        yield
    except BaseException:
        for one in [new[0]] if new else list(folder.iterdir()) if folder is not None and was_empty else []:
            shutil.rmtree(one, ignore_errors=True)
        with suppress(OSError):  # another process has begun to use it
            for one in new[1:]:
                one.rmdir()
        raise


def _is_empty(folder: Path) -> bool:
    try:
        return not os.listdir(folder)
    except OSError:
        return False


def _both_reads(path: str) -> tuple[pa.Table, pa.Table]:
    from phantombase.timeline.read.table_read import Query, ReadOptions, read_table  # late: it takes pyarrow

    table = Table.open(path)
    return read_table(table), read_table(table, ReadOptions(query=Query.READ_OPTIMIZED))


def _render_start(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield "a table written by Apache Hudi 1.2.0 (MERGE_ON_READ, table version 9)"
    for instant in data["pending"]:
        yield f"pending compaction {instant}"
    yield _current(data["current"], data["rows"])


def _render_demo(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield from render_compacted(data)
    same = "the same before and after" if data["snapshot_unchanged"] else "CHANGED: this is a bug, please report it"
    yield f"snapshot: {plural(data['snapshot_rows'], 'row')}, {same}"
    yield (
        _current(data["rows_current_in_base_files_after"], data["snapshot_rows"])
        + "; the rest was written after the compactions were requested and waits in newer logs"
    )
    if data["table"] is None:
        yield "next: `compactor-daemon demo --keep lake/orders` keeps this table there: the one of all guides"
    else:
        kept = shlex.quote(data["table"])
        yield "next, or the guides, which call this table lake/orders:"
        for command in ("timeline show", "compactor-daemon status"):  # to be copied, so on one line each
            yield Text(f"  {command} {kept}", no_wrap=True, overflow="ignore")


def _current(current: int, rows: int) -> str:
    return f"base files alone hold the newest version of {current:,} of {plural(rows, 'row')}"


def unpack_demo_table(into: Path) -> Path:
    """Makes the demo table in a new or empty folder; its base path. UsageError: it has files, or cannot be made."""
    data = files(__package__).joinpath("demo_table.zip").read_bytes()
    try:
        into.mkdir(parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise UsageError("the folder is not empty", path=str(into), todo="Name one that does not exist yet.")
        with ZipFile(BytesIO(data), metadata_encoding="utf-8") as archive:
            for member in archive.infolist():
                if member.filename.startswith(f"{_TABLE}/") and (below := member.filename.removeprefix(f"{_TABLE}/")):
                    member.filename = below
                    archive.extract(member, into)
    except OSError as error:
        todo = "Name a folder that this user may write, and that has room."
        raise UsageError(
            "the demo's table cannot be made", path=str(into), found=reason_of(error), todo=todo
        ) from error
    return into.resolve()


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """Whether two reads hold the same rows, in any order and in any file."""

    def ordered(rows: pa.Table) -> pa.Table:
        return rows.drop_columns([FILE_NAME]).sort_by(RECORD_KEY).combine_chunks()

    return bool(ordered(left).equals(ordered(right)))


def current_rows(base_files: pa.Table, snapshot: pa.Table) -> int:
    """How many rows of the snapshot have their newest version in the base files."""
    import pyarrow.compute as pc  # late, as above

    newest = pc.is_in(snapshot.column(COMMIT_SEQNO), base_files.column(COMMIT_SEQNO))
    return int(pc.sum(newest).as_py() or 0)
