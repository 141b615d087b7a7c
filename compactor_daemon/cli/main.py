"""The `compactor-daemon` command line: its commands, and where they are.

This module imports nothing of them: a command is loaded when it is called."""

from __future__ import annotations

from pathlib import Path

from phantombase.timeline.terminal.boundary import own_process, run
from phantombase.timeline.terminal.command_line import lazy_app, lazy_commands

_WRITERS = "phantombase.writer_hooks.erase"
"""A command that writes lies above this package: it is named here, and loaded when it is called."""
_SERVICES = (
    "table_services.clean",
    "table_services.archive",
    "table_services.cluster",
    "maintain.metadata",
    "table_services.orphans",
)
COMMANDS = {
    **lazy_commands(
        "phantombase.compactor_daemon.cli",
        {
            "Compactions": (
                "compact.compact",
                "schedule.schedule",
                "run.run_command",
                "history.replay_command",
                "schedule.unschedule_command",
                "schedule.replan_command",
                "schedule.pause_command",
                "schedule.resume_command",
                "schedule.cancel_command",
                "undo.release",
            ),
            "Inspection": (
                "status.status",
                "status.check",
                "history.history_command",
                "status.claims",
                "config.config_app",
                "compact.demo",
            ),
            "Table services": (
                "maintain.maintain_command",
                *(f"{name}_command" for name in _SERVICES),
                "table_services.sync_command",
            ),
            "Savepoints and undo": (
                "undo.savepoint_app",
                "undo.rollback_command",
                "undo.restore_command",
                "undo.repair_command",
            ),
        },
    ),
    **lazy_commands(_WRITERS, {"Table services": ("command.erase_command", "command.partition_ttl_command")}),
}

app = lazy_app(
    COMMANDS,
    Path(__file__).with_name("help.json"),
    name="compactor-daemon",
    help="Compacts Apache Hudi MERGE_ON_READ tables without a Hudi JVM.\n\n"
    "A compaction is first *requested* (schedule): a plan on the table's timeline names the file groups and their "
    "log files. Then it is *executed* (compact): base file and logs of each file group become a new base file.",
)


def main() -> None:
    own_process()
    run(app)


if __name__ == "__main__":
    main()
