"""What became of a compaction: does its decision stand, is it completed and by whom, is a compactor of Hudi at it?

The way in is `standing`: every step that rests on a decision asks it.

May import: ground, records; all of timeline.
"""
