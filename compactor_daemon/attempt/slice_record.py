"""The records of staged file slices, `.ok`: what a task has made. The decision and later attempts read them.
And the completed commit made of them: whether it exists, who wrote it, and what it carries out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from msgspec import to_builtins

from phantombase.timeline.audit.ledgers import add_entry, ledger_of
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import AttemptDeadError, ConflictError, MalformedError, reason_of
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import (
    CLUSTER,
    LEDGER,
    LOG_COMPACT,
    CommitMetadata,
    RuntimeStats,
    WriteStat,
)
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName, LogFileName
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.ledger import CLUSTERED, GroupLedger, Ledger, encode_ledgers
from phantombase.timeline.instants.reserved_times import attempt_folder, attempts, instant_folder, staged_files
from phantombase.timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Entry, Storage, listed_if_there
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table, TableSchema

from ..options import output_from_json, output_to_json
from .outcome import OK, STAGED_ENDINGS, CommitDecision, Placement, ReplacedGroup, decisions, dump

_log = get_logger()
_TODO = "Nothing is lost: the next run merges the file slice again."


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A staged file: see `SliceDone`. `rows`: its number of rows. `hash`: of a clustering, of all its rows, in hex."""

    file_id: str
    staged: str
    final: str
    size: int
    rows: int
    ranges: tuple[ColumnRange, ...] | None = None
    hash: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**to_builtins(replace(self, ranges=None)), "ranges": ranges_to_json(self.ranges)}

    @staticmethod
    def of(fields: Fields) -> OutputFile:
        """MalformedError, and errors of `ranges_from_json`."""
        return fields.of(OutputFile, ranges=ranges_from_json(fields.values.get("ranges")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDone:
    """One compacted file slice, or one group of a clustering: the content of its `.ok`. `staged` and `final` are paths
    relative to the table base, None if there was nothing to write (no base and no log entry). `inputs`: the names of
    the merged files. `fingerprint`: digest of inputs, schema and merge rules; a later attempt adopts the file only if
    its own fingerprint is equal. `size` in bytes, `seconds` of work. `ranges`: of the file's columns, if the metadata
    table has statistics. `uncommitted`: instants whose log blocks were left out because they had not completed.
    `merged`: instants of the merged writes. `output`: the options that the file was written with. Each of these four is
    None if unknown. Of a clustering: `replaced` are the file groups that were read, `more` the files after the first;
    `copied_row_groups`, `encoded` and `repeated_keys`: see `clustering.outputs.Made`."""

    position: int
    partition: str
    file_id: str
    base_instant: str | None
    base_file: str | None
    inputs: tuple[str, ...]
    fingerprint: str
    staged: str | None
    final: str | None
    size: int
    ledger: Ledger
    log_bytes: int
    log_files: int
    log_blocks: int
    corrupt_blocks: int
    rolled_back_blocks: int
    skipped: Mapping[str, int]
    seconds: float
    ranges: tuple[ColumnRange, ...] | None = None
    uncommitted: tuple[str, ...] | None = None
    merged: tuple[str, ...] | None = None
    output: OutputOptions | None = None
    replaced: tuple[ReplacedGroup, ...] = ()
    more: tuple[OutputFile, ...] = ()
    copied_row_groups: int = 0
    encoded: str = ""
    repeated_keys: int = 0

    @property
    def files(self) -> tuple[OutputFile, ...]:
        if self.staged is None or self.final is None:
            return ()
        first = OutputFile(
            file_id=self.file_id,
            staged=self.staged,
            final=self.final,
            size=self.size,
            rows=self.ledger.rows_out - sum(one.rows for one in self.more),
            ranges=self.ranges,
        )
        return (first, *self.more)

    @property
    def group_ledger(self) -> GroupLedger:
        """As the commit records it."""
        return GroupLedger(
            partition=self.partition,
            file_id=self.file_id,
            inputs=self.inputs,
            output=None if self.final is None else self.final.rpartition("/")[2],
            size=self.size,
            ledger=self.ledger,
            skipped=self.skipped,
            copied_row_groups=self.copied_row_groups,
            more=tuple((one.final.rpartition("/")[2], one.size) for one in self.more),
            more_hashes=tuple(one.hash for one in self.more if one.hash),
        )

    def at(self, position: int, instant: str, attempt: int) -> SliceDone:
        """The same base files as those of this position of an attempt: only their final names differ."""

        def final(file_id: str) -> str:
            token = f"{position}-{attempt}-{COMPACTOR}"
            return join(self.partition, str(BaseFileName(file_id=file_id, token=token, instant=instant)))

        more = tuple(replace(one, final=final(one.file_id)) for one in self.more)
        return replace(self, position=position, final=self.final and final(self.file_id), more=more)

    def to_json(self) -> bytes:
        ledger, ranges, output = self.ledger.to_json(), ranges_to_json(self.ranges), output_to_json(self.output)
        plain, more = (
            to_builtins(replace(self, ranges=None, output=None, more=())),
            [one.to_json() for one in self.more],
        )
        return dump({**plain, "ledger": ledger, "ranges": ranges, "output": output, "more": more})

    @staticmethod
    def from_json(data: bytes, where: str) -> SliceDone:
        """Inverse of `to_json`; unknown fields are ignored. MalformedError names the file."""
        fields = Fields.parse(data, where, "unreadable record of a compacted file slice", _TODO)
        known = fields.values
        try:
            ledger, ranges = Ledger.from_json(known["ledger"]), ranges_from_json(known.get("ranges"))
            more = tuple(OutputFile.of(one) for one in fields.records("more"))
        except (KeyError, TypeError, ValueError, AttributeError, MalformedError) as error:
            raise fields.malformed("a ledger and column ranges", reason_of(error)) from error
        return fields.of(
            SliceDone,
            ledger=ledger,
            ranges=ranges,
            uncommitted=fields.texts("uncommitted") if known.get("uncommitted") is not None else None,
            merged=fields.texts("merged") if known.get("merged") is not None else None,
            output=output_from_json(known.get("output")),
            more=more,
        )


def done_slices(storage: Storage, instant: str, attempt: int) -> dict[int, SliceDone]:
    """The finished file slices of one attempt, by position; one with an unreadable record counts as unfinished.
    MissingFileError: the attempt's folder was removed."""
    folder = attempt_folder(instant, attempt)
    return _in_folder(storage, folder, storage.list(folder))


def slices_in(storage: Storage, folder: str) -> dict[int, SliceDone]:
    """As `done_slices`, of a folder; none, if it does not exist (any more)."""
    return _in_folder(storage, folder, listed_if_there(storage, folder) or ())


def _in_folder(storage: Storage, folder: str, entries: Iterable[Entry]) -> dict[int, SliceDone]:
    done = dict[int, SliceDone]()
    for entry in entries:
        if entry.name.endswith(OK) and not entry.is_folder:
            path = f"{folder}/{entry.name}"
            try:
                found = SliceDone.from_json(storage.read(path), path)
            except MalformedError as error:
                _log.warning("slice_record_unreadable", path=path, error=str(error))
            else:
                done[found.position] = found
    return done


def leave_record(storage: Storage, path: str, done: SliceDone) -> SliceDone:
    """Leaves the `.ok`. If another run of this task was first, its result counts, and this one is removed."""
    # On an object store the folder exists: the staged file in it was just read back.
    if (storage.is_file_system or done.staged is None) and storage.find(path.rpartition("/")[0]) is None:
        raise AttemptDeadError("the attempt's folder was removed: another process retired the attempt", path=path)
    if storage.put_if_absent(path, done.to_json()):
        return done
    winner = SliceDone.from_json(storage.read(path), path)
    if winner.staged != done.staged and done.staged is not None:
        storage.delete(done.staged)
    return winner


def completed_compaction(table: Table, instant: str, family: str | None = None) -> Instant | None:
    """The completed commit of a compaction or clustering, None while there is none; two of them are an error. On
    versions 8 and 9 each completed name has its own completion time, so two executors can both leave one."""
    found = completed_commits(table, instant, family)
    if len(found) > 1:
        raise ConflictError(
            "two completed commits of one compaction or clustering",
            path=table.config.timeline_folder,
            instant=instant,
            found=", ".join(i.file_name for i in found),
            todo="Two kinds of compactor ran on this table. Stop both; the commits show which files count.",
        )
    return found[0] if found else None


def completed_commits(table: Table, instant: str, family: str | None = None) -> list[Instant]:
    """Every completed commit of a compaction, log compaction or clustering; two are an error, see
    `completed_compaction`. `family`: of the job; None: any."""
    found = table.files.completed_commits(instant)
    return [i for i in found if (family is None or i.family == family) and _is_service(table, i)]


def _is_service(table: Table, done: Instant) -> bool:
    """Whether a completed file is of a service: a write without the lock may have the same instant time."""
    return done.action == "commit" or table.commit_metadata(done).operation_type == _SERVICES[done.action]


_SERVICES = {"deltacommit": LOG_COMPACT, "replacecommit": CLUSTER}


def is_ours(table: Table, done: Instant, decision: CommitDecision) -> bool:
    """Whether a completed commit carries out the decision `commit`, by the names of its files. Each attempt has its own
    file names. The commit may name fewer files than the decision, if file groups were replaced before it was published;
    if it names none at all, the ledgers are compared. Paths and bytes are not compared: an upgrade by Hudi renames and
    rewrites a completed commit."""
    metadata = table.commit_metadata(done)
    named = metadata.named_files
    if named or not decision.placements:
        return named <= {p.final for p in decision.placements}
    decided = decode_commit(decision.content, decision.completed_path)
    return all(metadata.extra_metadata.get(key) == decided.extra_metadata.get(key) for key in (LEDGER, CLUSTERED))


def remove_placed(table: Table, decision: CommitDecision, keep: Collection[str]) -> None:
    """Deletes the placed files of a decision, except the paths to `keep`."""
    table.storage.delete_all([p.final for p in decision.placements if p.final not in keep])


def named_files(table: Table, done: Instant) -> frozenset[str]:
    """The paths of the files that a completed commit names."""
    return table.commit_metadata(done).named_files


def decision_of_commit(table: Table, done: Instant) -> CommitDecision:
    """The decision that a completed commit of phantombase carried out."""
    storage, instant = table.storage, done.requested_time
    metadata = table.commit_metadata(done)
    finished = {file.final: (file, d.output) for d in finished_slices(storage, instant) for file in d.files}
    nowhere = f"{instant_folder(instant)}/lost"

    def placement(path: str, size: int) -> Placement:
        if path not in finished:
            return Placement(staged=nowhere, final=path, size=size)
        file, output = finished[path]
        return Placement(staged=file.staged, final=path, size=size, output=output)

    return CommitDecision(
        instant=instant,
        attempt=max(attempts(storage, instant), default=1),
        nonce="",
        table_version=table.config.version,
        completion_time=done.completion_time,
        completed_path=table.instant_path(done),
        content=storage.read(table.instant_path(done)),
        placements=tuple(
            placement(stat.path, stat.file_size_in_bytes)
            for stats in metadata.partition_to_write_stats.values()
            for stat in stats
            if stat.path
        ),
    )


def named_staged_files(storage: Storage, instant: str) -> list[str]:
    """What attempts at an instant have staged, and what their records name elsewhere (`Job.staged_before`): all that a
    decision may place."""
    named = {file.staged for done in finished_slices(storage, instant) for file in done.files}
    with suppress(MalformedError):
        named |= {one.staged for decision in decisions(storage, instant) for one in decision.placements}
    return sorted({*staged_files(storage, instant, STAGED_ENDINGS), *named})


def finished_slices(storage: Storage, instant: str) -> list[SliceDone]:
    """Finished slices of all attempts; the slices that a decision names are among them."""
    return [d for number in attempts(storage, instant) for d in done_slices(storage, instant, number).values()]


def keep_ledger(table: Table, decision: CommitDecision, done: Instant) -> None:
    """Copies the ledger of what was completed as `done` into the audit log, which outlives the commit. Does nothing if
    `done` is the commit of another decision: this process may have stalled while the instant was rolled back and
    executed again, and the last entry must be that of the last execution."""
    if is_ours(table, done, decision):
        ledger = ledger_of(decode_commit(decision.content, decision.completed_path))
        assert ledger is not None, "every decision has a ledger"
        add_entry(table.storage, decision.instant, decision.attempt, table.instant_path(done), ledger)


def compaction_commit(done: Iterable[SliceDone], schema: TableSchema, properties: Mapping[str, str]) -> CommitMetadata:
    """The completed commit of a compaction. `schema`: of the files written. `properties`: of the user, recorded in
    it."""
    return _commit(done, schema, properties, "COMPACT", _write_stat)


def log_compaction_commit(
    done: Iterable[SliceDone], schema: TableSchema, properties: Mapping[str, str]
) -> CommitMetadata:
    """The completed delta commit of a log compaction."""
    return _commit(done, schema, properties, LOG_COMPACT, _log_write_stat)


def _commit(
    done: Iterable[SliceDone],
    schema: TableSchema,
    properties: Mapping[str, str],
    operation: str,
    stat: Callable[[SliceDone, str], WriteStat],
) -> CommitMetadata:
    slices = sorted(done, key=lambda d: d.position)
    stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
    for one in slices:
        if one.final is not None:
            stats[one.partition].append(stat(one, one.final))
    ledger = encode_ledgers([one.group_ledger for one in slices])
    return CommitMetadata(
        partition_to_write_stats={partition: tuple(s) for partition, s in stats.items()},
        compacted=True,
        extra_metadata={**properties, **schema.recorded, LEDGER: ledger},
        operation_type=operation,
    )


def _log_write_stat(done: SliceDone, final: str) -> WriteStat:
    """The statistics as a write records them: the rows in the log file, and its deletes."""
    name, ledger = final.rpartition("/")[2], done.ledger
    return replace(
        _write_stat(done, final),
        num_deletes=ledger.deletes_of_absent,
        num_update_writes=ledger.rows_out,
        num_inserts=0,
        log_version=LogFileName.parse(name).version,
        log_offset=0,
        base_file=done.base_file or "",
        log_files=(name,),
    )


def _write_stat(done: SliceDone, final: str) -> WriteStat:
    ledger = done.ledger
    return WriteStat(
        file_id=done.file_id,
        path=final,
        prev_commit=done.base_instant or "null",
        num_writes=ledger.rows_out,
        num_deletes=ledger.deleted + ledger.expired,
        num_update_writes=ledger.replaced,
        num_inserts=ledger.inserts,
        total_write_bytes=done.size,
        file_size_in_bytes=done.size,
        partition_path=done.partition,
        total_log_records=ledger.log_entries,
        total_log_files_compacted=done.log_files,
        total_log_size_compacted=done.log_bytes,
        total_updated_records_compacted=ledger.log_keys,
        total_log_blocks=done.log_blocks,
        total_corrupt_log_block=done.corrupt_blocks,
        total_rollback_blocks=done.rolled_back_blocks,
        prev_base_file=done.base_file,
        runtime_stats=RuntimeStats(total_upsert_time=round(done.seconds * 1000)),
    )
