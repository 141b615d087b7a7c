"""`timeline audit` and `timeline validate`: is what lies on storage what it should be?"""

from __future__ import annotations

from typing import Annotated

import typer

from timeline import render
from timeline.audit import audit as audit_instant
from timeline.audit import audited_instants
from timeline.cli_options import Json, TablePath
from timeline.console import EXIT_FAILED, configure_logging, emit, progress
from timeline.metadata_table.read import commits_to_compact
from timeline.metadata_table.validate import validate as validate_table
from timeline.report import audit_report, validation_report
from timeline.table import Table, consistent


def audit(
    path: TablePath,
    instant: Annotated[
        str | None, typer.Argument(metavar="INSTANT", help="Only this compaction; default: all by phantombase.")
    ] = None,
    json: Json = False,
) -> None:
    """Prove compactions again from the files that still exist. Exit code 1 when something is wrong.

    Every compaction by phantombase leaves a [b]ledger[/b]: what went into each file group and what came out, as
    counts and as sums of row hashes. The audit checks the ledger itself, counts and hashes the rows of the base file
    it speaks of, and, while the inputs are still there, runs the merge again. It looks for log files that were left
    out and for second base files.

    [b]proved[/b]: all of that holds. [b]output proved[/b]: a cleaner has taken inputs. [b]cleaned[/b]: the base file is
    gone too, a newer one took its place. [b]wrong[/b]: something disagrees, and it is said what.

    [b]Examples[/b]
      timeline audit /data/trips
      timeline audit /data/trips 20261121091052663
      timeline audit /data/trips --json | jq '.instants[] | select(.good | not)'
    """
    configure_logging(json=json, verbose=False)
    table = Table.open(path)
    instants = audited_instants(table, instant)
    with progress(len(instants), "auditing") as bar:
        found = []
        for one in instants:
            found.append(audit_instant(table, one))
            bar.advance(1)
    emit(audit_report(found, table.storage.base_path), json, render.audit)
    if not all(f.good for f in found):
        raise typer.Exit(EXIT_FAILED)


def validate(path: TablePath, json: Json = False) -> None:
    """Compare the metadata table with what lies on storage. Exit code 1 when they differ.

    Hudi's [b]metadata table[/b] (.hoodie/metadata) is an index of a table's files: readers which use it see no file
    that it does not name. Compared are partitions, and names and sizes of the files of completed writes; what a
    pending write has left so far does not count. While a clean or rollback pends, files may be gone that are still
    named: run it again when that is done.

    [b]Examples[/b]
      timeline validate /data/trips
      timeline validate /data/trips --json | jq '.differences[]'
    """
    table = Table.open(path)
    found = consistent(lambda: validate_table(table.reload()))
    emit(validation_report(found, commits_to_compact(table), table.storage.base_path), json, render.validate)
    if found.differences:
        raise typer.Exit(EXIT_FAILED)
