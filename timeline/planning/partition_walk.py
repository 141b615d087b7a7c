"""The partitions that a planning lists, lazily and in order, and its notes: file groups found, planned and left out.

A few partitions are listed ahead; partitions after the one where the planner stops are not listed. A plan stores its
notes in `extraMetadata` under `phantombase.plan`. Their `waiting` lists where file groups were left out or not
examined: the next planning lists only these partitions, and those written since."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..errors import MalformedError, reason_of
from ..format.compaction_plan import CompactionPlan
from ..format.table_config import TableConfig
from ..prefetch import AHEAD, Threads
from ..shown import Shown
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import join
from ..view.view_loader import is_partition, subfolders


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A folder (a partition, or above partitions) in which file groups wait for a plan: those whose newest slice is
    older than `since`, an instant time; None: all file groups."""

    folder: str
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedPartition:
    waiting: Waiting
    entries: list[Entry]


class PartitionWalk:
    """Partitions at or under some folders, depth first; folders in the order given, names in alphabetical order. A
    missing folder counts as a partition without entries. `rest`: folders not visited yet, in order."""

    def __init__(self, storage: Storage, config: TableConfig, folders: Iterable[Waiting]) -> None:
        self._storage, self._config, self._todo = storage, config, deque(folders)

    @property
    def rest(self) -> tuple[Waiting, ...]:
        return tuple(self._todo)

    def __iter__(self) -> Iterator[WalkedPartition]:
        listings: dict[Waiting, Future[list[Entry] | None]] = {}
        with Threads(AHEAD) as pool:
            try:
                while self._todo:
                    for number in range(min(AHEAD, len(self._todo))):
                        if (ahead := self._todo[number]) not in listings:
                            listings[ahead] = pool.submit(listed_if_there, self._storage, ahead.folder)
                    here = self._todo.popleft()
                    entries = listings.pop(here).result()
                    if entries is None or is_partition(entries, self._config):
                        yield WalkedPartition(waiting=here, entries=entries or [])
                    else:
                        below = [Waiting(folder=f, since=here.since) for f in subfolders(here.folder, entries)]
                        self._todo.extendleft(reversed(below))
            finally:
                for listing in listings.values():
                    listing.cancel()


def first_and_last(waiting: Iterable[Waiting]) -> list[Waiting]:
    """The first and the last entry of each folder: the longest wait and the last writes; others are redundant."""
    first: dict[str, Waiting] = {}
    last: dict[str, Waiting] = {}
    for one in waiting:
        first.setdefault(one.folder, one)
        last.pop(one.folder, None)
        last[one.folder] = one
    return list(dict.fromkeys([*first.values(), *last.values()]))


NOTES = "phantombase.plan"


class Rule(Enum):
    NO_LOGS = "no log files"
    BUSY = "in a pending table service"
    EXCLUDED = "excluded"
    NOT_DUE = "not due"
    NOT_PICKED = "not picked"
    UNMERGEABLE = "cannot be merged"
    STRATEGY = "strategy"
    LIMIT = "limit"

    @property
    def comes_back(self) -> bool:
        """Whether a later plan may take it without a write to it since then."""
        return self is not Rule.NO_LOGS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Shown):
    partition: str
    file_id: str
    rule: Rule
    why: str

    @property
    def path(self) -> str:
        return join(self.partition, self.file_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNotes(Shown):
    """Notes of one planning: partitions and file groups examined, bytes that its plans read and write (as Hudi
    estimates them), and the number of files that a reader of all those file groups opens before and after."""

    partitions: int
    file_groups: int
    read_bytes: int
    write_bytes: int
    runs_before: int
    runs_after: int
    left: tuple[LeftOut, ...]

    @property
    def unmergeable(self) -> tuple[LeftOut, ...]:
        """The file groups that a compactor would refuse, or that could not be read."""
        return tuple(o for o in self.left if o.rule is Rule.UNMERGEABLE)

    def summary(self) -> dict[str, Any]:
        """The notes as plain data; `read_amplification`: files that a reader opens for each file group."""
        groups = max(1, self.file_groups)
        return {
            "partitions": self.partitions,
            "file_groups": self.file_groups,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "read_amplification": round(self.runs_before / groups, 3),
            "read_amplification_after": round(self.runs_after / groups, 3),
            "left_out": dict(sorted(Counter(o.rule.value for o in self.left).items())),
        }


def encode_notes(notes: PlanNotes, reasons: Mapping[str, str], waiting: Sequence[Waiting] | None, why: str = "") -> str:
    """The notes as stored in a plan. `reasons`: see `reasons_of`; `waiting` None: another plan stores it. `why`: the
    plan was due."""
    record: dict[str, Any] = {**notes.summary(), "reasons": dict(reasons), **({"why": why} if why else {})}
    if waiting is not None:
        record["waiting"] = [[w.folder, w.since] for w in waiting]
    return json.dumps(record, separators=(",", ":"))


def reasons_of(plan: CompactionPlan) -> dict[str, str]:
    """Why file groups (`partition/file id`) are in a phantombase plan, if for another reason than log files."""
    return dict(_notes_in(plan).get("reasons", {}))


def why_planned(plan: CompactionPlan) -> str:
    """Why a phantombase plan was due; "" if that is not known, or Hudi made the plan."""
    try:
        return str(_notes_in(plan).get("why", ""))
    except (ValueError, AttributeError):  # only to be shown
        return ""


def _notes_in(plan: CompactionPlan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((plan.extra_metadata or {}).get(NOTES, "{}"))
    return found


def decode_waiting(text: str, instant: str) -> list[Waiting] | None:
    """Where to look, besides partitions written since the plan of that instant; None: its notes do not contain it."""
    try:
        found = json.loads(text).get("waiting")
        return None if found is None else [Waiting(folder=f, since=s or instant) for f, s in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise MalformedError(
            "unreadable notes in a compaction plan", path=NOTES, instant=instant, found=reason_of(error)
        ) from error
