"""Decides which small base files of a table are clustered: joined into larger ones."""
