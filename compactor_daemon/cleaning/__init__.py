"""Executes cleans: removes the files that no reader needs any more.

The way in is `clean`.

May import: attempt; all of timeline.
"""
