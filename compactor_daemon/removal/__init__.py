"""Takes a requested compaction, or what cannot be read of it, off the table.

The way in is `unschedule`.

May import: attempt, decisions, execution, ground, records; all of timeline.
"""
