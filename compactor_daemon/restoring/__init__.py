"""Takes completed writes back: the newest one (`rollback`), or all after an instant (`restore`).

The ways in are `restore.restore_table` and `rollback.roll_back_newest`.

May import: all of timeline.
"""
