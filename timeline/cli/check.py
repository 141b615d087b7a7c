"""`timeline audit`, `validate` and `repair-times`: compare what is on storage with what should be there."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from ..audit.clusterings import audits
from ..audit.validate import Retimed, all_files, find_mistimed, validated
from ..audit.validate import repair_times as set_times
from ..instants.clock_check import ClockOptions
from ..storage.storage_options import parse_pairs
from ..table.table import Table, from_one_snapshot
from ..terminal.command import CommandResult, StorageOption, command
from ..terminal.console import progress
from . import render
from .render import CLOCK, TablePath, Timezone


@command
def audit(
    path: TablePath,
    instant: Annotated[
        str | None, typer.Argument(metavar="[INSTANT]", help="Only this one; default: all by phantombase.")
    ] = None,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Verify completed compactions again from the files that still exist. Exit code 1 when something is wrong.

    Every compaction by phantombase leaves a [b]ledger[/b]: what went into each file group and what came out, as
    counts and as sums of row hashes. The audit checks the ledger itself, counts and hashes the rows of the base file
    that it describes, and, while the inputs still exist, runs the merge again. It finds log files that were left
    out and for second base files. Clusterings are checked in the same way, each file that they wrote by its own hash.

    [b]proved[/b]: all checks passed. [b]output proved[/b]: a cleaner has removed inputs. [b]cleaned[/b]: the base file
    was removed too, since a newer one replaced it. [b]undone[/b]: the compaction was rolled back or restored away, with
    its base file. [b]wrong[/b]: something disagrees; the output says what.

    [b]Examples[/b]
      timeline audit /data/trips
      timeline audit /data/trips 20261121091052663
      timeline audit /data/trips --json | jq '.instants[] | select(.good | not)'"""
    table = Table.open(path, parse_pairs(storage_option))
    asked = audits(table, instant)
    with progress(len(asked), "auditing") as bar:
        found = []
        for one, verify in asked.items():
            found.append(verify(table, one))
            bar.advance(1)
    good = all(a.good for a in found)
    rows = [
        {
            "instant": a.instant,
            "good": a.good,
            "file_groups": len(a.groups),
            "rows": sum(g.rows for g in a.groups),
            "verdicts": dict(Counter(g.verdict.value for g in a.groups)),
            "problems": [*a.problems, *(f"{g.file_id}: {p}" for g in a.groups for p in g.problems)],
            "leftovers": list(a.leftovers),
        }
        for a in found
    ]
    data = {"table": table.storage.base_path, "good": good, "instants": rows}
    return CommandResult(data, render.audit, failed=not good)


@command
def validate(
    path: TablePath, timezone: Timezone = CLOCK.timezone, storage_option: StorageOption = None
) -> CommandResult:
    """Compare completed writes, the metadata table, and the times of version 6 with what is on storage.

    Exit code 1 when they differ. Files that completed writes name, active and archived ones, must be there, with the
    bytes that they name; files that are passed over, as those of another attempt, are shown. So are files that no write
    names and whose rows count all the same, since what made them was archived, or rolled back and passed by archiving.
    This reads the complete archive.

    Hudi's [b]metadata table[/b] (.hoodie/metadata) is an index of a table's files: readers that use it do not see a
    file that it does not name. This compares partitions, and names and sizes of the files of completed writes; files
    of pending writes are ignored. While a clean or rollback is pending, it may still name files that are already
    removed: run the command again when that action is completed. A [b]record index[/b] without all its files and
    instants lacks entries of rows, which Hudi's writers would double. Its entries are not read.

    On version 6 Hudi 1.x uses [b]modification times[/b]: the time of a completed file decides to which slice log files
    belong. This lists the instants whose times give a wrong slice, as in a table copied without its times;
    `timeline repair-times` sets them back.

    [b]Examples[/b]
      timeline validate /data/trips
      timeline validate /data/trips --json | jq '.differences[]'"""
    table = Table.open(path, parse_pairs(storage_option)).with_clock(ClockOptions(timezone=timezone))
    found = validated(table)
    data = {
        "table": table.storage.base_path,
        "good": found.good,
        "partitions": found.metadata.partitions,
        "files": found.metadata.files,
        "metadata_commits_since_compaction": found.metadata_commits,
        "differences": [
            {
                "partition": d.partition,
                "file": d.name,
                "what": d.what,
                "storage_bytes": None if d.name is None else d.storage_bytes,
                "metadata_bytes": None if d.name is None else d.metadata_bytes,
            }
            for d in found.metadata.differences
        ],
        "damaged_indexes": dict(found.damaged_indexes),
        "record_index": found.record_index or None,
        "mistimed": [
            {"instant": m.instant, "file": m.path, "modified": m.modified, "why": m.why} for m in found.mistimed
        ],
        "lost": [
            {"file": f.path, "instant": f.instant, "expected_bytes": f.expected, "found_bytes": f.found}
            for f in found.lost
        ],
        "unreadable_commits": list(found.unreadable_commits),
        "strays": list(found.strays),
        "unnamed": list(found.unnamed),
    }
    return CommandResult(data, render.validate, failed=not found.good)


@command
def repair_times(
    path: TablePath,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show what would be set.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Set every file of the timeline, not only those that `validate` lists.")
    ] = False,
    timezone: Timezone = CLOCK.timezone,
    storage_option: StorageOption = None,
) -> CommandResult:
    """Set the modification times of timeline files back to the times in their names.

    For tables copied without their files' times (cp -r, a restore, a download). On version 6 Hudi 1.x assigns log files
    to slices by these times. On all versions a process compares them with the instants to check its time zone. Instants
    are in the writers' time zone: if that is not the zone of this machine, give it with --timezone.

    [b]Examples[/b]
      timeline repair-times /data/trips --dry-run
      timeline repair-times /data/trips --all --timezone America/New_York"""
    table = Table.open(path, parse_pairs(storage_option)).with_clock(ClockOptions(timezone=timezone))
    if every:
        chosen = all_files(table)
    else:
        wrong = from_one_snapshot(lambda: find_mistimed(table.snapshot(cached=False)))
        chosen = tuple(Retimed(path=m.path, time=m.instant) for m in wrong)
    if not dry_run:
        set_times(table, chosen)
    files = [{"file": one.path, "time": one.time} for one in chosen]
    return CommandResult({"table": table.storage.base_path, "dry_run": dry_run, "files": files}, render.repaired)
