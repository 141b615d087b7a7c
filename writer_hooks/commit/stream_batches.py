"""Exactly-once batches of a stream: which batch was written last, by which query, and by which delta commits.

    record      .hoodie/.phantombase/streams/<name>.json =
                {"batch": n, "instant": t, "query": q, "parts": [{"operation", "instant": t, "run", "rows"}, ...],
                 "before": the same of the batch before, or null, "earlier": [the same of those before, ...]}
                written under the lock when t is on the timeline, before any other file of t, and only if no other try
                has written the part since then
    commit      the completed delta commit carries the batch in its extra metadata, under Hudi's own key; query and part
                under one of phantombase. It completes under the lock, and only while the record names t: of two
                concurrent tries, the one that wrote the record last completes
    replay      batch n is written again, and the record names t. If t is completed (active or archived), the part is
                skipped. Otherwise t is dead: it is rolled back, and the part is written again
    restore     an instant that is neither on the timeline nor in the archive was undone: it does not count, and
                the batch before it does. A restore targets an active write, so the record keeps the batches that
                were active when it was written, and the newest one that was archived by then

A stream is identified by its query, not by its name alone. Spark's query id is stored in the checkpoint: another
checkpoint has another id. Rows without Spark have no query id: a batch of the same number with other rows then belongs
to another query, unless the same sink writes it. Records and commits without a query, of Hudi and of earlier releases,
count for every query.

A batch has one part for each operation. Parts are written in the same order each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import STREAM_CHECKPOINT, STREAM_PART
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORD_NAME, RECORDS
from phantombase.timeline.table.in_progress import Guard, exclusive
from phantombase.timeline.table.table import Snapshot, Table

DEFAULT_STREAM = "default_single_writer"
"""The default name of a stream, as in Hudi."""
_log = get_logger()
_OF_WRITE = dict.fromkeys(
    (Guard.RESTORE, Guard.ROLLBACK), "the write asks for both when it begins and when it completes"
)
_UNREADABLE = "unreadable record of a stream's last batch"
_TODO = (
    "Restore the file from a copy, or remove it: then the active commits of the stream say what was written. Where all "
    "of them are archived, a batch that comes again is written again."
)
_EARLIER_MAX = 500
"""The largest number of batches before the last one that are kept. Older ones are known while they are active."""
NO_ROWS = "0"
"""The mark of an empty table."""
_ANY = ""
"""The operation of a part whose operation is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """The rows of a batch that one operation writes. `run`: of the query, from a start to its end. `rows`: their mark
    (`rows_mark`), "" if they have none."""

    operation: str
    instant: str
    run: str = ""
    rows: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A batch that a stream began to write. `query`: "" without Spark, None if it is not known."""

    number: int
    query: str | None
    parts: tuple[BatchPart, ...]

    @property
    def newest(self) -> str:
        return max(part.instant for part in self.parts)

    def part(self, operation: str) -> BatchPart | None:
        return next((part for part in self.parts if part.operation in (operation, _ANY)), None)

    def to_json(self) -> dict[str, Any]:
        """`instant`: for releases that know no parts."""
        parts = list(map(asdict, self.parts))
        return {"batch": self.number, "instant": self.newest, "query": self.query, "parts": parts}

    @staticmethod
    def of(fields: Fields) -> Begun:
        """Inverse of `to_json`; also of the records of releases that knew neither query nor parts."""
        if "parts" not in fields.values:
            part = BatchPart(operation=_ANY, instant=fields.text("instant"))
            return Begun(number=fields.whole("batch"), query=None, parts=(part,))
        begun = fields.of(Begun, number=fields.whole("batch"))
        if not begun.parts:
            raise fields.malformed("parts", "none")
        return begun


Record: TypeAlias = tuple[Begun, ...]
"""The batches that a stream began here, newest first; () if it never wrote here. The newest not undone counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """One part of a batch of the stream `name` (`hoodie.datasource.write.streaming.checkpoint.identifier`).
    `operation`, `run`, `rows`: see `BatchPart`. `query`: Spark's id of the query, "" without Spark. `take_over`: the
    instant of the last batch of the query that this one replaces."""

    name: str
    number: int
    operation: str = _ANY
    query: str = ""
    run: str = ""
    rows: str = ""
    take_over: str | None = None

    def __post_init__(self) -> None:
        checked_stream(self.name)

    @property
    def path(self) -> str:
        """The path of the record, relative to the table base."""
        return f"{RECORDS}/streams/{self.name}.json"

    @property
    def metadata(self) -> Mapping[str, str]:
        part = {"query": self.query, "operation": self.operation, "run": self.run, "rows": self.rows}
        return {STREAM_CHECKPOINT: json.dumps({self.name: str(self.number)}), STREAM_PART: json.dumps(part)}

    def at(self, instant: str) -> BatchPart:
        return BatchPart(operation=self.operation, instant=instant, run=self.run, rows=self.rows)

    def is_of(self, begun: Begun) -> bool:
        """Whether the query began that batch, as far as it is known."""
        return begun.query in (None, self.query) and not self.replaces(begun)

    def replaces(self, begun: Begun) -> bool:
        """Whether the query continues after that batch, with batch numbers of its own. If it is the same query, its
        number is lower: its checkpoint was reset. Another query has its own numbers anyway."""
        another = not self.query or begun.query != self.query or self.number < begun.number
        return self.take_over == begun.newest and another

    def record(self, storage: Storage, record: Record) -> None:
        """Writes the record. Only the stream itself replaces its earlier one."""
        last, *before = [one.to_json() for one in record]
        # Releases that knew one batch before read that one.
        content = {**last, "before": before[0] if before else None, "earlier": before[1:]}
        storage.overwrite(self.path, json.dumps(content).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAs:
    """What is recorded of a part: `done`, or the `pending` instant of a try. `last`: the last batch that counts."""

    last: Begun | None
    done: BatchPart | None = None
    pending: str | None = None


def checked_stream(name: str) -> str:
    """UsageError: not a name of a stream."""
    if not RECORD_NAME.fullmatch(name):
        raise UsageError("not the name of a stream", expected="letters, digits, . _ -", found=repr(name))
    return name


def begin_batch(table: Table, lock: TableLock, batch: StreamBatch, instant: str) -> None:
    """Records that `instant` writes the part. ConflictError: another try has. UsageError: see `written_as`."""
    with exclusive(table, lock, "begin a batch of a stream", _OF_WRITE) as table:
        found = written_as(table, batch)
        if found.done is not None:
            raise _conflict(table, batch, found.done.instant)
        _put(table, batch, found.last, batch.at(instant))


def record_run(table: Table, lock: TableLock, batch: StreamBatch, found: WrittenAs) -> None:
    """Records that this run of the query has skipped a part that is written already: see `written_as`."""
    if found.done is None or found.last is None or not batch.query or found.done.run == batch.run:
        return
    with exclusive(table, lock, "skip a batch of a stream", _OF_WRITE) as held:
        now = written_as(held, batch)
        if now.done is not None:
            _put(held, batch, now.last, batch.at(now.done.instant))


def _put(table: Table, batch: StreamBatch, last: Begun | None, part: BatchPart) -> None:
    record = read_record(table.storage, batch)
    _warn_of_gaps(table, batch, last, record)
    others: tuple[BatchPart, ...] = ()
    before: tuple[Begun, ...] = ()
    if last is not None:
        # Batches that the record has above it were undone, and never count again.
        before = tuple(one for one in record if one.newest < last.newest)
        if last.number == batch.number and batch.is_of(last):
            others = tuple(one for one in last.parts if one.operation not in (part.operation, _ANY))
        else:
            before = (last, *before)
    begun = Begun(number=batch.number, query=batch.query, parts=(*others, part))
    start = table.load_timeline().start
    active = sum(one.newest >= start for one in before)
    batch.record(table.storage, (begun, *before[: min(active, _EARLIER_MAX) + 1]))


def _warn_of_gaps(table: Table, batch: StreamBatch, last: Begun | None, record: Record) -> None:
    """Warns of undone batches that the query skips: its checkpoint was not reset together with the table."""
    above = (one for one in record if last is None or one.newest > last.newest)
    gone = sorted({one.number for one in above if one.number < batch.number and batch.is_of(one)})
    if gone:
        _log.warning("batches_taken_back", table=table.storage.base_path, stream=batch.name, at=batch.number, gone=gone)


def check_intended(table: Table, batch: StreamBatch, instant: str) -> None:
    """ConflictError: the stream's record now names another instant for the part, or another batch."""
    record = read_record(table.storage, batch)
    last = record[0] if record else None
    part = last.part(batch.operation) if last is not None else None
    if last is None or part is None or (last.number, last.query, part.instant) != (batch.number, batch.query, instant):
        raise _conflict(table, batch, last.newest if last is not None else instant)


def _conflict(table: Table, batch: StreamBatch, instant: str) -> ConflictError:
    return ConflictError(
        "another try of this batch was begun since then",
        path=f"{table.storage.base_path}/{batch.path}",
        instant=instant,
        found=f"batch {batch.number} of the stream {batch.name}",
        todo="Nothing of this try is visible. Use a stream's name in one query at a time.",
    )


def read_record(storage: Storage, batch: StreamBatch) -> Record:
    """The stream's record. MalformedError: the record cannot be read."""
    try:
        data = storage.read(batch.path)
    except MissingFileError:
        return ()
    fields = Fields.parse(data, batch.path, _UNREADABLE, _TODO)
    before = [fields.inner(one) for one in (fields.values.get("before"),) if one is not None]
    earlier = fields.records("earlier") if "earlier" in fields.values else []
    return tuple(map(Begun.of, (fields, *before, *earlier)))


def written_as(table: Table, batch: StreamBatch) -> WrittenAs:
    """Whether the part is written, was started, or must be written (again). UsageError: another query wrote under the
    stream's name, or the batch is not the one that follows, or its rows are not those of the part that was written.
    Such rows are never skipped silently."""
    seen = table.with_timeline(table.load_timeline())
    last = _last_batch(seen, batch)
    if last is None or batch.replaces(last):
        return WrittenAs(last=last)
    refused = partial(_refused, table, batch, last)
    if not batch.is_of(last):
        none = "rows without a query of Spark"
        raise refused(
            "another query writes under the name of this stream",
            expected=f"the query {last.query}" if last.query else none,
            found=f"the query {batch.query}, " if batch.query else f"{none}, ",
        )
    if last.number > batch.number:
        raise refused("a later batch of this stream is written already", expected=f"batch {last.number} or later")
    if last.number < batch.number:
        return WrittenAs(last=last)
    part = last.part(batch.operation)
    written = [one for one in last.parts if one.instant not in seen.timeline.pending_writes]
    if part is None:
        _check_order(refused, batch, written)
        return WrittenAs(last=last)
    if part in written or batch.query:
        _check_rows(refused, batch, part)
    return WrittenAs(last=last, done=part) if part in written else WrittenAs(last=last, pending=part.instant)


def _check_rows(refused: Callable[..., UsageError], batch: StreamBatch, part: BatchPart) -> None:
    """UsageError: the part has other rows. In one run of a query such rows are a second part. A query that starts again
    gives the same rows, though their mark differs between runs. Without Spark a sink counts as a run: within it the
    batch numbers decide."""
    comparable = (part.run == batch.run) == bool(batch.query)
    if comparable and part.rows and batch.rows and part.rows != batch.rows:
        raise refused(
            "other rows are written under this number already",
            expected=f"the {part.operation.lower()} of batch {batch.number} once, or again with the same rows",
            found="other rows, ",
            more="Parts of a batch with one operation need a stream's name each. ",
        )


def _check_order(refused: Callable[..., UsageError], batch: StreamBatch, written: list[BatchPart]) -> None:
    """UsageError: the batch was written by an operation that this try has not repeated: the operation was changed."""
    if batch.query:
        changed = [one for one in written if one.run != batch.run]
    else:
        changed = [one for one in written if one.rows == batch.rows and batch.rows not in ("", NO_ROWS)]
    if changed:
        raise refused(
            "this batch is written already, by another operation",
            expected=f"first the {changed[0].operation.lower()}, as before",
            found=f"{batch.operation.lower()}, ",
            more="Parts of a batch come in the same order each time. Let the query end this batch as it was, and "
            "change the operation then. "
            + ("" if batch.query else "Parts with the same rows need a stream's name each. "),
        )


def _refused(
    table: Table, batch: StreamBatch, last: Begun, what: str, *, expected: str, found: str = "", more: str = ""
) -> UsageError:
    return UsageError(
        f"{what}; nothing of it was written",
        path=f"{table.storage.base_path}/{batch.path}",
        instant=last.newest,
        expected=expected,
        found=f"{found}batch {batch.number} of the stream {batch.name}",
        todo=f"{more}Another query needs a name of its own: foreach_batch(stream=...), or of the source of Spark the "
        "option hoodie.datasource.write.streaming.checkpoint.identifier. A query that replaces the one before it, "
        "after a new checkpoint say, goes on with "
        f'foreach_batch(take_over="{last.newest}"), or the option take_over: its batches count from its own first '
        "number, and rows that both have may come a second time. Where the query's checkpoint was reset by mistake, "
        "give it its old one.",
    )


def _last_batch(table: Snapshot, batch: StreamBatch) -> Begun | None:
    """The last batch of the stream, with those parts of it that are on the timeline or in the archive."""
    record = read_record(table.storage, batch)
    recorded = _newest_counting(table, record) if record else None
    # Hudi's own sink may have continued the stream, so later commits count too.
    return _from_commits(table, batch.name, recorded.newest if recorded is not None else "") or recorded


def _newest_counting(table: Snapshot, record: Record) -> Begun | None:
    """The newest batch that has completed or pending parts, with these; None if none has."""
    known = {*table.timeline.completed_writes, *table.timeline.pending_writes}
    if not all(part.instant in known for part in record[0].parts):
        known |= {i.requested_time for i in table.with_archive(table.timeline).archived if i.is_write}
    for begun in record:
        if parts := tuple(part for part in begun.parts if part.instant in known):
            return replace(begun, parts=parts)
    return None


def _from_commits(table: Snapshot, name: str, after: str) -> Begun | None:
    """The batch in the newest commits of the stream after an instant, which may be those of Hudi's own sink."""
    newest: Begun | None = None
    for one in _batches_of_commits(table, name, after):
        if newest is None:
            newest = one
        elif (one.number, one.query) != (newest.number, newest.query):
            break
        else:
            newest = replace(newest, parts=(*one.parts, *newest.parts))
    return newest


def _batches_of_commits(table: Snapshot, name: str, after: str) -> Iterator[Begun]:
    """The part that each commit of the stream has written, the newest first."""
    for requested in sorted((one for one in table.timeline.completed_writes if one > after), reverse=True):
        extra = table.commit_metadata(table.timeline.completed_writes[requested]).extra_metadata
        text = extra.get(STREAM_CHECKPOINT)
        try:
            number = json.loads(text).get(name) if text else None
            if number is None:
                continue
            marks = json.loads(extra.get(STREAM_PART, "{}"))
            own = {key: str(marks[key]) for key in ("operation", "run", "rows")} if marks else {"operation": _ANY}
            query = str(marks["query"]) if marks else None
            yield Begun(number=int(number), query=query, parts=(BatchPart(instant=requested, **own),))
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise MalformedError("unreadable checkpoint of a stream", instant=requested, found=str(text)) from error
