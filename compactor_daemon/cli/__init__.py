"""The `compactor-daemon` command.

`main` names the commands and their modules; `option_flags` makes flags of options.

May import: attempt, claims, daemon, execution, ground, lake, removal, repair, restoring, run, services, serving,
state, status, stitching, zookeeper; all of timeline.
"""
