"""Decides which small base files of a table are stitched: joined into larger ones."""
