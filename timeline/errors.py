"""The one error tree of phantombase (pure).

    PhantombaseError                base of everything raised on purpose
    ├── UsageError                  a contradictory or impossible request (option, argument)
    ├── NotATableError              the path does not hold a Hudi table
    ├── UnsupportedError            the table uses something that is refused by name
    ├── MalformedError              bytes on disk are not what the format says
    ├── MissingFileError            a file that the timeline or a plan names is not there
    ├── UnknownStateError           a lookup failed: the answer is unknown, which is never "no"
    ├── LockError                   the table lock could not be taken in time
    │   └── ClaimedError            another compactor of ours is at work on the table
    ├── ConflictError               somebody else changed the table meanwhile
    │   ├── AttemptDeadError        this attempt was declared dead: it may publish nothing
    │   ├── BarrierError            delta commits that could still write under the plan are pending
    │   ├── StalePlanError          the log files of a plan can never be merged with each other (any more)
    │   └── TableChangedError       the table was upgraded, or its settings changed, while it was looked at
    ├── LedgerError                 the books of a compaction do not balance: nothing is published
    ├── ClockError                  this process's clock or time zone is not that of the table's writers
    ├── StorageError                the storage refused or broke a promise (put-if-absent, place)
    ├── PressureError               a file group's log is as long as a write may leave it
    ├── StoppedError                work was stopped by its time limit: nothing is wrong
    ├── SparkError                  Spark did not start or lost a job
    └── ZooKeeperError              ZooKeeper cannot be started or reached

A message has what, where (path, instant), expected, found, and what to do next.
"""

from __future__ import annotations


class PhantombaseError(Exception):
    """Base of every error raised on purpose; its text is one line fit for a user."""

    def __init__(
        self,
        what: str,
        *,
        path: str | None = None,
        instant: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        todo: str | None = None,
    ) -> None:
        self.what = what
        self.path = path
        self.instant = instant
        self.expected = expected
        self.found = found
        self.todo = todo
        super().__init__(self._line())

    def _line(self) -> str:
        parts = [_short(self.what)]
        if self.path is not None:
            parts.append(f"at {_short(self.path)}")
        if self.instant is not None:
            parts.append(f"instant {_short(self.instant)}")
        if self.expected is not None:
            parts.append(f"expected {_short(self.expected)}")
        if self.found is not None:
            parts.append(f"found {_short(self.found)}")
        line = "; ".join(parts)
        return f"{line}. {self.todo}" if self.todo else line

    def __reduce__(self) -> tuple[object, ...]:
        """Keyword-only details survive pickling: errors travel from Spark tasks to the driver."""
        return _rebuild, (
            type(self),
            self.what,
            self.path,
            self.instant,
            self.expected,
            self.found,
            self.todo,
        )


_PART_CHARACTERS_MAX = 800


def _short(text: str) -> str:
    """One line of bounded length: what was found may be a whole damaged file, or a decoder's many lines."""
    if len(text) > _PART_CHARACTERS_MAX:
        text = f"{text[:_PART_CHARACTERS_MAX]}... ({len(text)} characters)"
    return " ".join(text.split()) if "\n" in text or "\r" in text else text


def _rebuild(
    kind: type[PhantombaseError],
    what: str,
    path: str | None,
    instant: str | None,
    expected: str | None,
    found: str | None,
    todo: str | None,
) -> PhantombaseError:
    return kind(what, path=path, instant=instant, expected=expected, found=found, todo=todo)


class UsageError(PhantombaseError):
    """A contradictory or impossible request."""


class NotATableError(PhantombaseError):
    """The path does not hold a Hudi table."""


class UnsupportedError(PhantombaseError):
    """The table uses something that is refused by name."""


class MalformedError(PhantombaseError):
    """Bytes on disk are not what the format says."""


class MissingFileError(PhantombaseError):
    """A file that the timeline or a plan names is not there."""


class UnknownStateError(PhantombaseError):
    """A lookup failed, so the answer is unknown; unknown is never taken for "no"."""


class LockError(PhantombaseError):
    """The table lock could not be taken in time."""


class ClaimedError(LockError):
    """Another compactor of ours is at work on the table."""


class ConflictError(PhantombaseError):
    """Somebody else changed the table meanwhile."""


class AttemptDeadError(ConflictError):
    """This attempt was declared dead (or decided by somebody else): it may publish nothing."""


class BarrierError(ConflictError):
    """Delta commits that could still write under the plan are pending."""


class StalePlanError(ConflictError):
    """The log files of a plan can never be merged with each other (any more): it is to be taken back."""


class TableChangedError(ConflictError):
    """The table was upgraded, or its settings changed, while it was looked at: open it again."""


class LedgerError(PhantombaseError):
    """The books of a compaction do not balance: nothing is published."""


class ClockError(PhantombaseError):
    """This process's clock or time zone is not that of the table's writers: it may choose no instant."""


class StorageError(PhantombaseError):
    """The storage refused an operation or broke a promise the protocol rests on."""


class StoppedError(PhantombaseError):
    """Work was stopped by its time limit: nothing is wrong, and the next run goes on from there."""


class PressureError(PhantombaseError):
    """A write would make a file group's log too long, and no compaction made room in time. Nothing of it is visible."""


class SparkError(PhantombaseError):
    """Spark did not start, or a job was lost for a reason that is not one of this tree."""


class ZooKeeperError(PhantombaseError):
    """ZooKeeper cannot be started or reached. Nothing is wrong with a table: no safety rests on ZooKeeper."""
