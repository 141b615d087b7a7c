"""Removes a requested compaction, or an unreadable plan or record of one, from the table.

The way in is `unschedule`.

May import: attempt, decisions, ground, records; all of timeline.
"""
