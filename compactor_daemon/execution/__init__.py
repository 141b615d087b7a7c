"""Runs the tasks of an attempt, on Spark or in this process: each merges one file slice into one staged file.

The ways in are `runners` and `slice_task`.

May import: ground, records; all of timeline.
"""
