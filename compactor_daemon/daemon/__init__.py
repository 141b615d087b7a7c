"""The daemon: chooses the next table and instant, executes it in threads, and serves metrics and health.

`dispatch` decides as a pure function, `loop` carries it out, `assemble` builds a daemon.

May import: attempt, claims, execution, ground, services, state, zookeeper; all of timeline.
"""
