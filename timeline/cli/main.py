"""The `timeline` command line: its commands, and where they are.

This module imports nothing of them: a command is loaded when it is called."""

from __future__ import annotations

from pathlib import Path

from ..terminal.boundary import own_process, run
from ..terminal.command_line import lazy_app, lazy_commands

COMMANDS = lazy_commands(
    "phantombase.timeline.cli",
    {
        "Inspection and reads": ("show.show", "show.slices", "show.plan", "read.read"),
        "Check and repair": ("check.audit", "check.validate", "check.repair_times"),
        "Service": ("serve.serve",),
        "Readers": ("read.pins",),
    },
)

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
    own_process()
    run(app)


if __name__ == "__main__":
    main()
