"""Runs the pending compactions of one table: once, in a thread beside an ingest job, or split into tasks.

The ways in are `pending`, `background` and `split`.

May import: attempt, claims, execution, ground, records; all of timeline.
"""
