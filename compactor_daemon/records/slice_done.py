"""The record of a finished file slice: a task leaves it for the decision, and for later attempts to adopt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.attempt_names import attempt_folder
from phantombase.timeline.merge.ledger import Ledger
from phantombase.timeline.metadata_table.column_stats.column_range import ColumnRange, ranges_from_json, ranges_to_json
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.contract import Storage

from ..options import output_from_json, output_to_json
from .outcome import OK, dump

_log = get_logger()

_SLICE_TODO = "Nothing is lost: the next run merges the file slice again."


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDone:
    """One compacted file slice: the content of its `.ok`.

    `staged` and `final` are paths relative to the table base, None if there was nothing to write (no base and no log
    entry). `inputs`: the names of the merged files. `fingerprint`: digest of inputs, schema and merge rules; a later
    attempt adopts the file only if its own fingerprint is equal. `size` in bytes, `seconds` of work. `ranges`: of the
    file's columns, if the metadata table has statistics. `uncommitted`: instants whose log blocks were left out
    because they had not completed. `merged`: instants of the merged writes. `output`: the options that the file was
    written with. Each of the last four is None if unknown.
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

    def to_json(self) -> bytes:
        """As stored."""
        ledger, ranges, output = self.ledger.to_json(), ranges_to_json(self.ranges), output_to_json(self.output)
        plain = asdict(replace(self, ranges=None, output=None))
        return dump({**plain, "ledger": ledger, "ranges": ranges, "output": output})

    @staticmethod
    def from_json(data: bytes, where: str) -> SliceDone:
        """Inverse of `to_json`; unknown fields are ignored. MalformedError names the file."""
        fields = Fields.parse(data, where, "unreadable record of a compacted file slice", _SLICE_TODO)
        known = fields.values  # earlier releases do not write `ranges`, `uncommitted`, `merged` and `output`
        try:
            ledger, ranges = Ledger.from_json(known["ledger"]), ranges_from_json(known.get("ranges"))
        except (KeyError, TypeError, ValueError, AttributeError, MalformedError) as error:
            raise fields.malformed("a ledger and column ranges", f"{type(error).__name__}: {error}") from error
        return SliceDone(
            position=fields.whole("position"),
            partition=fields.text("partition"),
            file_id=fields.text("file_id"),
            base_instant=fields.text_or_none("base_instant"),
            base_file=fields.text_or_none("base_file"),
            inputs=fields.texts("inputs"),
            fingerprint=fields.text("fingerprint"),
            staged=fields.text_or_none("staged"),
            final=fields.text_or_none("final"),
            size=fields.whole("size"),
            ledger=ledger,
            log_bytes=fields.whole("log_bytes"),
            log_files=fields.whole("log_files"),
            log_blocks=fields.whole("log_blocks"),
            corrupt_blocks=fields.whole("corrupt_blocks"),
            rolled_back_blocks=fields.whole("rolled_back_blocks"),
            skipped=fields.counts("skipped"),
            seconds=fields.number("seconds"),
            ranges=ranges,
            uncommitted=fields.texts("uncommitted") if known.get("uncommitted") is not None else None,
            merged=fields.texts("merged") if known.get("merged") is not None else None,
            output=output_from_json(known.get("output")),
        )


def done_slices(storage: Storage, instant: str, attempt: int) -> dict[int, SliceDone]:
    """The finished file slices of one attempt, by position; one with an unreadable record counts as unfinished."""
    folder, done = attempt_folder(instant, attempt), dict[int, SliceDone]()
    for entry in storage.list(folder):
        if entry.name.endswith(OK) and not entry.is_folder:
            path = f"{folder}/{entry.name}"
            try:
                found = SliceDone.from_json(storage.read(path), path)
            except MalformedError as error:
                _log.warning("slice_record_unreadable", instant=instant, attempt=attempt, error=str(error))
            else:
                done[found.position] = found
    return done
