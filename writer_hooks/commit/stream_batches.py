"""Exactly-once batches of a stream: which batch was written last, and by which delta commit.

    intent      .hoodie/.phantombase/streams/<name>.json = {"batch": n, "instant": t}, once t is on the timeline and
                before anything else of it; in the lock, and not where another try has written n since
    commit      the completed delta commit carries the same in its extra metadata, under Hudi's own key; in the lock,
                and only while the intent names t: of two tries at once the one that said so last
    replay      batch n again: the intent names t. t completed (active or archived): skip. Otherwise t is dead: it is
                rolled back, and the batch is written anew

The intent lies in the table and outlives archiving. One query at a time has a name, as with Spark's checkpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, UsageError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table

CHECKPOINT = "_hudi_streaming_sink_checkpoint"
"""Key of the extra metadata in which Hudi's own sink keeps `{"<writer identifier>": "<batch id>"}`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """A batch of the stream `name` (`hoodie.datasource.write.streaming.checkpoint.identifier`)."""

    name: str
    number: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError("not the name of a stream", expected="letters, digits, . _ -", found=repr(self.name))

    @property
    def path(self) -> str:
        """Where the intent lies, relative to the table base."""
        return f"{RECORDS}/streams/{self.name}.json"

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the batch's commit carries."""
        return {CHECKPOINT: json.dumps({self.name: str(self.number)})}

    def intend(self, storage: Storage, instant: str) -> None:
        """Says that this batch is what `instant` writes. Only the stream itself replaces what it said before."""
        storage.overwrite(self.path, json.dumps({"batch": self.number, "instant": instant}).encode())


def begin_batch(table: Table, lock: TableLock, batch: StreamBatch, instant: str) -> None:
    """Says that `instant`, which is on the timeline, writes the batch.

    ConflictError, or UsageError as `written_as`: another try has written it, and maybe more, since this one looked.
    """
    with lock.hold("begin a batch of a stream"):
        done = written_as(table, batch)
        if done is not None:
            raise _conflict(table, batch, done)
        batch.intend(table.storage, instant)


def check_intended(table: Table, batch: StreamBatch, instant: str) -> None:
    """ConflictError where the stream says now that another instant writes the batch, or writes a later one."""
    intent = read_intent(table.storage, batch)
    if intent != Intent(batch=batch.number, instant=instant):
        raise _conflict(table, batch, intent.instant if intent is not None else instant)


def _conflict(table: Table, batch: StreamBatch, instant: str) -> ConflictError:
    return ConflictError(
        "another try of this batch was begun meanwhile",
        path=f"{table.storage.base_path}/{batch.path}",
        instant=instant,
        found=f"batch {batch.number} of the stream {batch.name}",
        todo="Nothing of this try is visible. A stream's name is for one query at a time.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The last batch a stream began to write here, and the delta commit that was to hold it."""

    batch: int
    instant: str


def read_intent(storage: Storage, batch: StreamBatch) -> Intent | None:
    """What the stream said last; None when it never wrote here. MalformedError: unreadable, so unknown."""
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
            todo="Which batch was written last is in the newest commit's extra metadata; write the record by hand.",
        ) from error


def written_as(table: Table, batch: StreamBatch) -> str | None:
    """The completed delta commit that holds the batch, None when it has to be written (again).

    UsageError: a later batch was written already: the stream's checkpoint is not the one that wrote here.
    """
    timeline = table.load_timeline()
    # Hudi's own sink may have gone on where ours had stopped. Of the same batch the commit knows best.
    said = [i for i in (_from_commits(table, timeline, batch.name), read_intent(table.storage, batch)) if i is not None]
    intent = max(said, key=lambda one: one.batch, default=None)
    if intent is None or intent.batch < batch.number:
        return None
    if intent.batch > batch.number:
        raise UsageError(
            "a later batch of this stream is written already",
            path=f"{table.storage.base_path}/{batch.path}",
            expected=f"batch {intent.batch} or later",
            found=f"batch {batch.number}",
            todo="Was the query's checkpoint reset? Give the query a new stream name, or its old checkpoint.",
        )
    if intent.instant in timeline.completed_writes:
        return intent.instant
    if intent.instant in timeline.pending_writes:
        return None
    archived = table.with_archive(timeline).archived
    return intent.instant if any(i.requested_time == intent.instant and i.is_write for i in archived) else None


def _from_commits(table: Table, timeline: Timeline, name: str) -> Intent | None:
    """What the newest commit of the stream says: where Hudi's own sink wrote before."""
    for requested in sorted(timeline.completed_writes, reverse=True):
        text = table.commit_metadata(timeline.completed_writes[requested]).extra_metadata.get(CHECKPOINT)
        try:
            found = json.loads(text).get(name) if text else None
            if found is not None:
                return Intent(batch=int(found), instant=requested)
        except (ValueError, AttributeError) as error:
            raise MalformedError("unreadable checkpoint of a stream", instant=requested, found=str(text)) from error
    return None
