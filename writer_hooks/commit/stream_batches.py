"""Exactly-once batches of a stream: which batch was written last, and by which delta commit.

    intent      .hoodie/.phantombase/streams/<name>.json = {"batch": n, "instant": t}, written under the lock when t is
                on the timeline, before any other file of t, and only if no other try has written n meanwhile
    commit      the completed delta commit carries the batch in its extra metadata, under Hudi's own key. It completes
                under the lock, and only while the intent names t: of two tries at once, the one that wrote the intent
                last
    replay      batch n comes again, and the intent names t. If t is completed (active or archived), the batch is
                skipped. Otherwise t is dead: it is rolled back, and the batch is written again

The intent is kept in the table and outlives archiving. Only one query at a time may use a name, as with Spark's
checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, UsageError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORD_NAME, RECORDS
from phantombase.timeline.table.table import Table

CHECKPOINT = "_hudi_streaming_sink_checkpoint"
"""Key of the extra metadata in which Hudi's own sink keeps `{"<writer identifier>": "<batch id>"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """A batch of the stream `name` (`hoodie.datasource.write.streaming.checkpoint.identifier`)."""

    name: str
    number: int

    def __post_init__(self) -> None:
        if not RECORD_NAME.fullmatch(self.name):
            raise UsageError("not the name of a stream", expected="letters, digits, . _ -", found=repr(self.name))

    @property
    def path(self) -> str:
        """The path of the intent, relative to the table base."""
        return f"{RECORDS}/streams/{self.name}.json"

    @property
    def metadata(self) -> Mapping[str, str]:
        """The extra metadata of the batch's commit."""
        return {CHECKPOINT: json.dumps({self.name: str(self.number)})}

    def intend(self, storage: Storage, instant: str) -> None:
        """Records that `instant` writes this batch. Only the stream itself replaces its earlier intent."""
        storage.overwrite(self.path, json.dumps({"batch": self.number, "instant": instant}).encode())


def begin_batch(table: Table, lock: TableLock, batch: StreamBatch, instant: str) -> None:
    """Records that `instant`, which is on the timeline, writes the batch.

    ConflictError: another try has written the batch meanwhile. UsageError: it has written later ones, see `written_as`.
    """
    with lock.hold("begin a batch of a stream") as section:
        done = written_as(table, batch)
        if done is not None:
            raise _conflict(table, batch, done)
        section.check()
        batch.intend(table.storage, instant)


def check_intended(table: Table, batch: StreamBatch, instant: str) -> None:
    """ConflictError: the stream's intent names another instant for the batch by now, or a later batch."""
    intent = read_intent(table.storage, batch)
    if intent != Intent(batch=batch.number, instant=instant):
        raise _conflict(table, batch, intent.instant if intent is not None else instant)


def _conflict(table: Table, batch: StreamBatch, instant: str) -> ConflictError:
    return ConflictError(
        "another try of this batch was begun meanwhile",
        path=f"{table.storage.base_path}/{batch.path}",
        instant=instant,
        found=f"batch {batch.number} of the stream {batch.name}",
        todo="Nothing of this try is visible. Use a stream's name in one query at a time.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The last batch that a stream began to write, and the delta commit that writes it."""

    batch: int
    instant: str


def read_intent(storage: Storage, batch: StreamBatch) -> Intent | None:
    """The stream's last intent; None if it never wrote here. MalformedError: it cannot be read, so it is unknown."""
    try:
        data = storage.read(batch.path)
    except MissingFileError:
        return None
    try:
        found = json.loads(data)
        return Intent(batch=int(found["batch"]), instant=str(found["instant"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(
            "unreadable record of a stream's last batch",
            path=batch.path,
            found=str(error),
            todo="Find the last written batch in the newest commit's extra metadata, and write the record by hand.",
        ) from error


def written_as(table: Table, batch: StreamBatch) -> str | None:
    """The completed delta commit that holds the batch, None if it must be written (again).

    UsageError: a later batch was written already, so the query's checkpoint is not the one that wrote here.
    """
    timeline = table.load_timeline()
    # Hudi's own sink may have continued the stream, so commits count too. For the same batch the commit comes first.
    found = (_from_commits(table, timeline, batch.name), read_intent(table.storage, batch))
    intent = max((one for one in found if one is not None), key=lambda one: one.batch, default=None)
    if intent is None or intent.batch < batch.number:
        return None
    if intent.batch > batch.number:
        raise UsageError(
            "a later batch of this stream is written already",
            path=f"{table.storage.base_path}/{batch.path}",
            expected=f"batch {intent.batch} or later",
            found=f"batch {batch.number}",
            todo="The query's checkpoint may have been reset. Give the query its old checkpoint, or a new stream name.",
        )
    if intent.instant in timeline.completed_writes:
        return intent.instant
    if intent.instant in timeline.pending_writes:
        return None
    archived = table.with_archive(timeline).archived
    return intent.instant if any(i.requested_time == intent.instant and i.is_write for i in archived) else None


def _from_commits(table: Table, timeline: Timeline, name: str) -> Intent | None:
    """The batch in the newest commit of the stream, which may be one of Hudi's own sink."""
    for requested in sorted(timeline.completed_writes, reverse=True):
        text = table.commit_metadata(timeline.completed_writes[requested]).extra_metadata.get(CHECKPOINT)
        try:
            found = json.loads(text).get(name) if text else None
            if found is not None:
                return Intent(batch=int(found), instant=requested)
        except (ValueError, AttributeError) as error:
            raise MalformedError("unreadable checkpoint of a stream", instant=requested, found=str(text)) from error
    return None
