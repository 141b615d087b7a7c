"""Archives instants under the table lock, about `_AT_ONCE` of them per hold.

    finish     what a dead run left: a manifest, instants that are archived and still active
    choose     see `archiving.choice`
    write      the instants into a new file of the archive
    remove     their files from the active timeline

If the process dies before the archive names the new file, the table is unchanged; afterwards the next run, of
phantombase or Hudi, removes the remaining files. An instant in both places counts once.

The module also gathers the facts for the choice, and the cutoffs of resizes of consistent-hashing buckets and of files
of undone instants. A fact that cannot be read is an error."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.commit_metadata import STREAM_CHECKPOINT, STREAM_PART, STREAMER_CHECKPOINTS
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.instant_files import StateFiles, load_state_files, of_instants, retained_by
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.valid_instants import blocked_by
from phantombase.timeline.read.pins import all_pins, live_pins
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.evolved_schema import newest_history
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import READ_INSIDE, Guard, exclusive, refuse_in_progress
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot, open_metadata_table
from phantombase.timeline.table.torn import remove_torn
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.terminal.text_table import plural
from phantombase.timeline.view.facts import HASHING_METADATA, is_consistently_hashed

from ..attempt.finish import forget_archived, tidy, unfinished_compactions
from ..cleaning.orphan_facts import data_file
from ..unit_of_work import ServiceAnswer, ServiceMeans, unit_of_work
from .archived_files import Archive, compact_history, remove_instants
from .choice import ArchiveChoice, ArchiveCutoff, ArchiveFacts, ArchiveOptions, choose

_NEWEST = {Guard.ROLLBACK: "it is of the newest write or clustering, which is never archived"}
_ARCHIVED = dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "neither undoes an instant that is archived")
_METADATA, _COMMIT = ".hashing_meta", ".commit"


def resize_cutoffs(table: Snapshot) -> tuple[ArchiveCutoff, ...]:
    """The cutoffs that resizes set on a table with consistent-hashing buckets; none on other tables."""
    return (*_unmarked(table),) if is_consistently_hashed(table.storage) else ()


def _unmarked(table: Snapshot) -> Iterator[ArchiveCutoff]:
    """Completed resizes whose completion Hudi has not yet recorded with their hashing metadata. Hudi's next writer
    records it. Until then only the replace commit shows it."""
    files = [path for path, _ in table.storage.list_below(HASHING_METADATA)]
    noted = {path.removesuffix(_COMMIT) for path in files if path.endswith(_COMMIT)}
    for path in sorted(files):
        stem = path.removesuffix(_METADATA)
        time = stem.rpartition("/")[2]
        if path != stem and stem not in noted and table.timeline.find(time, "replacecommit") is not None:
            yield ArchiveCutoff(time=time, why=f"Hudi's next write has to note that resize {time} of buckets is done")


def gather_facts(table: Snapshot, files: StateFiles, *, dry_run: bool) -> ArchiveFacts:
    """All facts except those of files, see `replaced_files_there`, `gone_but_there` and `damaged_files`. `dry_run`:
    puts nothing on storage, so expired pins count. MalformedError: a pin, clean or metadata table cannot be read; it
    may forbid anything."""
    cleans = [i for i in table.timeline.instants if i.action == "clean" and i.completed]
    held = None
    if not table.layout.has_completion_times:
        held = min((pin.holds for pin in (all_pins if dry_run else live_pins)(table.storage)), default=None)
    metadata = open_metadata_table(table).load_timeline() if table.config.metadata_partitions else None
    compactions = () if metadata is None else metadata.completed
    return ArchiveFacts(
        cleaned_to=retained_by(table.files, cleans[-1]) if cleans else None,
        metadata=metadata is not None,
        metadata_compacted=max((i.requested_time for i in compactions if i.action == "commit"), default=None),
        metadata_blocked=None if metadata is None else blocked_by(metadata),
        unfinished=frozenset(unfinished_compactions(table)),
        left_out={time: max(groups.values()) for time, groups in table.facts.left_out(table.timeline).items()},
        held=held,
        doubled=files.doubled(),
        written=files.written(table.timeline.instants, table.times.moment),
        begun={} if table.layout.has_completion_times else files.begun(table.timeline.instants, table.times.moment),
        cutoffs=(*resize_cutoffs(table), *_history_cutoff(table)),
    )


def _history_cutoff(table: Snapshot) -> Iterator[ArchiveCutoff]:
    """The write with the history of columns that evolve on read: Hudi finds renamed ones only while it is active."""
    if (time := newest_history(table.storage, table.timeline)) is not None:
        yield ArchiveCutoff(time=time, why=f"write {time} has the newest history of the columns")


def checkpoint_cutoffs(table: Snapshot, leaving: Iterable[Instant]) -> Iterator[ArchiveCutoff]:
    """The newest write with the checkpoint of each job, if it would leave. Hudi's jobs walk back over the active writes
    to it, over all that have none; Hudi Streamer over delta commits only (1.2.0: StreamerCheckpointUtils,
    CommitUtils.getValidCheckpointForCurrentWriter)."""
    going = {i.requested_time: _jobs(table, i) for i in leaving if i.is_write}
    jobs = set[str]().union(*going.values())
    for time, instant in sorted(table.timeline.completed_writes.items(), reverse=True):
        if not jobs:
            return
        found = jobs & (going[time] if time in going else _jobs(table, instant))
        if time in going and found:
            why = f"write {time} has the newest checkpoint of {', '.join(sorted(found))}: see --drop-checkpoints"
            yield ArchiveCutoff(time=time, why=why)
        jobs -= found


def _jobs(table: Snapshot, instant: Instant) -> set[str]:
    """The jobs whose checkpoint a write has. What streams of phantombase have written is known from their records."""
    extra = table.commit_metadata(instant).extra_metadata
    where = "" if instant.action == "deltacommit" else f" in a {instant.action}"
    jobs = {f"Hudi Streamer{where}"} if any(map(extra.get, STREAMER_CHECKPOINTS)) else set()
    text = "" if STREAM_PART in extra else extra.get(STREAM_CHECKPOINT)
    try:
        return jobs | {f"the stream {name}" for name in (json.loads(text) if text else ())}
    except (ValueError, TypeError) as error:
        raise MalformedError("unreadable checkpoint of a stream", instant=instant.requested_time, found=text) from error


def gone_but_there(table: Snapshot) -> Iterator[ArchiveCutoff]:
    """Files named after an undone instant: of a task that ended after the rollback of its write, or log files of a
    resize of buckets, which Hudi leaves. Once the timeline begins after the instant, the instant counts as completed,
    and the rows of these files exist twice."""
    timeline = table.timeline
    found: defaultdict[str, list[str]] = defaultdict(list)
    for partition, entries in table.listing.below(table.storage, table.config, ""):
        for entry in entries:
            name = None if entry.is_folder else parse_data_file(entry.name)
            if name is not None and not timeline.is_committed(name.instant):
                found[name.instant].append(join(partition, entry.name))
    for time in timeline.pending_writes.keys() & found.keys():
        del found[time]
    if found:  # or archived behind a write of a slow clock
        timeline = table.with_archive(timeline)
    for time, paths in sorted(found.items()):
        if not timeline.is_committed(time):
            before = max((t for t in timeline.completed_writes if t < time), default="")
            removable = next((path for path in paths if data_file(path.rpartition("/")[2]) is not None), None)
            why = f"instant {time} is gone and has files, as {removable or paths[0]}: " + (
                "move it away, if it is no data file"
                if removable is None
                else "`compactor-daemon orphans` removes them, or shows what keeps them"
            )
            yield ArchiveCutoff(time=before, why=why)


def damaged_files(table: Table) -> Iterator[ArchiveCutoff]:
    """Writes that name files which are missing or damaged. Files of archived writes count by their names, so nothing
    would show the loss any more."""
    for group in table.load_view().groups:
        for flaw in group.flaws:
            why = f"write {flaw.instant} names {flaw.path}, which is missing or damaged: `timeline validate` shows it"
            yield ArchiveCutoff(time=flaw.instant, why=why)


def replaced_files_there(table: Table, replacing: Iterable[Instant]) -> dict[str, str]:
    """The replace commits of whose replaced file groups a file still exists: time -> path of one such file."""
    found: dict[str, str] = {}
    names: dict[str, dict[str, str]] = {}
    for instant in replacing:
        for partition, ids in (table.commit_metadata(instant).partition_to_replace_file_ids or {}).items():
            if partition not in names:
                names[partition] = _files(table, partition)
            if there := sorted(names[partition].keys() & set(ids)):
                found.setdefault(instant.requested_time, join(partition, names[partition][there[0]]))
    return found


def _files(table: Table, partition: str) -> dict[str, str]:
    """One file of each file group in a partition, the last by name; empty if the partition does not exist."""
    return {name.file_id: entry.name for entry, name in sorted(data_files(table, partition), key=lambda f: f[0].name)}


_AT_ONCE = 1000
"""Instants archived per hold of the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived(Shown):
    """An instant that was archived, or would be. `files` and `bytes`: of its files on the active timeline."""

    instant: str
    action: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedInstant(Shown):
    """A completed instant that is kept, and why."""

    instant: str
    action: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult(Shown):
    """`finished`: instants that an earlier run had archived and not removed. `why`: what stopped archiving here.
    `written`: new files of the archive; `merged`: files of the history made by merging others."""

    archived: tuple[Archived, ...] = ()
    finished: tuple[str, ...] = ()
    kept: tuple[RetainedInstant, ...] = ()
    why: str = ""
    written: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()


def _said(done: ArchiveResult) -> WorkFacts | None:
    if not (done.archived or done.finished or done.merged):
        return None
    files, size = (sum(getattr(one, name) for one in done.archived) for name in ("files", "bytes"))
    return WorkFacts(why=done.why, bytes_removed=size, files_before=files, files_after=len(done.written))


@unit_of_work("archive", _said)
def archive_table(table: Table, options: ArchiveOptions, lock: TableLock, *, dry_run: bool = False) -> ArchiveResult:
    """Archives the instants that `options` allow. `dry_run`: changes nothing, and takes no lock. Errors: LockError,
    ConflictError (another process archives without the lock), StorageError, MalformedError, UnknownStateError (the
    archive cannot be read), ClockError (see `TableClock.check_zone_of`). Whatever happens, the next run continues."""
    if dry_run:
        return from_one_snapshot(lambda: _would_archive(table.snapshot(cached=False), options))
    tidy(table, lock)
    remove_torn(table, lock, "rollback")
    archived: list[tuple[Archived, ...]] = []
    finished: list[str] = []
    written: list[str] = []
    while True:
        with exclusive(table, lock, "archive instants", {**READ_INSIDE, **_NEWEST}) as held:
            seen = _look(held)
            finished += (rest := _finish(seen))
            seen = _look(seen.table) if rest else seen
            choice = _choice(seen, options, dry_run=False)
            some = _some(choice.archived)
            if not some:
                break
            seen.table.times.check_zone_of(some, seen.timeline)
            written.append(_archive(seen.table).write(some, seen.timeline, seen.files))
            remove_instants(seen.table.storage, of_instants(seen.files, some))
            archived.append(_described(seen.files, some))
    merged = _merge(table, lock)
    forget_archived(table)
    return replace(_result(choice, archived, written, merged), finished=tuple(finished))


def _would_archive(table: Table, options: ArchiveOptions) -> ArchiveResult:
    """Runs without the lock: files that another process archives concurrently may be removed before they are read."""
    seen = _look(table)
    refuse_in_progress(seen.table, _NEWEST)
    both = _archive(table).seen_already(seen.timeline.instants)
    left = replace(seen.timeline, instants=tuple(i for i in seen.timeline.instants if i not in both))
    choice = _choice(replace(seen, table=table.with_timeline(left)), options, dry_run=True)
    seen.table.times.check_zone_of(choice.archived, seen.timeline)
    result = _result(choice, [_described(seen.files, choice.archived)], (), ())
    return replace(result, finished=tuple(i.requested_time for i in both))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    table: Snapshot
    files: StateFiles

    @property
    def timeline(self) -> Timeline:
        return self.table.timeline


def _look(table: Table) -> _Seen:
    # The files are listed first: an instant that completes in between is still pending in the list.
    files = load_state_files(table.storage, table.config)
    return _Seen(table=table.with_timeline(table.load_timeline()), files=files)


def _archive(table: Table) -> Archive:
    return Archive(storage=table.storage, config=table.config, moment=table.times.moment)


def _finish(seen: _Seen) -> Sequence[str]:
    both = _archive(seen.table).held_already(seen.timeline.instants)
    if both:
        remove_instants(seen.table.storage, of_instants(seen.files, both))
    return [i.requested_time for i in both]


def _choice(seen: _Seen, options: ArchiveOptions, *, dry_run: bool) -> ArchiveChoice:
    facts: ArchiveFacts = gather_facts(seen.table, seen.files, dry_run=dry_run)
    choice = choose(seen.timeline, facts, options)
    there = replaced_files_there(seen.table, [i for i in choice.archived if i.family == "replacecommit"])
    left: tuple[ArchiveCutoff, ...] = ()
    if any(i.is_write for i in choice.archived):
        checkpoints = () if options.drop_checkpoints else tuple(checkpoint_cutoffs(seen.table, choice.archived))
        now = seen.table.snapshot()  # both need the files of all partitions: the view lists them after its timeline
        damaged = tuple(damaged_files(now))
        left = (*gone_but_there(now.with_timeline(seen.timeline)), *damaged, *checkpoints)
    if not there and not left:
        return choice
    return choose(seen.timeline, replace(facts, replaced_there=there, cutoffs=(*facts.cutoffs, *left)), options)


def _some(instants: Sequence[Instant]) -> Sequence[Instant]:
    """The first `_AT_ONCE` instants, and those with the same time as the last of these."""
    some = instants[:_AT_ONCE]
    return [i for i in instants if some and i.requested_time <= some[-1].requested_time]


def _merge(table: Table, lock: TableLock) -> tuple[str, ...]:
    table = table.snapshot(cached=False)
    if not table.layout.has_completion_times:
        return ()

    @contextmanager
    def section() -> Iterator[Storage]:
        with exclusive(table, lock, "merge files of the history", _ARCHIVED) as held:
            yield held.storage

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
    choice: ArchiveChoice, archived: Sequence[Sequence[Archived]], written: Sequence[str], merged: Sequence[str]
) -> ArchiveResult:
    return ArchiveResult(
        archived=tuple(one for some in archived for one in some),
        kept=tuple(
            RetainedInstant(instant=i.requested_time, action=i.action, why=choice.why_kept(i)) for i in choice.kept
        ),
        why=choice.why,
        written=tuple(written),
        merged=tuple(merged),
    )


def run_service(table: Table, options: ArchiveOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    done = archive_table(table, options, lock, dry_run=means.dry_run)
    count = len(done.archived) + len(done.finished)
    what = f"{plural(count, 'instant')} {means.did('archived')}" if count else f"nothing to archive: {done.why}"
    return ServiceAnswer(what=what, instants=count)
