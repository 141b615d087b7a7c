"""Finds and removes orphan files, see `orphan_choice`.

    list       all files below the table, after the newest time in use
    choose     what names each; nothing is changed up to here
    remove     under the table lock, about `_AT_ONCE` items per hold, each chosen once more by a fresh timeline

Nothing is recorded: if the process dies, the next run lists again what remains. A process that loses the lock in the
middle of a removal does no harm: an instant that is gone is never used again, and so is no name that contains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.storage.staged_file import abort_uploads
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import exclusive
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import human_bytes, plural

from ..unit_of_work import ServiceAnswer, ServiceMeans, unit_of_work
from .orphan_choice import Item, KeptItem, OrphanChoice, OrphanKind, OrphanOptions, choose
from .orphan_facts import found_again, gather, list_items, newest_time, upload_item

_log = get_logger()
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan(Shown):
    """An orphan. `files`, `bytes`: all its files. `age_s`: of the youngest, by the clock of the storage."""

    path: str
    kind: str
    instant: str
    why: str
    files: int
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanResult(Shown):
    """`orphans`: that were removed, or would be. `kept`: what stays, by reason. `foreign`: paths with other names.
    `files`, `bytes`: of the orphans. `uploads`: unfinished ones to such files that were aborted, on S3."""

    orphans: tuple[Orphan, ...]
    files: int
    bytes: int
    kept: tuple[KeptItem, ...] = ()
    foreign: tuple[str, ...] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    uploads: int = 0


def _chosen(table: Table, items: Sequence[Item], newest: str, options: OrphanOptions, now_ms: int) -> OrphanChoice:
    return _choice(table.with_timeline(table.load_timeline()), items, newest, options, now_ms)


def _choice(later: Snapshot, items: Sequence[Item], newest: str, options: OrphanOptions, now_ms: int) -> OrphanChoice:
    facts = gather(later, items, newest, options.older_than_s, now_ms)
    return choose(items, facts, options.older_than_s, now_ms)


def strays(seen: Snapshot, items: Sequence[Item], options: OrphanOptions, later: Timeline) -> tuple[Item, ...]:
    """The orphans among these items, to be shown, by this process's clock. `later`: loaded after they were listed."""
    return _choice(seen.with_timeline(later), items, newest_time(seen.timeline), options, clock_ms()).orphans


def _said(done: OrphanResult) -> WorkFacts | None:
    if not done.files and not done.uploads:
        return None
    why = next((one.why for one in done.orphans), "unfinished uploads")
    return WorkFacts(why=why, bytes_removed=done.bytes, files_before=done.files, files_after=0)


@unit_of_work("orphans", _said)
def remove_orphans(table: Table, options: OrphanOptions, lock: TableLock, *, dry_run: bool = False) -> OrphanResult:
    """Removes the orphans of a table. `dry_run`: changes nothing, takes no lock, and goes by this process's clock.
    LockError, StorageError, and the errors of `gather`: what was not removed yet stays. Run again."""
    now_ms = clock_ms() if dry_run else storage_ms(table.storage)
    seen = table.snapshot(cached=False)
    newest = newest_time(seen.timeline)
    items, foreign = list_items(seen)
    choice = from_one_snapshot(partial(_chosen, seen, items, newest, options, now_ms))
    found, kept = choice.orphans, choice.kept
    if not dry_run:
        done = list(_removed(table, found, newest, options, lock, now_ms))
        found = tuple(item for one in done for item in one.orphans)
        kept += tuple(item for one in done for item in one.kept)
    is_over = partial(_is_over, table, newest, options, now_ms)
    return OrphanResult(
        orphans=tuple(_orphan(item, now_ms) for item in found),
        files=sum(item.files for item in found),
        bytes=sum(item.bytes for item in found),
        kept=kept,
        foreign=tuple(foreign),
        uploads=abort_uploads(table.storage, is_over, options.older_than_s, dry_run=dry_run),
        reasons=dict(Counter(one.why for one in kept)),
    )


def _removed(
    table: Table, items: Sequence[Item], newest: str, options: OrphanOptions, lock: TableLock, now_ms: int
) -> Iterator[OrphanChoice]:
    """What was removed of these items, and what stays after all, by batches."""
    for some in _batches(items):
        with exclusive(table, lock, "remove orphan files") as held:
            storage = held.storage
            there = [i for i in prefetched(some, partial(found_again, storage)) if i is not None]
            choice = from_one_snapshot(partial(_chosen, held, there, newest, options, now_ms))
            going = choice.orphans
            storage.delete_all([item.path for item in going if not item.is_folder])
            for item in going:
                if item.is_folder:
                    storage.delete_folder(item.path)
        for item in going:
            _log.info("orphan_removed", table=table.storage.base_path, path=item.path, bytes=item.bytes)
        yield choice


def _is_over(table: Table, newest: str, options: OrphanOptions, now_ms: int, path: str) -> bool:
    """Whether an unfinished upload to a path, old enough, is of an instant that is gone. Nothing of it is visible."""
    item = upload_item(path)
    if item is None or (item.kind is OrphanKind.LOG and not table.layout.has_completion_times):
        return False
    if item.kind is OrphanKind.LOG:
        item = replace(item, kind=OrphanKind.BASE)  # it has no blocks yet
    return bool(_chosen(table.snapshot(cached=False), [item], newest, options, now_ms).orphans)


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    """About `_AT_ONCE` items each, data files first; those of one file group are in one batch."""
    batch: list[Item] = []
    ordered = sorted(items, key=lambda i: (i.group is None, i.group or ("", ""), i.path))
    for _, group in groupby(ordered, key=lambda i: i.group or i.path):
        batch += group
        if len(batch) >= _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _orphan(item: Item, now_ms: int) -> Orphan:
    ended = f"instant {item.instant} " + ("is gone" if item.kind.is_data else "has ended")
    return Orphan(
        path=item.path,
        kind=item.kind.value,
        instant=item.instant,
        why=ended if item.instant else "no process writes it any more",
        files=item.files,
        bytes=item.bytes,
        age_s=round((now_ms - item.modified_ms) / 1000, 1),
    )


def run_service(table: Table, options: OrphanOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    done = remove_orphans(table, options, lock, dry_run=means.dry_run)
    removed = f"{plural(done.files, 'file')} {means.did('removed')}, {human_bytes(done.bytes)}"
    what = removed if done.files else "no orphan files"
    return ServiceAnswer(what=what, files=done.files, bytes=done.bytes)
