"""The daemon: chooses the next table and instant, executes it in threads, and serves metrics and health.

`dispatch` decides as a pure function, `loop` carries it out, `at_work` is an instant in a thread, `assemble` builds
a daemon; `discovery` finds the tables of a lake.

May import: attempt, claims, execution, ground, lake, services, state, zookeeper; all of timeline.
"""
