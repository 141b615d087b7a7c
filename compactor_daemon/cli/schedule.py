"""The commands that request a compaction (`schedule`), cancel or replace a requested one (`unschedule`, `replan`), or
hold the work on a table (`pause`, `resume`, `cancel`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.errors import UsageError
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.option import duration_s
from phantombase.timeline.planning.operation import HAS_LOGS
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.partition_walk import reasons_of
from phantombase.timeline.planning.schedule import Requested, Scheduled, schedule_compaction
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import CommandResult, StorageOption, Tries
from phantombase.timeline.terminal.text_table import Column, first_rows, human_bytes, plain, plural

from ..fleet.zookeeper_claims import ring
from ..services.maintain import PAUSABLE, cancel_instant, pause_table, resume_table
from ..services.options import kept_attempt_options
from ..undo.replan import replan
from ..undo.unschedule import unschedule
from .fleet_flags import Fleet
from .option_flags import DryRun, TableChange, TablePath, name_idle, offers


@offers
def schedule(
    at: Annotated[TableChange, Tries("change nothing; show which file groups would be picked, and why")],
    *,
    drop_metadata_table_: Annotated[bool, typer.Option("--drop-metadata-table", help="see `compact --help`")] = False,
    options: ScheduleOptions = PLAN_NOW,
    zookeeper: Fleet,
) -> CommandResult:
    """Request a compaction of every file group that has log files, or of as many as the limits allow.

    With `--trigger`, only if a compaction is due by Hudi's rules; otherwise the output gives the reason. With
    `--zookeeper` an idle daemon of the fleet wakes at once; without it daemons find the plan at their next poll.
    `--dry-run` shows the choice.

    The plan must not race with writers, so one of these is needed: `--lock`, if all writers and schedulers share that
    lock, or `--sole-writer`, if no other process writes or schedules.

    File groups whose files a compaction would refuse are left out: the exit code is 1 then, and `--json` lists them.

    Examples: `compactor-daemon schedule lake/orders --sole-writer`,
    `compactor-daemon schedule lake/orders --max-file-slices 10 --dry-run`"""
    if at.dry_run and drop_metadata_table_:
        raise UsageError("a dry run changes nothing", found="--drop-metadata-table", todo="Leave one of them out.")
    at, fleet = replace(at, lock=zookeeper.on_lock(at.lock)), zookeeper.options()
    name_idle(options)
    table, lock = at.open(
        "schedule",
        "A plan made while an unknown write is running would lose that write's rows. --dry-run needs neither.",
    )
    if drop_metadata_table_:
        table = drop_metadata_table(table, lock)
    done = schedule_compaction(table, lock, options, dry_run=at.dry_run)
    if fleet is not None and not at.dry_run:
        for one in done.requested:
            ring(table, one.instant, fleet)
    return CommandResult(_data(at.table, done, at.dry_run), _render, failed=bool(unmergeable(done)))


def unmergeable(done: Scheduled | None) -> list[dict[str, Any]]:
    """The file groups that were left out since a compaction would fail on them, each with the reason."""
    left = done.notes.unmergeable if done is not None and done.notes else ()
    return [{"partition": o.partition, "file_id": o.file_id, "why": o.why} for o in left]


def left_out_line(left: Sequence[Mapping[str, Any]]) -> str:
    first = left[0]
    where = f"{join(first['partition'], first['file_id'])}: {first['why']}"
    return f"left out: {plural(len(left), 'file group')} that cannot be merged, such as {where}"


def scheduled_facts(done: Scheduled) -> dict[str, Any]:
    """The requested plans, or why there are none, and the file groups that cannot be merged."""
    plans = [
        {"instant": one.instant, "action": one.plan.action, "file_groups": len(one.plan.operations)}
        for one in done.requested
    ]
    return {"plans": plans, "why": done.why, "cannot_be_merged": unmergeable(done)}


def render_plans(data: Mapping[str, Any], *, dry_run: bool) -> Iterator[RenderableType]:
    """A line for each plan of `scheduled_facts`, and what was left out."""
    for plan in data["plans"]:
        what = "compaction" if plan["action"] == "compaction" else "log compaction"
        verb, at = ("would request", "") if dry_run else ("requested", f" {plan['instant']}")
        yield f"{verb} {what}{at}: {plural(plan['file_groups'], 'file group')}"
    if data["plans"] and (left := data["cannot_be_merged"]):
        yield left_out_line(left)


def _data(table: str, done: Scheduled, dry_run: bool) -> dict[str, Any]:
    picked = [row for one in done.requested for row in _picked(one)]
    data = {"table": table, "instant": done.instant, "file_groups": len(picked), **scheduled_facts(done)}
    if dry_run:
        left_out = as_json(done.notes.left) if done.notes else []
        summary = done.notes.summary() if done.notes else None
        data |= {"instant": None, "picked": picked, "left_out": left_out, "summary": summary}
    return data


def _picked(one: Requested) -> Iterable[dict[str, Any]]:
    reasons = reasons_of(one.plan)
    for operation in one.plan.operations:
        key = "/".join((operation.partition_path, operation.file_id))
        yield {
            "instant": one.instant,
            "action": one.plan.action,
            "partition": operation.partition_path,
            "file_id": operation.file_id,
            "base_file": operation.data_file_path,
            "log_files": len(operation.delta_file_paths),
            "metrics": dict(operation.metrics or {}),
            "why": reasons.get(key, HAS_LOGS),
        }


def _render(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if "picked" in data:
        yield from _render_dry_run(data)
    elif not data["plans"]:
        yield f"nothing to schedule: {data['why']}"
    else:
        yield from render_plans(data, dry_run=False)


def _render_dry_run(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    group, logs = Column("file group", plain("file_id"), shorten=True), Column("logs", plain("log_files"), right=True)
    if picked := data["picked"]:
        title = f"would be requested: {plural(len(picked), 'file group')}"
        yield first_rows(title, ("partition", group, "action", logs, "why"), picked)
    else:
        yield f"nothing to schedule: {data['why']}"
    if left := data["left_out"]:
        yield first_rows(f"left out: {plural(len(left), 'file group')}", ("partition", group, "rule", "why"), left)
    if (summary := data["summary"]) is not None:
        yield (
            f"{plural(len(data['plans']), 'plan')}, {plural(data['file_groups'], 'file group')} of "
            f"{summary['file_groups']} seen in {plural(summary['partitions'], 'partition')}; reads "
            f"{human_bytes(summary['read_bytes'])}, writes about {human_bytes(summary['write_bytes'])}; files to open "
            f"for a file group: {summary['read_amplification']:g} now, {summary['read_amplification_after']:g} then"
        )
        yield data["why"]


@offers
def unschedule_command(
    at: TableChange, instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the pending compaction")]
) -> CommandResult:
    """Cancel a requested compaction; its file groups are then free for the next plan.

    On version 6 file groups that were written since then remain in the plan, and the others are removed from it.
    Refused where all of them were written since then, while the compaction is being published, while Hudi may work on
    it, and if rows would be lost or doubled without the plan: then it must be executed. An unreadable plan is removed
    if nothing depends on it.

    Example: `compactor-daemon unschedule lake/orders 20260101120000000 --sole-writer`"""
    table, lock = at.open(
        "unschedule",
        "An unknown write may be about to write logs on the plan's slices: without the plan they would be lost.",
    )
    done = at.row(unschedule(table, instant, lock, kept_attempt_options(table.storage), dry_run=at.dry_run))
    return CommandResult({name: value for name, value in done.items() if name != "kept" or value}, _render_unscheduled)


def _render_unscheduled(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    ended = f"; {plural(len(data['attempts']), 'attempt')} ended" if data["attempts"] else ""
    groups = plural(data["file_groups"], "file group")
    verb = "would unschedule" if data["dry_run"] else "unscheduled"
    kept = data.get("kept", 0)
    remaining = (
        f"; {plural(kept, 'file group')} with logs on the plan remain: run compactor-daemon compact" if kept else ""
    )
    yield f"{verb} compaction {data['instant']}: {groups} free for the next plan{ended}{remaining}"


@offers
def replan_command(
    at: TableChange, instant: Annotated[str, typer.Argument(metavar="INSTANT", help="the pending compaction")]
) -> CommandResult:
    """Replace a requested compaction by one of the same file groups, with the logs written since.

    Nothing is changed if no log was written since. Refused on version 6, where such logs belong to the next compaction,
    while a process works on the plan, and where `unschedule` refuses. If the command dies, the same command continues,
    and so does a daemon.

    Example: `compactor-daemon replan lake/orders 20260101120000000 --sole-writer`"""
    table, lock = at.open(
        "replan",
        "An unknown process may plan the same file groups meanwhile: no compaction of them could be executed then.",
    )
    done = replan(table, instant, lock, kept_attempt_options(table.storage), dry_run=at.dry_run)
    return CommandResult(at.row(done), _render_replanned)


def _render_replanned(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    verb = "would be replaced" if data["dry_run"] else "replaced"
    why = f"; {data['why']}" if data["why"] else ""
    if data["replaced_by"] is None:
        is_gone = data["file_groups"] > 0
        yield f"compaction {data['instant']} is {'gone, and needs no other one' if is_gone else 'kept'}{why}"
        return
    by = "" if data["dry_run"] else f" {data['replaced_by']}"
    yield (
        f"compaction {data['instant']} {verb} by{by or ' another one'}: {plural(data['file_groups'], 'file group')}, "
        f"{plural(data['log_files'], 'more log file')}{why}"
    )


_UNTIL = "a time like 2026-11-21T09:00:00+01:00; without a zone UTC"


@offers
def pause_command(
    table: TablePath,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="why, for others")],
    until: Annotated[str | None, typer.Option(metavar="TIME", help=f"when the pause ends by itself: {_UNTIL}")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="2h", help="how long it lasts, instead of --until")
    ] = None,
    services: Annotated[
        str | None, typer.Option(metavar="NAMES", help=f"only these: {', '.join(PAUSABLE)} [default: all]")
    ] = None,
    dry_run: DryRun = False,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Pause a table: daemons, commands and writers begin no compaction of it, and no service, until `resume`.

    Rows can be written all the while. What has begun goes on; `cancel` ends it. Who paused the table, why and until
    when is shown by `status`, `check` and the error of a command that is held. Several pauses may hold one table. What
    undoes writes (`rollback`, `restore`, `unschedule`) is not held. `--services alerts` holds nothing: the table is
    known to be bad until then, so it is shown, and left out of exit codes and of the health that alerts go by.

    Examples: `compactor-daemon pause lake/orders --reason "disk is replaced" --for 2h`,
    `compactor-daemon pause lake/orders --reason audit --services clean,archive`"""
    storage = Table.open(table, parse_pairs(storage_option), reading=True).storage
    names = [name.strip() for name in services.split(",")] if services is not None else []
    pause = pause_table(storage, reason, until=_end(until, for_), services=names, dry_run=dry_run)
    return CommandResult({"table": table, "dry_run": dry_run, "paused": pause.words, **asdict(pause)}, _render_paused)


def _end(until: str | None, for_: str | None) -> datetime | None:
    if until is not None and for_ is not None:
        raise UsageError("--until and --for both say when the pause ends", todo="Give one of them.")
    if for_ is not None:
        with suppress(ValueError, OverflowError):  # a year that no calendar has
            return datetime.fromtimestamp(clock_ms() / 1000 + duration_s(for_, "--for"), UTC)
        raise UsageError("too long for --for", expected="an end before the year 10000", found=for_)
    try:
        return None if until is None else datetime.fromisoformat(until)
    except ValueError as error:
        raise UsageError("not a time", expected=_UNTIL, found=until) from error


def _render_paused(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield f"{'would be ' if data['dry_run'] else ''}{data['paused']}"
    if not data["dry_run"]:
        yield f"what has begun goes on; to end the pause: compactor-daemon resume {data['table']}"


@offers
def resume_command(table: TablePath, dry_run: DryRun = False, storage_option: StorageOption = None) -> CommandResult:
    """Resume a paused table: all its pauses are removed, also one that cannot be read.

    Example: `compactor-daemon resume lake/orders`"""
    storage = Table.open(table, parse_pairs(storage_option), reading=True).storage
    words = list(resume_table(storage, dry_run=dry_run))
    return CommandResult({"table": table, "dry_run": dry_run, "removed": words}, _render_resumed)


def _render_resumed(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not data["removed"]:
        yield "nothing to resume: the table is not paused"
    for words in data["removed"]:
        yield f"{'would be removed' if data['dry_run'] else 'removed'}: {words}"


@offers
def cancel_command(
    table: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="a compaction or clustering at work, see `status`")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="why, for the process at work and its log")] = "",
    dry_run: DryRun = False,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Cancel the work on one compaction or clustering, in whichever process it runs; its plan stays requested.

    The process stops at its next check, within seconds, or once the file slices at work are merged. Nothing of its work
    becomes visible, and its staged files are removed. Then a daemon may take the instant again: `pause` the table first
    to prevent that. After the commit decision nothing can be cancelled: the exit code is 1.

    Example: `compactor-daemon cancel lake/orders 20261121091052663 --reason "too large for now"`"""
    done = cancel_instant(Table.open(table, parse_pairs(storage_option)), instant, reason, dry_run=dry_run)
    data = {"table": table, "instant": instant, "dry_run": dry_run, **asdict(done)}
    error = f"{instant} is decided: it is published, and cannot be cancelled any more" if done.decided else ""
    return CommandResult(data, _render_work_cancelled, failed=done.decided, error=error)


def _render_work_cancelled(data: Mapping[str, Any]) -> Iterable[RenderableType]:
    verb = "would cancel" if data["dry_run"] else "cancelled"
    for number in data["attempts"]:
        yield f"{verb} attempt {number} at {data['instant']}: its process stops at its next check; the plan stays"
    if not data["attempts"] and not data["decided"]:
        yield f"nothing to cancel: no attempt at {data['instant']} is open"
