"""Runs the tasks of an attempt, on Spark or in this process: one file slice to one staged file.

The ways in are `runners` and `slice_task`.

May import: ground, records; all of timeline.
"""
