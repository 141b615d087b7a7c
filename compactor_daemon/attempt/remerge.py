"""Merges one file of a decided compaction again, when the published file and its staged copy are both lost.

Its inputs are kept until a clean. The commit states the size and the ledger of each file, so the new file must have the
same. The decision names the options that the file was written with; the same rows and the same options give the same
file. Another release of a library may give another file: then the instant stays as it is, with an error.
"""

from __future__ import annotations

from dataclasses import replace

from phantombase.timeline.audit.group_ledger import LEDGER, decode_ledgers
from phantombase.timeline.errors import StorageError
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.table.evolved_schema import LATEST_SCHEMA
from phantombase.timeline.table.table import Table

from ..execution.slice_task import compact_slice
from ..records.fate import Go, Placement
from .attempt import single_task

_TODO = "Run again with the release that decided, and the libraries it had."
_TODO_UNKNOWN = (
    "The decision does not name its options, so the defaults were used. Run again with the release that decided, and "
    "the codec, bloom, row group and memory options it had."
)


def merge_again(table: Table, go: Go, placement: Placement) -> str:
    """The path of a new staged file for one placement of a decision.

    MissingFileError: an input is gone too. StorageError: the new file is not the decided one.
    """
    plan, output = table.compaction_plan(go.instant), placement.output or OutputOptions()
    name = parse_data_file(placement.final.rpartition("/")[2])
    assert name is not None
    position, attempt = (int(part) for part in str(name.token).split("-")[:2])
    view = table.load_plan_view([plan.only(position)], pending=go.instant)
    metadata = decode_commit(go.content, go.completed_path).extra_metadata
    schema = table.schema_written(metadata["schema"], view.timeline, go.instant, evolved=metadata.get(LATEST_SCHEMA))
    task = single_task(table, view, plan, schema, output, instant=go.instant, attempt=attempt, position=position)
    if task.log is not None and isinstance(name, LogFileName):  # later logs may have taken the next versions
        task = replace(task, part=replace(task.part, log=replace(task.log, version=name.version)))
    storage = table.storage
    storage.delete(task.record_path)  # it names the lost file
    done = compact_slice(storage, task)
    ledgers = {group.key: group.ledger for group in decode_ledgers(metadata[LEDGER], go.completed_path)}
    same = (done.final, done.size, done.ledger) == (placement.final, placement.size, ledgers[task.slice.key])
    if done.staged is None or not same:
        if done.staged is not None:
            storage.delete(done.staged)
        raise StorageError(
            "a published base file is lost, and merging its inputs again gave another file than was decided",
            path=placement.final,
            instant=go.instant,
            expected=f"{placement.size} bytes and the ledger of the commit",
            found=f"{done.size} bytes",
            todo=f"{_TODO if placement.output is not None else _TODO_UNKNOWN} "
            "Until then nothing of the compaction is removed.",
        )
    return done.staged
