"""Archives the instants of a table: looks at it, takes the lock, and moves what may go.

The way in is `archive.archive_table`.

May import: attempt; all of timeline.
"""
