"""The names of a table's columns in its files (pure).

They differ from the table's where columns were renamed, or dropped and added again (tables whose columns evolve on
read, see `table/evolved_schema.py`), or written with other case (`names_in`)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias

from ..errors import UnsupportedError

Names: TypeAlias = Mapping[str, str | None]
"""The name in a file by the table's name, where it differs; None: the file does not have the column."""


SAME_NAMES: Names = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNames:
    """The names in the files of each instant. Picklable.
    `commits`: by the write's instant, as its commit records them. `changes`: the names from an instant on, ascending,
    for files whose commit is archived or does not exist yet. `unknown_before`: names in earlier files are unknown."""

    commits: Mapping[str, Names] = field(default_factory=dict)
    changes: tuple[tuple[int, Names], ...] = ()
    unknown_before: int = 0

    def __bool__(self) -> bool:
        """Whether names differ, or may differ, in any file."""
        return bool(self.changes)

    def at(self, instant: str) -> Names:
        """The names in a file, or a log block, that an instant wrote. UnsupportedError: they are not known."""
        if instant in self.commits:
            return self.commits[instant]
        if not self.changes:
            return SAME_NAMES
        time = int(instant)
        if time < self.unknown_before:
            what = "the columns of a file from before the table's first change of columns are not known"
            expected = "the commit before the change, active or archived"
            found = f"an archive without it; the change is {self.unknown_before}"
            todo = "Compact its file group with Hudi: then it has a newer base file."
            raise UnsupportedError(what, instant=instant, expected=expected, found=found, todo=todo)
        at = bisect_right(self.changes, time, key=itemgetter(0)) - 1
        return self.changes[max(at, 0)][1]


def names_in(columns: Collection[str], names: Names, there: Collection[str], where: str = "") -> Names:
    """The names of all the columns of a table, or the fields of a record, in a file with the names `there`. Hudi on
    Spark ignores case. So a column that a file does not have may exist there with other case, unless the columns evolve
    on read: then their numbers identify them. UnsupportedError: the file, named by `where`, has several."""
    if names or there == columns:
        return names
    present, known = frozenset(there), frozenset(columns)
    lacking = [name for name in columns if name not in present]
    if not lacking:
        return names
    by_case = defaultdict[str, list[str]](list)
    for name in there:
        if name not in known:
            by_case[name.lower()].append(name)
    found = dict[str, str | None]()
    for name in lacking:
        alike = by_case.get(name.lower(), [])
        if len(alike) > 1:
            what = "columns whose names differ by case only are not supported"
            raise UnsupportedError(what, path=where or None, expected=f"one column for {name}", found=", ".join(alike))
        if alike:
            found[name] = alike[0]
    return found


def stored(columns: Collection[str], names: Names, there: Collection[str]) -> list[str]:
    """The names of the columns in a file with the columns `there`, without those that it does not have."""
    names, present = names_in(columns, names, there), frozenset(there)
    found = (names.get(name, name) for name in columns)
    return list(dict.fromkeys(name for name in found if name is not None and name in present))
