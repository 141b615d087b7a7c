"""Decides which small base files of a table are stitched: joined into larger ones.

The way in is `choice`.

May import: format, ground, view.
"""
