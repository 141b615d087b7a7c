# ruff: noqa: E501
"""The `timeline` command line: its commands, and where they are.

This module imports nothing of them: a command is loaded when it is called. A test compares the texts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..terminal.boundary import run, without_pandas
from ..terminal.command_line import lazy_app, lazy_command

_of = partial(lazy_command, "phantombase.timeline.cli")

COMMANDS = {
    "show": _of("show", "show", "Inspection and reads", "What happened to a table, and what has been pending since when."),
    "slices": _of("show", "slices", "Inspection and reads", "The table's file slices: base file, log files, and the pending plan that contains them."),
    "plan": _of("show", "plan", "Inspection and reads", "What a compaction will merge, and how many executors are useful."),
    "read": _of("read", "read", "Inspection and reads", "Read a table: rows to the terminal, or all of them into one file."),
    "audit": _of("check", "audit", "Check and repair", "Verify completed compactions again from the files that still exist. Exit code 1 when something is wrong."),
    "validate": _of("check", "validate", "Check and repair", "Compare completed writes, the metadata table, and the times of version 6 with what is on storage."),
    "repair-times": _of("check", "repair_times", "Check and repair", "Set the modification times of timeline files back to the times in their names."),
    "serve": _of("serve", "serve", "Service", "Answer for tables over HTTP: Hudi writers use it as their remote file-system view."),
    "pins": _of("read", "pins", "Readers", "Which readers hold old states of a table, and until when."),
}  # fmt: skip

app = lazy_app(
    COMMANDS,
    Path(__file__).with_name("help.json"),
    name="timeline",
    help="""Show an Apache Hudi MERGE_ON_READ table and read it. Nothing but `repair-times` changes it;
`read --pin` and `pins --release` change what readers hold.

A table's [b]timeline[/b] is the list of actions on it. Each entry is an [b]instant[/b]: when it was
requested (digits, yyyyMMddHHmmssSSS), which action it is, and its state: requested, inflight or completed.

Data is stored in [b]file groups[/b], each with a file id. A [b]file slice[/b] is one version of a group: a base file
(Parquet) and the log files with later changes. A [b]compaction[/b] merges a slice's logs into a new base file.
Until it is completed, the slice that it will make is a [b]phantom[/b]: it may have logs already, but no base file.""",
)


def main() -> None:
    """The console script."""
    without_pandas()
    run(app)


if __name__ == "__main__":
    main()
