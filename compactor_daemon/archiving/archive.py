"""Archives instants: under the table lock, a number of them at a time.

    finish     what a run that died left: a manifest, instants that are archived and still active
    choose     see `archiving.choice`
    write      the instants into a new file of the archive
    remove     their files from the active timeline

If the process dies before the archive names the new file, nothing happened; afterwards the next run, of phantombase or
Hudi, removes the rest. An instant in both places counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from phantombase.timeline.archiving.archive import Archive
from phantombase.timeline.archiving.choice import Choice, Facts, choose
from phantombase.timeline.archiving.levels import compact_history
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.archiving.removal import remove_instants
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.state_files import StateFiles, load_state_files, of_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.recovery.unreadable_rollback import remove_unreadable_rollbacks
from phantombase.timeline.table.half_upgraded import refuse_half_upgraded
from phantombase.timeline.table.pending_restores import refuse_pending_restore
from phantombase.timeline.table.table import Table, consistent

from ..attempt.retire import forget_archived
from ..attempt.unfinished import tidy
from .facts import gather_facts, replaced_files_there

_AT_ONCE = 1000
"""Instants that are archived while the lock is held once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """An instant that was archived, or would be. `files` and `bytes`: of its files on the active timeline."""

    instant: str
    action: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A completed instant that stays, and why."""

    instant: str
    action: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """`finished`: instants that an earlier run had archived and not removed. `why`: what stopped archiving here.

    `written`: new files of the archive; `merged`: files of the history that came of merging others.
    """

    archived: tuple[Archived, ...] = ()
    finished: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    why: str = ""
    written: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()


def archive_table(table: Table, options: ArchiveOptions, lock: TableLock, *, dry_run: bool = False) -> ArchiveResult:
    """Archives what may go by `options`. `dry_run`: changes nothing, and takes no lock.

    Errors: LockError, ConflictError (another process archives without the lock), StorageError, MalformedError,
    UnknownStateError (the archive cannot be read), ClockError (see `TableClock.check_zone_of`). Whatever happens, the
    next run continues.
    """
    if dry_run:
        return consistent(lambda: _would_archive(table.reload(), options))
    tidy(table, lock)
    remove_unreadable_rollbacks(table, lock)
    archived: list[tuple[Archived, ...]] = []
    finished: list[str] = []
    written: list[str] = []
    while True:
        with lock.hold("archive instants") as section:
            seen = _look(table.reload())
            finished += (rest := _finish(seen, section.check))
            seen = _look(seen.table) if rest else seen
            choice = _choice(seen, options, dry_run=False)
            some = _some(choice.archived)
            if not some:
                break
            seen.table.times.check_zone_of(some, seen.timeline)
            written.append(_archive(seen.table, section.check).write(some, seen.timeline, seen.files))
            remove_instants(seen.table.storage, of_instants(seen.files, some), section.check)
            archived.append(_described(seen.files, some))
    merged = _merge(table, lock)
    forget_archived(table)
    return replace(_result(choice, archived, written, merged), finished=tuple(finished))


def _would_archive(table: Table, options: ArchiveOptions) -> ArchiveResult:
    """Without the lock: what another process archives meanwhile may be gone when it is read."""
    seen = _look(table)
    both = _archive(table, lambda: None).seen_already(seen.timeline.instants)
    left = tuple(i for i in seen.timeline.instants if i not in both)
    choice = _choice(replace(seen, timeline=replace(seen.timeline, instants=left)), options, dry_run=True)
    seen.table.times.check_zone_of(choice.archived, seen.timeline)
    result = _result(choice, [_described(seen.files, choice.archived)], (), ())
    return replace(result, finished=tuple(i.requested_time for i in both))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A table and its timeline at one moment."""

    table: Table
    timeline: Timeline
    files: StateFiles


def _look(table: Table) -> _Seen:
    refuse_half_upgraded(table)
    # The files are listed first: an instant that completes in between is still pending in the list.
    files = load_state_files(table.storage, table.config)
    timeline = table.load_timeline()
    refuse_pending_restore(table, timeline)
    return _Seen(table=table, timeline=timeline, files=files)


def _archive(table: Table, check: Callable[[], None]) -> Archive:
    return Archive(storage=table.storage, config=table.config, moment=table.times.moment, check=check)


def _finish(seen: _Seen, check: Callable[[], None]) -> Sequence[str]:
    """Removes instants from the active timeline that are archived already."""
    both = _archive(seen.table, check).held_already(seen.timeline.instants)
    if both:
        remove_instants(seen.table.storage, of_instants(seen.files, both), check)
    return [i.requested_time for i in both]


def _choice(seen: _Seen, options: ArchiveOptions, *, dry_run: bool) -> Choice:
    facts: Facts = gather_facts(seen.table, seen.timeline, seen.files, dry_run=dry_run)
    choice = choose(seen.timeline, facts, options)
    there = replaced_files_there(seen.table, [i for i in choice.archived if i.family == "replacecommit"])
    return choose(seen.timeline, replace(facts, replaced_there=there), options) if there else choice


def _some(instants: Sequence[Instant]) -> Sequence[Instant]:
    """The first `_AT_ONCE` of them, and those of the same time as the last."""
    some = instants[:_AT_ONCE]
    return [i for i in instants if some and i.requested_time <= some[-1].requested_time]


def _merge(table: Table, lock: TableLock) -> tuple[str, ...]:
    table = table.reload()
    if not table.layout.has_completion_times:
        return ()

    @contextmanager
    def section() -> Iterator[Callable[[], None]]:
        with lock.hold("merge files of the history") as held:
            yield held.check

    return compact_history(table.storage, table.config, section)


def _described(files: StateFiles, instants: Sequence[Instant]) -> tuple[Archived, ...]:
    return tuple(
        Archived(
            instant=i.requested_time,
            action=i.action,
            files=len(files.files(i)),
            bytes=sum(f.size for f in files.files(i)),
        )
        for i in instants
    )


def _result(
    choice: Choice, archived: Sequence[Sequence[Archived]], written: Sequence[str], merged: Sequence[str]
) -> ArchiveResult:
    return ArchiveResult(
        archived=tuple(one for some in archived for one in some),
        kept=tuple(Kept(instant=i.requested_time, action=i.action, why=choice.why_kept(i)) for i in choice.kept),
        why=choice.why,
        written=tuple(written),
        merged=tuple(merged),
    )
