"""The daemon: which table and instant next, its threads, its metrics and health.

`dispatch` decides as a pure function, `loop` does it, `assemble` puts a daemon together.

May import: attempt, claims, execution, ground, state, zookeeper; all of timeline.
"""
