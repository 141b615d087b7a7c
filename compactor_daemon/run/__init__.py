"""Runs the pending compactions of one table: once, or in a thread beside an ingest job.

The ways in are `pending` and `background`.

May import: attempt, claims, execution, ground; all of timeline.
"""
