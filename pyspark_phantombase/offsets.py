"""Offsets of a stream (pure).

    {"completed": <moment>}         all writes up to that moment are delivered; "" before everything
    {"requested": <moment>}         the same on version 6
    {..., "next": <moment>, "partition": <path>, "file_id": <id>}
                                    and of the write after it those file groups that are not after this one
    {..., "begin": <moment>}        the stream began there, and this is its first offset, or the end of its first batch

Spark stores the end of each batch only, and asks for the first offset anew at each start until its first batch is
delivered. So that end says where its batch began: "now" is another moment by then.

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
    """Everything up to `moment` is delivered, and a part of what comes next. `begin`: of the stream's first batch."""

    moment: str
    part: Part | None = None
    begin: str | None = None

    @property
    def is_first(self) -> bool:
        """The stream has delivered nothing yet."""
        return self.part is None and self.begin == self.moment

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
        return Offset(moment=stored[axis], part=part, begin=stored.get("begin"))

    def stored(self, table: Table) -> dict[str, str]:
        """As Spark stores it."""
        found = {_axis(table): self.moment}
        if self.part is not None:
            partition, file_id = self.part.last
            found |= {"next": self.part.moment, "partition": partition, "file_id": file_id}
        return found if self.begin is None else {**found, "begin": self.begin}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What lies between two offsets: the window (begin, end], and of it the file groups after `after`, up to `upto`."""

    begin: str
    end: str
    after: GroupKey | None = None
    upto: GroupKey | None = None

    @staticmethod
    def between(start: Offset, end: Offset) -> Batch | None:
        """The offsets are one after the other, as `latestOffset` gives them; or `start` is where the stream would begin
        now, and `end` that of its first batch, planned at an earlier start. None: an empty batch.
        """
        begin, upto = start.moment, end.moment if end.part is None else end.part.moment
        if start.is_first and end.begin is not None:
            begin = end.begin
        elif start.is_first and begin > upto:  # of a release that did not keep the begin
            return None
        return Batch(
            begin=begin,
            end=upto,
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
