"""What writers say they do, and what the table may read by it.

Each writer has a journal: one line before a write begins, with all it changes, and one when it has ended, with whether
it was committed. A key belongs to one writer, which does one write at a time, so for each key the last committed write
decides, and a reader that looks at the journals before and after it reads knows all that it may find."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

Row: TypeAlias = tuple[int, float] | None
"""(ts, fare); None: there is no such row."""
Changes: TypeAlias = Mapping[str, Row]


@dataclass
class Write:
    """A write that has begun. `committed`: None while it is under way."""

    table: str
    changes: Changes
    committed: bool | None = None


class Journal:
    """A writer's own."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def begin(self, table: str, changes: Changes) -> None:
        """Before the write."""
        self._say({"table": table, "changes": changes})

    def end(self, committed: bool) -> None:
        """After it."""
        self._say({"committed": committed})

    def _say(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


@dataclass
class _Follower:
    """Reads a journal as it grows."""

    path: Path
    offset: int = 0
    write: Write | None = None
    rest: bytes = b""

    def news(self) -> list[bytes]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines


@dataclass
class Watch:
    """What a table may read, from one moment on: what is settled, and the writes under way, which may yet fail."""

    table: str
    settled: dict[str, Row]
    writes: list[Write]


@dataclass
class Model:
    """What all writers have written so far: of each table the rows by key."""

    journals: list[Path]
    tables: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict))
    committed: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self._followers = [_Follower(path) for path in self.journals]

    def rows(self, table: str) -> dict[str, tuple[int, float]]:
        """The rows of a table when nobody writes."""
        self._catch_up()
        assert not [f for f in self._followers if f.write is not None], "a write is under way"
        return {key: row for key, row in self.tables[table].items() if row is not None}

    def watch(self, table: str) -> Watch:
        """Before reading a table."""
        self._catch_up()
        under_way = [f.write for f in self._followers if f.write is not None and f.write.table == table]
        return Watch(table, dict(self.tables[table]), under_way)

    def check(self, watch: Watch, found: Mapping[str, Row]) -> None:
        """After reading it: every key shows what was committed before, or what was written meanwhile."""
        writes = [*watch.writes, *(w for w in self._catch_up() if w.table == watch.table)]
        may: dict[str, set[Row]] = {key: {row} for key, row in watch.settled.items()}
        for write in writes:
            for key, row in write.changes.items() if write.committed is not False else ():
                may.setdefault(key, {None}).add(row)
        wrong = {k: (found.get(k), may.get(k)) for k in {*may, *found} if found.get(k) not in may.get(k, {None})}
        assert not wrong, f"{watch.table}, {len(wrong)} keys, found and possible: {dict(sorted(wrong.items())[:5])}"

    def _catch_up(self) -> list[Write]:
        """Takes in what the journals say; the writes that have begun since."""
        began = []
        for follower in self._followers:
            for line in follower.news():
                said = json.loads(line)
                if "table" in said:
                    changes = {k: None if row is None else (row[0], row[1]) for k, row in said["changes"].items()}
                    follower.write = Write(said["table"], changes)
                    began.append(follower.write)
                else:
                    self._end(follower, said["committed"])
        return began

    def _end(self, follower: _Follower, committed: bool) -> None:
        write, follower.write = follower.write, None
        assert write is not None
        write.committed = committed
        self.committed += committed
        self.lost += not committed
        if committed:
            self.tables[write.table].update(write.changes)
