"""The records that attempts at a compaction leave in storage: paths, fates, decisions and reserved times.

The way in is `fate`: `Go` is the decision; `slice_done` records one staged file.

May import: ground; all of timeline.
"""
