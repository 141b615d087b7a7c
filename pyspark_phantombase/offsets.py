"""Offsets of a stream (pure).

    {"completed": <moment>}         all writes up to that moment are delivered; "" before everything
    {"requested": <moment>}         the same on version 6
    {..., "next": <moment>, "partition": <path>, "file_id": <id>}
                                    and of the write after it those file groups that are not after this one

The moment is a completion time; on version 6, which has none, a requested time before the first pending write. The
requested times of newer versions would not do: a write that completes late would be passed over. File groups are in the
order of partition and file id; all parts of a write are read as of its moment, where its file groups never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phantombase.timeline.errors import UsageError
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is delivered of a write at `moment`: the file groups up to and with `last`."""

    moment: str
    last: GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Everything up to `moment` is delivered, and a part of what comes next."""

    moment: str
    part: Part | None = None

    @staticmethod
    def of(table: Table, stored: Mapping[str, str]) -> Offset:
        """UsageError: the table was upgraded since, so that the offset says nothing of completion times, or the
        reverse."""
        axis = _axis(table)
        if axis not in stored:
            raise UsageError(
                "the offset of this stream is of another version of the table",
                path=table.storage.base_path,
                expected=axis,
                found=", ".join(f"{name} {value}" for name, value in stored.items()),
                todo="Start a new checkpoint, with the option `begin`: from there on rows may come a second time.",
            )
        part = None
        if "next" in stored:
            part = Part(moment=stored["next"], last=(stored["partition"], stored["file_id"]))
        return Offset(moment=stored[axis], part=part)

    def stored(self, table: Table) -> dict[str, str]:
        """As Spark stores it."""
        found = {_axis(table): self.moment}
        if self.part is not None:
            partition, file_id = self.part.last
            found |= {"next": self.part.moment, "partition": partition, "file_id": file_id}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What lies between two offsets: the window (begin, end], and of it the file groups after `after`, up to `upto`."""

    begin: str
    end: str
    after: GroupKey | None = None
    upto: GroupKey | None = None

    @staticmethod
    def between(start: Offset, end: Offset) -> Batch:
        """The offsets are one after the other, as `latestOffset` gives them."""
        return Batch(
            begin=start.moment,
            end=end.moment if end.part is None else end.part.moment,
            after=None if start.part is None else start.part.last,
            upto=None if end.part is None else end.part.last,
        )

    @property
    def is_part(self) -> bool:
        """Some file groups of the window belong to another batch."""
        return self.after is not None or self.upto is not None

    def holds(self, group: GroupKey) -> bool:
        """Whether a file group of the window belongs to this batch."""
        return (self.after is None or group > self.after) and (self.upto is None or group <= self.upto)


def _axis(table: Table) -> str:
    return "completed" if table.layout.has_completion_times else "requested"
