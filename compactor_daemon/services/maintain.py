"""What a person asks of a table's work as a whole: to do all that is due, to pause it, to end the work on an instant.

`maintain_table` requests a compaction, executes the pending ones, then runs the services, once. Each step decides what
is due, and finishes what a dead process left. A step that fails leaves a valid table, and holds no other one back. For
pauses see `timeline.locks.pause`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import MalformedError, PhantombaseError, UsageError
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.pause import (
    COMPACTION,
    SILENCE,
    KnownPauses,
    Pause,
    pause_files,
    put_pause,
    readable_pauses,
    user_name,
)
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock, table_lock
from phantombase.timeline.option import check_text
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.text_table import human_bytes, plural

from ..attempt.compact_or_resume import pending_instants, preflight
from ..attempt.inputs import check_record_ttl
from ..attempt.outcome import CancelledWork, cancel_work
from ..attempt.slice_task import Runner
from ..catalogs.options import SyncOptions
from ..execution.run_compactions import InstantProgress, run_compactions
from ..options import AttemptOptions, ExecuteOptions
from ..unit_of_work import ServiceAnswer, ServiceMeans
from .options import Policies, Service, ServiceOptions
from .serve import guarded, note_runs, serve_table

SCHEDULE, COMPACT = "schedule", "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainStep(ServiceAnswer):
    """`step`: `schedule`, `compact`, or the name of a service. `what`: also its error, if it `failed`."""

    step: str
    seconds: float = 0.0
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """How tables are maintained. `lock`, `sole_writer`: see `table_lock`; a dry run takes no lock, and changes
    nothing."""

    services: ServiceOptions
    requests: ScheduleOptions = ScheduleOptions()
    output: OutputOptions = field(default_factory=OutputOptions)
    attempt: AttemptOptions = AttemptOptions()
    lock: str | None = None
    sole_writer: bool = False
    dry_run: bool = False

    def over(self, policies: Policies, given: Collection[str], *, named: bool = True) -> Maintenance:
        """The same with the options of a table, but for those that are `given`; and its services, unless some were
        `named`. UsageError: see `Policies.over`."""
        chosen = self.services.chosen
        if not named and policies.services is not None:
            chosen = {one: chosen.get(one, one.kind()) for one in policies.services}
        elif not named and policies.over(SyncOptions(), given).to is not None:
            chosen = {**chosen, Service.SYNC: chosen.get(Service.SYNC, SyncOptions())}
        requests = policies.over(self.requests, given)
        return replace(
            self,
            services=ServiceOptions(
                chosen={one: policies.over(own, given) for one, own in chosen.items()},
                counted_commits=requests.max_delta_commits,
            ),
            requests=requests,
            output=policies.over(self.output, given),
            attempt=policies.over(self.attempt, given),
        )

    @property
    def steps(self) -> tuple[str, ...]:
        """In the order in which they run."""
        return (SCHEDULE, COMPACT, *(service.value for service in self.services.services))


def maintain_table(
    table: Table,
    how: Maintenance,
    runner: Runner,
    *,
    begins: Callable[[str], None] = lambda _: None,
    progress: InstantProgress = lambda *_: None,
) -> Iterator[MaintainStep]:
    """Does what is due on a table, step by step. `begins`: called with each step. `progress`: see `run_compactions`.
    LockError: the lock cannot be used; nothing was changed."""
    storage = table.storage
    lock = ProcessLock(storage.location) if how.dry_run else table_lock(storage, how.lock, sole_writer=how.sole_writer)
    own = {SCHEDULE: partial(_schedule, table, lock, how), COMPACT: partial(_compact, table, how, runner, progress)}
    for step, run in own.items():
        begins(step)
        yield MaintainStep(step=step, **guarded(table, step, run))
    known = KnownPauses(storage)
    means = ServiceMeans(output=how.output, runner=runner, dry_run=how.dry_run)
    for service in how.services.services:
        begins(service.value)
        (done,) = serve_table(table, how.services, lock, (service,), means=means, known=known)
        if not how.dry_run:
            with suppress(PhantombaseError):  # a daemon runs it once more then
                note_runs(storage, process_name(), [done])
        rest = {name: getattr(done, name) for name in ("what", "instants", "files", "bytes", "seconds", "failed")}
        yield MaintainStep(step=service.value, **rest)


def _schedule(table: Table, lock: TableLock, how: Maintenance) -> ServiceAnswer:
    """MalformedError: file groups were left out, since no compaction can merge them; the others were requested."""
    check = partial(check_record_ttl, how.output)
    done = schedule_compaction(table.snapshot(cached=False), lock, how.requests, check=check, dry_run=how.dry_run)
    groups = sum(len(one.plan.operations) for one in done.requested)
    would = "would request" if how.dry_run else "requested"
    what = f"{would} {_compactions(len(done.requested))}: {plural(groups, 'file group')}"
    what = what if done.requested else f"nothing to request: {done.why}"
    if left := done.notes.unmergeable if done.notes is not None else ():
        raise MalformedError(
            f"{what}; {plural(len(left), 'file group')} that no compaction can merge",
            path=join(left[0].partition, left[0].file_id),
            found=left[0].why,
            todo=f"`timeline validate {table.storage.base_path}` has the files.",
        )
    return ServiceAnswer(what=what, instants=len(done.requested))


def _compact(table: Table, how: Maintenance, runner: Runner, progress: InstantProgress) -> ServiceAnswer:
    """The first error of an instant, after the others were executed."""
    if how.dry_run:
        seen = table.snapshot(cached=False)
        instants = pending_instants(seen)
        for error in preflight(seen, instants, how.output).values():
            raise error
        what = f"would execute {_compactions(len(instants))}" if instants else "no compaction is pending"
        return ServiceAnswer(what=what, instants=len(instants))
    done = run_compactions(
        table,
        lock=how.lock,
        sole_writer=how.sole_writer,
        output=how.output,
        execute=ExecuteOptions(),
        attempt=how.attempt,
        runner=runner,
        clock=table.clock,
        progress=progress,
    ).done
    if not done:
        return ServiceAnswer(what="no compaction is pending")
    groups, written = sum(one.file_groups for one in done), sum(one.bytes_written for one in done)
    what = f"executed {_compactions(len(done))}: {plural(groups, 'file group')}, {human_bytes(written)} written"
    return ServiceAnswer(what=what, instants=len(done))


def _compactions(number: int) -> str:
    return plural(number, "compaction")


PAUSABLE = (COMPACTION, *(service.value for service in Service), SILENCE)


def pause_table(
    storage: Storage, reason: str, *, until: datetime | None = None, services: Sequence[str] = (), dry_run: bool = False
) -> Pause:
    """Puts a pause of this user. `until`: without a zone UTC; None: until `resume_table`. `services`: only these of
    `PAUSABLE`. UsageError: no reason, an end that is over, none for `SILENCE`, an unknown service."""
    check_text("the reason", reason)
    if not reason.strip():
        raise UsageError("a pause needs a reason", path=storage.base_path, found="none", todo="Say why: --reason TEXT.")
    if not isinstance(services, Collection):
        raise UsageError("not services", expected="a list of " + ", ".join(PAUSABLE), found=repr(services))
    services = (services,) if isinstance(services, str) else tuple(map(str, services))
    if SILENCE in services and until is None:
        raise UsageError("a silence needs an end", path=storage.base_path, todo="Add --for 2d, or --until TIME.")
    if unknown := [name for name in services if name not in PAUSABLE]:
        raise UsageError("nothing that can be paused", expected=", ".join(PAUSABLE), found=", ".join(unknown))
    pause = Pause(
        who=_who(),
        reason=" ".join(reason.split()),
        since_ms=clock_ms(),
        until_ms=None if until is None else _ms(until),
        services=tuple(name for name in PAUSABLE if name in services),
    )
    if pause.is_over(pause.since_ms):
        raise UsageError(
            "the end of the pause is over already",
            path=storage.base_path,
            expected="a time in the future",
            found=str(until),
        )
    if not dry_run:
        put_pause(storage, pause)
    return pause


def resume_table(storage: Storage, *, dry_run: bool = False) -> tuple[str, ...]:
    """Removes all pauses, also one that cannot be read; what each said, for people."""
    files = pause_files(storage)
    words = tuple(one.words if isinstance(one, Pause) else str(one) for one in readable_pauses(storage))
    if not dry_run:
        storage.delete_all(files)
    return words


def cancel_instant(table: Table, instant: str, reason: str = "", *, dry_run: bool = False) -> CancelledWork:
    """Ends the work on a pending compaction or clustering, see `cancel_work`. UsageError: it is not pending."""
    check_text("the reason", reason)
    pending_instants(table, instant, clusterings=True)
    words = " ".join(reason.split())
    return cancel_work(table.storage, instant, f"by {_who()}{words and f': {words}'}", dry_run=dry_run)


def _who() -> str:
    return f"{user_name()}@{socket.gethostname()}"


def _ms(until: datetime) -> int:
    return round((until if until.tzinfo is not None else until.replace(tzinfo=UTC)).timestamp() * 1000)
