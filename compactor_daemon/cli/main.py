"""The `compactor-daemon` command line: its commands, and where they are.

This module imports nothing of them: a command is loaded when it is called."""

from __future__ import annotations

from pathlib import Path

from phantombase.timeline.terminal.boundary import run, without_pandas
from phantombase.timeline.terminal.command_line import lazy_app, lazy_commands

COMMANDS = lazy_commands(
    "phantombase.compactor_daemon.cli",
    {
        "Compactions": {
            "compact": "compact.compact",
            "schedule": "schedule.schedule",
            "run": "run.run_daemon",
            "unschedule": "schedule.unschedule_command",
            "release": "undo.release",
        },
        "Inspection": {
            "status": "status.status",
            "claims": "status.claims",
            "config": "config.app",
            "demo": "compact.demo",
        },
        "Table services": {
            "clean": "table_services.clean_command",
            "archive": "table_services.archive_command",
            "cluster": "table_services.cluster_command",
            "metadata": "table_services.metadata_command",
            "orphans": "table_services.orphans_command",
        },
        "Savepoints and undo": {
            "savepoint": "undo.savepoint_app",
            "rollback": "undo.rollback_command",
            "restore": "undo.restore_command",
            "repair": "undo.repair_command",
        },
    },
)

app = lazy_app(
    COMMANDS,
    Path(__file__).with_name("help.json"),
    name="compactor-daemon",
    help="Compacts Apache Hudi MERGE_ON_READ tables without a Hudi JVM.\n\n"
    "A compaction is first *requested* (schedule): a plan on the table's timeline names the file groups and their "
    "log files. Then it is *executed* (compact): base file and logs of each file group become a new base file.",
)


def main() -> None:
    without_pandas()
    run(app)


if __name__ == "__main__":
    main()
