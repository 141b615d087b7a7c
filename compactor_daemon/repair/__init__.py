"""Writes completed files of instants anew that Hudi left empty or torn.

The way in is `torn_compaction.write_anew`.

May import: attempt, execution; all of timeline.
"""
