"""The newest slices of plain file groups, from names and sizes only (pure).

The result is that of `grouping.file_groups` and `view.latest_slice`, without an object for each file. A group is plain
if only its files determine its slices: it is in no plan and not replaced, its newest slice that counts has a base file,
all its logs are on base files, and every size is known. Other groups are left to `view`. Tests compare the two
(tests/timeline/planning/test_plain_slices.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

from ..format.file_name import BASE_NAME, LOG_NAME
from ..format.layout import Slicing
from ..instants.timeline import Timeline
from ..storage.contract import Entry
from .view import GroupKey, ViewFacts
from .witness import FileRecord, Names, named_instant

_Log: TypeAlias = tuple[str, int, str, Entry]
"""Instant, version and token, which sort like `LogFileName.sort_key`, and the entry."""


class PlainSlice(NamedTuple):
    """A slice with a base file and at least one log file, these in merge order."""

    base_instant: str
    file_id: str
    base: Entry
    logs: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class PlainRules:
    """One state of a table. `aside`: further file groups that are not plain."""

    timeline: Timeline
    facts: ViewFacts
    aside: Collection[GroupKey] = frozenset()

    def split(
        self, partition: str, entries: Iterable[Entry], accept: Callable[[PlainSlice], bool]
    ) -> tuple[list[PlainSlice], list[Entry]]:
        """The newest slices of the plain groups of one partition, and the entries of all other groups. A folder may
        have the name of a file, but no size. A group whose slice is not accepted is not plain."""
        if self.facts.shared or self.facts.witness.uncompleted:
            return [], list(entries)
        bases: dict[str, list[tuple[str, Entry]]] = {}
        logs: dict[str, list[_Log]] = {}
        others: list[Entry] = []
        for entry in entries:
            if entry.name.startswith("."):
                log = LOG_NAME.fullmatch(entry.name)
                if log is not None and not log[5]:
                    file_id, instant, version, token, _ = log.groups()
                    logs.setdefault(file_id, []).append((instant, int(version), token or "", entry))
                    continue
            elif entry.name.endswith(".parquet") and (base := BASE_NAME.fullmatch(entry.name)) is not None:
                bases.setdefault(base[1], []).append((base[3], entry))
                continue
            others.append(entry)
        found: list[PlainSlice] = []
        for file_id in {**bases, **logs}:  # not a set: plans are the same in every process
            of_base, of_log = bases.get(file_id, []), logs.get(file_id, [])
            plain = self._plain((partition, file_id), of_base, of_log) if of_base and of_log else None
            if plain is not None and accept(plain):
                found.append(plain)
            else:
                others += [entry for _, entry in of_base]
                others += [entry for *_, entry in of_log]
        return found, others

    def _plain(self, key: GroupKey, bases: list[tuple[str, Entry]], logs: list[_Log]) -> PlainSlice | None:
        """The newest slice of one group; None: it is not plain."""
        facts = self.facts
        if key in facts.pending_plans or key in facts.replaced or key in facts.forming or key in self.aside:
            return None
        compacted, names, known = facts.compacted.get(key), facts.witness.names(key), facts.witness.known
        visible: dict[str, Entry] = {}
        for instant, entry in bases:
            named = compacted.get(instant) if compacted else None
            if named != entry.name if named else not self._is_committed(instant):
                continue
            if (entry.name in names or instant in known) and not _is_whole(names.get(entry.name), entry, exact=True):
                return None
            if instant in visible:
                return None
            visible[instant] = entry
        newest = max(visible, default="")
        below = facts.witness.below_of(key)
        if not visible or (compacted and max(compacted) > newest) or any(named_instant(t) > newest for t in below):
            return None
        stack = self._stack(visible, newest, logs)
        if not stack or self._lacks(names, newest, logs, stack):
            return None
        stack.sort()
        base, files = visible[newest], [entry for *_, entry in stack]
        if base.size <= 0 or min(entry.size for entry in files) <= 0:
            return None
        return PlainSlice(newest, key[1], base, tuple(files))

    def _lacks(self, names: Names, newest: str, logs: list[_Log], stack: list[_Log]) -> bool:
        """Whether a file that completed writes name may be missing or short, or a log is from another attempt."""
        by_name = self.timeline.layout.slicing is Slicing.BY_BASE_INSTANT
        for text in names.keys() - {entry.name for *_, entry in logs}:
            if text.startswith("."):
                instant: str | None = text.partition(".log.")[0].rpartition("_")[2]
                since = instant if by_name else self._completion_time(str(instant))
                if since is None or max(since, str(instant)) >= newest:
                    return True
            elif text.rpartition("_")[2].partition(".")[0] > newest:
                return True
        known = self.facts.witness.known
        return any(
            (entry.name in names or instant in known) and not _is_whole(names.get(entry.name), entry)
            for instant, _, _, entry in stack
        )

    def _stack(self, visible: Collection[str], newest: str, logs: list[_Log]) -> list[_Log]:
        """The logs on the newest base file; empty if some logs may form a separate slice."""
        if self.timeline.layout.slicing is Slicing.BY_BASE_INSTANT:
            if any(log[0] > newest for log in logs):
                return []
            return [log for log in logs if log[0] == newest]
        oldest, found = min(visible), list[_Log]()
        for log in logs:
            completion = self._completion_time(log[0])
            if completion is None:
                continue
            if completion < oldest:
                return []
            if completion >= newest:
                found.append(log)
        return found

    @cached_property
    def _is_committed(self) -> Callable[[str], bool]:
        return cache(self.timeline.is_committed)

    @cached_property
    def _completion_time(self) -> Callable[[str], str | None]:
        return cache(self.timeline.completion_time)


def _is_whole(writes: tuple[FileRecord, ...] | None, entry: Entry, *, exact: bool = False) -> bool:
    """Whether completed writes name a file and the file is as named; `exact`: no write appends to it."""
    if writes is None:
        return False
    size = max(w.size for w in writes)
    return size == 0 or entry.size == size or (entry.size > size and not exact)
