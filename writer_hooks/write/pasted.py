"""What Hudi's own configurations mean here that set nothing: whole dictionaries of Hudi jobs can be given (pure).

A configuration either agrees with what phantombase does, has no meaning here (how Hudi's client does its work), or
contradicts it: then a job would get something else than it asks for.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError

_STREAM = "phantombase writes batches of a stream exactly once, and ends the query at an error"
_AGREES: Mapping[str, tuple[str, str]] = {
    "hoodie.auto.commit": ("true", "a write completes its commit"),
    "hoodie.combine.before.delete": ("true", "keys are deleted once"),
    "hoodie.clustering.inline": ("false", "`compactor-daemon stitch` joins small files"),
    "hoodie.clustering.async.enabled": ("false", "`compactor-daemon stitch` joins small files"),
    "hoodie.log.compaction.inline": ("false", "a write requests compactions only"),
    "hoodie.log.compaction.enable": ("false", "a write requests compactions only"),
    "hoodie.datasource.clustering.inline.enable": ("false", "`compactor-daemon stitch` joins small files"),
    "hoodie.datasource.clustering.async.enable": ("false", "`compactor-daemon stitch` joins small files"),
    "hoodie.datasource.hive_sync.enable": ("false", "no catalog is told of the table; use Hudi's sync tool"),
    "hoodie.datasource.meta.sync.enable": ("false", "no catalog is told of the table; use Hudi's sync tool"),
    "hoodie.datasource.write.insert.drop.duplicates": ("false", "insert does not look for existing rows"),
    "hoodie.datasource.insert.dup.policy": ("none", "insert does not look for existing rows"),
    "hoodie.datasource.write.reconcile.schema": ("false", "columns that rows lack become null by themselves"),
    "hoodie.datasource.write.commitmeta.key.prefix": ("_", "options are not copied into commits"),
    "hoodie.datasource.write.streaming.ignore.failed.batch": ("false", _STREAM),
    "hoodie.datasource.write.storage.type": ("MERGE_ON_READ", "only such tables are written"),
    "hoodie.index.bucket.engine": ("SIMPLE", "consistent hashing is not written"),
    "hoodie.write.num.retries.on.conflict.failures": ("0", "use .option(retries=...)"),
}
"""With the one value that agrees, and why no other one does."""

_ON_READ = "hoodie.schema.on.read.enable"
"""Whether columns evolve on read is seen in the table: a write keeps their history where there is one."""

_CONCURRENCY = "hoodie.write.concurrency.mode"
_SINGLE, _OPTIMISTIC = "SINGLE_WRITER", "OPTIMISTIC_CONCURRENCY_CONTROL"

_NO_MEANING = (
    "hoodie.archive.",
    "hoodie.bloom.",
    "hoodie.bulkinsert.",
    "hoodie.bulk.insert.",
    "hoodie.clean.",
    "hoodie.cleaner.",
    "hoodie.client.",
    "hoodie.clustering.",
    "hoodie.commits.archival.",
    "hoodie.compaction.lazy.",
    "hoodie.compaction.reverse.",
    "hoodie.consistency.",
    "hoodie.copyonwrite.",
    "hoodie.datasource.compaction.async.enable",
    "hoodie.datasource.hive_sync.",
    "hoodie.datasource.meta.sync.",
    "hoodie.datasource.read.",
    "hoodie.datasource.query.",
    "hoodie.datasource.write.row.writer.",
    "hoodie.datasource.write.streaming.",
    "hoodie.delete.shuffle.",
    "hoodie.deltastreamer.",
    "hoodie.embed.timeline.",
    "hoodie.filesystem.",
    "hoodie.fs.",
    "hoodie.finalize.write.",
    "hoodie.index.bloom.",
    "hoodie.insert.shuffle.",
    "hoodie.logfile.",
    "hoodie.markers.",
    "hoodie.memory.",
    "hoodie.merge.small.file.",
    "hoodie.meta.sync.",
    "hoodie.metadata.",
    "hoodie.metrics.",
    "hoodie.parquet.",
    "hoodie.record.index.",
    "hoodie.record.size.",
    "hoodie.rollback.",
    "hoodie.simple.index.",
    "hoodie.streamer.",
    "hoodie.upsert.",
    "hoodie.write.auto.upgrade",
    "hoodie.write.buffer.",
    "hoodie.write.executor.",
    "hoodie.write.markers.",
    "hoodie.write.status.",
)
"""Beginnings of names: how Hudi's client does its work, or its other tools. Rows and tables are the same without."""


def agrees(name: str, value: str, *, has_lock: bool) -> bool:
    """Whether a configuration that sets nothing here agrees with what is done; False: it is not known here.

    UnsupportedError: it asks for something else.
    """
    text = value.strip()
    if name == _CONCURRENCY:
        if text.upper() == _SINGLE or (text.upper() == _OPTIMISTIC and has_lock):
            return True
        todo = "Give the lock of all writers: hoodie.write.lock.*." if text.upper() == _OPTIMISTIC else None
        raise UnsupportedError(
            f"this {name} is not supported{'' if has_lock else ' without a lock'}",
            expected=f"{_SINGLE}, or {_OPTIMISTIC} with a lock",
            found=value,
            todo=todo,
        )
    if name == _ON_READ and text.lower() in ("true", "false"):
        return True
    if name not in _AGREES:
        return False
    expected, why = _AGREES[name]
    if text.lower() != expected.lower():
        raise UnsupportedError(f"{name} asks for what is not done here: {why}", expected=expected, found=value)
    return True


def has_no_meaning(name: str) -> bool:
    """Whether a configuration is of Hudi's client or tools only."""
    return name.startswith(_NO_MEANING)


def refused(problems: Mapping[str, PhantombaseError]) -> PhantombaseError:
    """One error for all configurations that cannot be followed, by name."""
    errors = list(problems.values())
    if len(errors) == 1:
        return errors[0]
    kind = UnsupportedError if all(isinstance(error, UnsupportedError) for error in errors) else UsageError
    each = " ".join(f"({number}) {name}: {error}" for number, (name, error) in enumerate(problems.items(), start=1))
    return kind(f"{len(errors)} configurations cannot be followed; nothing was written", todo=each)


def unknown(name: str, value: str, known: Collection[str]) -> UsageError:
    """The error for a name that is neither phantombase's nor known as Hudi's."""
    near = difflib.get_close_matches(name, [*known, *_AGREES, _CONCURRENCY], n=1, cutoff=0.85)
    todo = f"Did you mean {near[0]}?" if near else None
    return UsageError("not a known configuration of a write or a table", found=f"{name}={value}", todo=todo)
