"""Runs the tasks of an attempt, on Spark or in this process: each merges one file slice into one staged file.

The ways in are `open_runner` and `slice_task`; `executor_choice` says which executor runs a plan, and why.

May import: ground, records; all of timeline.
"""
