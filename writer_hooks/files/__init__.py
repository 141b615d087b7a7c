"""The files of a write: which file takes which rows, and how they are staged.

May import: engine; all of timeline.
"""
