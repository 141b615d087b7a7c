"""Which files of a table are orphans, and why the others stay (pure).

The name of a data file, of a marker folder or of a heartbeat has an instant. Such a file is an orphan if its instant is
gone: not on the timeline, not archived, and no record of a process names it or may still come to name it. The rules, in
their order; the first that holds keeps the file:

    timeline    an instant of that time is on the active timeline, in any state: a pending one is rolled back first, the
                files of a completed one belong to clean
    archive     the instant is archived, or older than the active timeline: readers count it as completed
    newer       the instant is later than all that the table had used when its files were listed
    process     a rollback, heartbeat, attempt, pin or young marker folder shows that a process may need the files
    young       it changed less than `older_than` ago, by the clock of the storage
    named       a plan, a pending or completed write, a savepoint, a marker or the metadata table names the file; or one
                of the first three its instant: it was built upon it, so that the instant was completed, and was lost
    blocks      a log file has a block of another instant, or one of which the instant is unknown
    group       another file of the same file group and instant stays"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.option import duration_s, option, spelled_class
from phantombase.timeline.read.pins import Pin
from phantombase.timeline.shown import Shown
from phantombase.timeline.view.view import GroupKey

_LEAST_S = 3600
ROWS_S = 24 * 3600
"""The least age after which rows count as left by a killed write."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanOptions:
    """`older_than`: a file that changed later is kept, like `3d`."""

    older_than: str = option(
        "3d", "only files that have not changed for this long, like 3d or 12h; at least 1h", metavar="DURATION"
    )

    def __post_init__(self) -> None:
        if self.older_than_s < _LEAST_S:
            raise UsageError("older-than is too short: a writer may be at work", expected="1h", found=self.older_than)

    @property
    def older_than_s(self) -> int:
        """The same in seconds. UsageError: no duration."""
        return duration_s(self.older_than, "older-than")


class OrphanKind(Enum):
    """What an item is. Other names are foreign: they are reported, and never removed."""

    BASE = "base file"
    LOG = "log file"
    STAGED = "staged files"
    MARKERS = "markers"
    HEARTBEAT = "heartbeat"
    TEMPORARY = "temporary file"
    ROWS = "staged rows"

    @property
    def is_data(self) -> bool:
        return self in (OrphanKind.BASE, OrphanKind.LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file, or the folder of one instant's staged files or markers, or of rows. `path`: relative to the table.
    `instant`: in its name; "" in that of a temporary file, or of rows. `bytes`, `files`: of all its files.
    `modified_ms`: of the youngest, since the epoch. `group`: the file group of a data file."""

    path: str
    kind: OrphanKind
    instant: str
    bytes: int
    modified_ms: int
    files: int = 1
    group: GroupKey | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether all that is below the path goes."""
        return self.kind in (OrphanKind.STAGED, OrphanKind.MARKERS, OrphanKind.ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFacts:
    """What the choice needs. `timeline`: loaded after the items were listed, with its archive. `archived`: times in the
    archive, of any action. `newest`: the greatest time in use before the items were listed. `processes`: by instant,
    why a process may need its files. `named`: by file name, or instant, what names it. `blocks`: by path of a log file,
    why its blocks keep it."""

    timeline: Timeline
    newest: str
    archived: Collection[str] = frozenset()
    processes: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptItem(Shown):
    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanChoice:
    """`orphans`: items to remove. `kept`: data files whose instant is not completed, and other items, that stay."""

    orphans: tuple[Item, ...]
    kept: tuple[KeptItem, ...]


def why_by_time(item: Item, facts: OrphanFacts) -> str | None:
    """Why an item stays by its instant, the timeline and processes; None: its instant is gone, or it has none. Staged
    files, markers and heartbeats are left over once their instant is completed."""
    if item.kind in (OrphanKind.TEMPORARY, OrphanKind.ROWS):
        return None
    time = item.instant
    if item.kind.is_data or not _is_over(time, facts.timeline):
        why = why_counted(time, facts)
        if why is not None:
            return why
    return facts.processes.get(time)


def why_counted(time: str, facts: OrphanFacts) -> str | None:
    """Why an instant is not gone, by the timeline."""
    timeline = facts.timeline
    for instant in sorted(timeline.at(time), key=lambda i: i.completed):
        return f"{instant.action} {time} is " + ("completed" if instant.completed else "pending: roll it back first")
    if not timeline.completed:
        return "no completed write is on the active timeline: what is archived cannot be known"
    if time in facts.archived:
        return f"instant {time} is archived"
    if time < counted_from(timeline):
        return f"instant {time} is older than the completed ones of the active timeline, and counts as archived"
    if time > facts.newest:
        return f"instant {time} is later than the newest one: a writer may have just begun"
    return None


def counted_from(timeline: Timeline) -> str:
    """Writes before this time that are not on the timeline count as completed, for phantombase or Hudi. Archiving may
    have passed savepoints, and a writer whose clock is slow may begin a write before what is archived. Hudi counts from
    the first completed write, or pending compaction, that no savepoint keeps."""
    saved = {i.requested_time for i in timeline.instants if i.action == "savepoint"}
    counted = (i for i in timeline.instants if i.is_write and (i.completed or i.action == "compaction"))
    unsaved = (i.requested_time for i in counted if i.requested_time not in saved)
    return max(timeline.start, min(unsaved, default=timeline.start))


def choose(items: Sequence[Item], facts: OrphanFacts, older_s: float, now_ms: int) -> OrphanChoice:
    """The orphans among the items. `now_ms`: by the clock of the storage."""
    found: dict[Item, str | None] = {}
    staying: dict[tuple[GroupKey | None, str], str] = {}
    for item in items:
        why = why_by_time(item, facts) or why_young(item, older_s, now_ms) or facts.named.get(item.name)
        why = found[item] = why or facts.named.get(item.instant) or facts.blocks.get(item.path)
        if why is not None and item.group is not None:
            staying[item.group, item.instant] = item.path
    orphans, kept = list[Item](), list[KeptItem]()
    for item, why in found.items():
        other = None if item.group is None else staying.get((item.group, item.instant))
        if why is None and other is not None:
            why = f"another file of its file slice stays, {other}"
        if why is None:
            orphans.append(item)
        else:
            kept.append(KeptItem(path=item.path, why=why))
    return OrphanChoice(orphans=tuple(orphans), kept=tuple(kept))


def why_young(item: Item, older_s: float, now_ms: int) -> str | None:
    if item.kind is OrphanKind.ROWS:  # no record shows whether the write that staged them still runs
        older_s = max(older_s, ROWS_S)
    return "it is younger than --older-than" if now_ms - item.modified_ms <= older_s * 1000 else None


def _is_over(time: str, timeline: Timeline) -> bool:
    """Whether all actions of an instant are completed: its staged files, markers and heartbeat are left over."""
    at = timeline.at(time)
    return all(i.completed for i in at) if at else time < timeline.start


def why_pinned(time: str, pins: Iterable[Pin], moments: Collection[str]) -> str | None:
    """Why pins keep the files of an instant that is gone. A write is rolled back only while it is the newest one. So a
    pin was put while the write counted only if no write that still counts lies between the write and the state that the
    pin holds. `moments`: of these writes."""
    for pin in pins:
        if time <= pin.holds and not any(time <= moment <= pin.holds for moment in moments):
            return f"pin {pin.name} may hold a state with instant {time}"
    return None


def why_blocks(instants: Iterable[str | None], facts: OrphanFacts) -> str | None:
    """Why the blocks of a log file keep it. `instants`: of its blocks; None: a block whose instant is unknown."""
    for time in instants:
        if time is None:
            return "a block of it is damaged, so that its writer is unknown"
        if why_counted(time, facts) is not None:
            return f"it has a block of instant {time}"
    return None
