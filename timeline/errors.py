"""The one error tree of phantombase (pure).

    PhantombaseError                base of everything raised on purpose
    ├── UsageError                  a contradictory or impossible request (option, argument)
    ├── NotATableError              the path does not hold a Hudi table
    ├── UnsupportedError            the table uses a feature that is refused by name
    ├── MalformedError              bytes on disk do not match the format
    ├── MissingFileError            a file that the timeline or a plan names does not exist
    ├── UnknownStateError           a lookup failed: the answer is unknown, which is never "no"
    │   └── UnknownCommitError      whether a write completed is unknown: it may still complete
    ├── LockError                   the table lock could not be taken in time
    │   ├── ClaimedError            another phantombase compactor works on the table
    │   └── LockLostPlanError           the lock was lost right before a plan became visible
    ├── ConflictError               another process changed the table concurrently
    │   ├── ClusteringConflictError a clustering holds a file group that a write changes, or has just replaced it
    │   ├── AttemptDeadError        this attempt was declared dead: it must not publish anything
    │   ├── BarrierError            delta commits are pending that could still write to the plan's file slices
    │   ├── StalePlanError          the files of a plan are not as they were planned any more
    │   └── TableChangedError       the table was upgraded, or its settings changed, while it was read
    ├── LedgerError                 the ledger of a compaction does not balance: nothing is published
    ├── ClockError                  the clock or time zone of this process differs from that of the table's writers
    ├── StorageError                the storage refused an operation or broke a promise (put-if-absent, place)
    │   └── NoAnswerError           a catalog did not answer
    ├── PressureError               a write would make a file group's log too long
    ├── PausedError                 a person has paused this work on the table
    ├── StoppedError                work was stopped by its time limit: nothing is wrong
    ├── SparkError                  Spark did not start or lost a job

A message has what, where (path, instant), expected, found, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self


class PhantombaseError(Exception):
    """Base of every error raised on purpose; its text is one line fit for a user. `way_out`: what helps with
    most errors of this class; one with a `todo` has its own. Commands and tracebacks show it, too."""

    way_out = ""

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
        if not todo and self.way_out:
            self.add_note(self.way_out)

    @property
    def advice(self) -> str:
        """What to do next; "" where the text says it."""
        return self.todo or self.way_out

    def _line(self) -> str:
        named = (("at", self.path), ("instant", self.instant), ("expected", self.expected), ("found", self.found))
        parts = (f"{label} {_short(part)}" for label, part in named if part is not None)
        line = "; ".join((_short(self.what), *parts))
        return f"{line.removesuffix('.')}. {self.todo}" if self.todo else line

    def below(self, base: str) -> Self:
        """The same error, its path below a base: a path within a table does not name the table."""
        if self.path is None or self.path.startswith(base):
            return self
        return self._again(self.what, f"{base}/{self.path}")

    cause: BaseException | None = None
    """The error of a library that led to this one, also where a traceback does not show it (`alone`)."""

    def alone(self) -> None:
        """Hides the causes whose reason this text has: a traceback would show each with all its calls."""
        cause = self.cause = self.cause or self.__cause__
        while cause is not None:
            reason = cause.what if isinstance(cause, PhantombaseError) else reason_of(cause)
            if reason not in str(self) and not isinstance(cause, (FileNotFoundError, NotADirectoryError)):
                break
            cause = cause.__cause__
        self.__cause__ = cause

    def place(self, base: str, given: str = "") -> None:
        """Names the table in this error, if it names no place yet, or the table as it is `given`: the table, or its
        path within the table."""
        of_files = isinstance(self, _OF_FILES) and ":" not in (self.path or "")
        if self.path is None or self.path == given:
            self.path = base
        elif self.path.startswith(_IN_TABLE):
            self.path = f"{base}/{self.path.removeprefix(_IN_TABLE)}"
        elif self.path.startswith(".hoodie") or (of_files and not self.path.startswith(("/", "~", "./", "../", base))):
            self.path = f"{base}/{self.path}"
        else:
            return
        self.args = (self._line(),)

    def at(self, path: str | None) -> Self:
        return self._again(self.what, path)

    def reworded(self, what: str) -> Self:
        return self._again(what, self.path)

    def advising(self, todo: str) -> Self:
        return self._again(self.what, self.path, todo=todo)

    def _again(self, what: str, path: str | None, **others: str) -> Self:
        return type(self)(what, **self._parts() | {"path": path, **others})

    def _parts(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in ("path", "instant", "expected", "found", "todo")}

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps the keyword-only details through pickling: errors travel from Spark tasks to the driver."""
        return partial(type(self), self.what, **self._parts()), ()


_IN_TABLE = "TABLE/"


def in_table(path: str) -> str:
    """A path within a table for an error whose other paths may be elsewhere; `place` says of which table."""
    return f"{_IN_TABLE}{path}"


_PART_CHARACTERS_MAX = 800


def _short(text: str) -> str:
    """The text as one line of bounded length: `found` may be a complete damaged file or many lines of a decoder."""
    if len(text) > _PART_CHARACTERS_MAX:
        text = f"{text[:_PART_CHARACTERS_MAX]}... ({len(text)} characters)"
    return " ".join(text.split()) if "\n" in text or "\r" in text else text


def reason_of(error: BaseException) -> str:
    """Why a call of the system or of a library failed: one line without the name of a class, nor a path of its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return f"no {text}" if isinstance(error, KeyError) else text or fault_of(error)


_FAULTS = {
    "OperationTimeout": "no answer in time",
    "KazooTimeout": "no answer in time",
    "TimeoutError": "no answer in time",
    "NoAuth": "no right to it",
    "AuthFailed": "wrong user or password",
    "OutOfMemory": "no memory is left",
}
"""Of classes whose name says too little."""
_CLASS = re.compile(r"\b(?:[a-z_][\w$]*\.)*([A-Z][\w$]*?)(Error|Exception|Throwable)\b")


def fault_of(error: BaseException | str) -> str:
    """What a library says by the class of its error, or the name of one, in plain words: `SessionExpiredError` is
    `session expired`. The class itself is in the log at level debug (`cause`), and in the traceback."""
    name = error if isinstance(error, str) else type(error).__name__
    short = re.sub(r"(Error|Exception)$", "", name) or name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", short)
    return _FAULTS.get(short) or _FAULTS.get(name) or words.lower() or "a fault"


def without_classes(text: str) -> str:
    """A text of a JVM or of a library without the names of its classes: one before a colon goes, another is put into
    words."""
    text = re.sub(rf"{_CLASS.pattern}: *", "", text)
    return _CLASS.sub(lambda found: fault_of(found[1] + found[2]), text)


@contextmanager
def decoding(what: str, path: str, *broken: type[Exception]) -> Iterator[None]:
    """Gives an error of the tree that has no path this one. Turns the errors that broken bytes raise in decoders into a
    MalformedError: `what` cannot be decoded."""
    try:
        yield
    except PhantombaseError as error:
        if error.path is not None:
            raise
        raise error.at(path) from error
    except broken as error:
        raise MalformedError(what, path=path, found=reason_of(error)) from error


class UsageError(PhantombaseError):
    """A contradictory or impossible request."""


class NotATableError(PhantombaseError):
    """The path does not hold a Hudi table."""

    way_out = (
        "Name the folder that holds .hoodie: `compactor-daemon status --root FOLDER` lists the tables below a folder."
    )


class UnsupportedError(PhantombaseError):
    """The table uses a feature that is refused by name."""

    way_out = "Leave this to Hudi, or do without the feature that is named: docs/guides/hudi.md has the limits."


class MalformedError(PhantombaseError):
    """Bytes on disk do not match the format."""

    way_out = "`timeline validate TABLE` names every damaged file."


class MissingFileError(PhantombaseError):
    """A file that the timeline or a plan names does not exist."""

    way_out = "`timeline validate TABLE` names every missing file."


class UnknownStateError(PhantombaseError):
    """A lookup failed, so the answer is unknown. Unknown is never treated as "no"."""

    way_out = "Run it again once the service answers: what was done is found."


class UnknownCommitError(UnknownStateError):
    """Whether a write completed is unknown: a request that was given up may still take effect."""


class LockError(PhantombaseError):
    """The table lock could not be taken in time."""

    way_out = "Run it again once the other process has ended."


class ClaimedError(LockError):
    """Another phantombase compactor works on the table."""


class LockLostPlanError(LockError):
    """The lock was lost right before a plan became visible: the plan must be removed."""


class ConflictError(PhantombaseError):
    """Another process changed the table concurrently."""

    way_out = "Run it again: it begins with the table as it is now."


class ClusteringConflictError(ConflictError):
    """A clustering holds a file group that a write changes, or replaced it since the write began."""


class AttemptDeadError(ConflictError):
    """This attempt was declared dead, or another process decided it: it must not publish anything."""


class BarrierError(ConflictError):
    """Delta commits are pending that could still write to the plan's file slices."""


class StalePlanError(ConflictError):
    """The files of a plan are not as they were planned, so it cannot be executed any more: it must be cancelled."""


class TableChangedError(ConflictError):
    """The table was upgraded, its settings changed, or it was cleaned, while it was read: open it again."""


class LedgerError(PhantombaseError):
    """The ledger of a compaction does not balance: nothing is published."""

    way_out = "`timeline audit TABLE` compares the files with their ledgers."


class ClockError(PhantombaseError):
    """The clock or time zone of this process differs from that of the table's writers: it must not choose instants."""

    way_out = "Set the clock, or give the time zone of the table's writers: --timezone."


class StorageError(PhantombaseError):
    """The storage refused an operation, or broke a promise that the protocol relies on."""

    way_out = "Run it again once the storage works: what is finished is kept."


class NoAnswerError(StorageError):
    """A catalog did not answer. The data are not affected: the next sync goes on."""


class StoppedError(PhantombaseError):
    """Work was stopped by its time limit. Nothing is wrong: the next run continues from there."""

    way_out = "Run it again: it continues from there."


class PausedError(PhantombaseError):
    """A person has paused this work on the table; `resume` ends the pause. Nothing has begun."""

    way_out = "`compactor-daemon resume TABLE` ends the pause."


class PressureError(PhantombaseError):
    """A write would make a file group's log too long; no compaction shortened it in time. Its rows are not visible."""

    way_out = "`compactor-daemon compact TABLE` shortens the logs; then write again."


class SparkError(PhantombaseError):
    """Spark did not start, or a job was lost for a reason that has no error class in this tree."""

    way_out = "Run it again: what is finished is kept. Spark's own log has more."


class ZooKeeperError(PhantombaseError):
    """ZooKeeper cannot be started or reached. The table is not affected: no safety rests on ZooKeeper."""

    way_out = "Check that its servers run and answer; the table is not affected."


_OF_FILES = (
    MalformedError,
    MissingFileError,
    ConflictError,
    UnsupportedError,
    UnknownStateError,
    LedgerError,
    StorageError,
)
"""Errors whose path, where it is a relative one, is within the table."""
