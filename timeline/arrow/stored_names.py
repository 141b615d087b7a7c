"""Names of a table's columns in its files, where they differ: columns renamed since, or dropped and added anew.

Only tables whose columns evolve on read have such files; see `table/evolved_schema.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
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

    `commits`: by the write's instant, as its commit records them. `changes`: what holds from an instant on, ascending:
    for files whose commit is archived or not there yet. `unknown_before`: of earlier files nothing is known.
    """

    commits: Mapping[str, Names] = field(default_factory=dict)
    changes: tuple[tuple[int, Names], ...] = ()
    unknown_before: int = 0

    def __bool__(self) -> bool:
        """Whether names differ anywhere, or may."""
        return bool(self.changes)

    def at(self, instant: str) -> Names:
        """The names in a file, or a log block, that an instant wrote. UnsupportedError: they are not known."""
        if instant in self.commits:
            return self.commits[instant]
        if not self.changes:
            return SAME_NAMES
        time = int(instant)
        if time < self.unknown_before:
            raise UnsupportedError(
                "the columns of a file from before the table's first change of columns are not known",
                instant=instant,
                expected="the commit before the change, active or archived",
                found=f"an archive without it; the change is {self.unknown_before}",
                todo="Compact its file group with Hudi: then it has a newer base file.",
            )
        at = bisect_right(self.changes, time, key=itemgetter(0)) - 1
        return self.changes[max(at, 0)][1]


def stored(columns: Iterable[str], names: Names) -> dict[str, str]:
    """The columns by their names in a file, those that it does not have left out."""
    found = ((name, names.get(name, name)) for name in columns)
    return {there: name for name, there in found if there is not None}
