"""The state of a compaction: does its decision stand, who completed it, does a Hudi compactor work on it?

The way in is `standing`: every step that rests on a decision asks it.

May import: ground, records; all of timeline.
"""
