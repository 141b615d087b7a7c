"""The records of staged file slices, `.ok`: what a task has made. The decision and later attempts read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import to_builtins

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import AttemptDeadError, MalformedError, reason_of
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName
from phantombase.timeline.format.ledger import Ledger
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Entry, Storage, listed_if_there
from phantombase.timeline.storage.folders import join

from ..options import output_from_json, output_to_json
from .outcome import OK, ReplacedGroup, dump

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
    """One compacted file slice, or one group of a clustering: the content of its `.ok`.

    `staged` and `final` are paths relative to the table base, None if there was nothing to write (no base and no log
    entry). `inputs`: the names of the merged files. `fingerprint`: digest of inputs, schema and merge rules; a later
    attempt adopts the file only if its own fingerprint is equal. `size` in bytes, `seconds` of work. `ranges`: of the
    file's columns, if the metadata table has statistics. `uncommitted`: instants whose log blocks were left out
    because they had not completed. `merged`: instants of the merged writes. `output`: the options that the file was
    written with. Each of these four is None if unknown. Of a clustering: `replaced` are the file groups that were read,
    `more` the files after the first; `copied_row_groups`, `encoded` and `repeated_keys`: see `clustering.outputs.Made`.
    """

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
        """All staged files."""
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

    def at(self, position: int, instant: str, attempt: int) -> SliceDone:
        """The same base files as those of this position of an attempt: only their final names differ."""

        def final(file_id: str) -> str:
            token = f"{position}-{attempt}-{COMPACTOR}"
            return join(self.partition, str(BaseFileName(file_id=file_id, token=token, instant=instant)))

        more = tuple(replace(one, final=final(one.file_id)) for one in self.more)
        return replace(self, position=position, final=self.final and final(self.file_id), more=more)

    def to_json(self) -> bytes:
        """As stored."""
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
