# ruff: noqa: E501
"""The `compactor-daemon` command line: its commands, and where they are.

This module imports nothing of them: a command is loaded when it is called. A test compares the texts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from phantombase.timeline.terminal.boundary import run, without_pandas
from phantombase.timeline.terminal.command_line import lazy_app, lazy_command

_of = partial(lazy_command, "phantombase.compactor_daemon.cli")

COMMANDS = {
    "compact": _of("compact", "compact", "Compactions", "Execute the pending compactions of a table."),
    "schedule": _of("schedule", "schedule", "Compactions", "Request a compaction of every file group that has log files, or of as many as the limits allow."),
    "run": _of("run", "run_daemon", "Compactions", "Serve tables: execute their compactions as they are requested, until stopped."),
    "unschedule": _of("schedule", "unschedule_command", "Compactions", "Cancel a requested compaction; its file groups are then free for the next plan."),
    "release": _of("undo", "release", "Compactions", "Remove the recorded failures of a pending compaction, so that a parked one is tried again."),
    "status": _of("status", "status", "Inspection", "Show a table's pending compactions: which process works on each, its progress, and why the others wait."),
    "claims": _of("status", "claims", "Inspection", "Show which process works on which compaction, since when, and its progress."),
    "config": _of("config", "app", "Inspection", "Show the settings of a command, and where each value comes from."),
    "demo": _of("compact", "demo", "Inspection", "Compact a small table that real Apache Hudi 1.2.0 wrote."),
    "clean": _of("table_services", "clean_command", "Table services", "Remove old file slices and replaced file groups, which only reads of the past still need."),
    "archive": _of("table_services", "archive_command", "Table services", "Move the oldest completed instants from the active timeline into the archive, as Hudi does after commits."),
    "cluster": _of("table_services", "cluster_command", "Table services", "Cluster small base files: join those that writers appended one by one, so that readers open fewer files."),
    "metadata": _of("table_services", "metadata_command", "Table services", "Compact, clean and archive Hudi's metadata table, if it has one and that is due."),
    "orphans": _of("orphans", "orphans_command", "Table services", "Show the files that no record of a table names, and remove them with --remove."),
    "savepoint": _of("undo", "savepoint_app", "Savepoints and undo", "Keep the state of a table at a write: cleaners leave its files, and archivers stop before it, until it is deleted. Hudi and phantombase respect each other's savepoints."),
    "rollback": _of("undo", "rollback_command", "Savepoints and undo", "Roll back the newest completed write. For more than one write, and for compactions: `restore`."),
    "restore": _of("undo", "restore_command", "Savepoints and undo", "Restore the state at a write: everything written after it is undone, the newest write first."),
    "repair": _of("undo", "repair_command", "Savepoints and undo", "Rewrite the unreadable completed file of a compaction: all reads and writes fail until then."),
}  # fmt: skip

app = lazy_app(
    COMMANDS,
    Path(__file__).with_name("help.json"),
    name="compactor-daemon",
    help="Compacts Apache Hudi MERGE_ON_READ tables without a Hudi JVM.\n\n"
    "A compaction is first *requested* (schedule): a plan on the table's timeline names the file groups and their "
    "log files. Then it is *executed* (compact): base file and logs of each file group become a new base file.",
)


def main() -> None:
    """Console script."""
    without_pandas()
    run(app)


if __name__ == "__main__":
    main()
