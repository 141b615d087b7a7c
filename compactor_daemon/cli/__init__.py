"""The `compactor-daemon` command.

`main` has the commands; options become flags in `option_flags`.

May import: attempt, claims, daemon, ground, removal, run, state, status, zookeeper; all of timeline.
"""
