"""The `compactor-daemon` command.

`main` defines the commands; `option_flags` makes flags of options.

May import: archiving, attempt, claims, cleaning, daemon, ground, removal, restoring, run, services, state, status,
zookeeper; all of timeline.
"""
