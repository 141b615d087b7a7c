"""One pending compaction from its claim to its published base files: open, stage, decide, publish, retire.

The way in is `compact_instant`.

May import: decisions, execution, ground, records, state; all of timeline.
"""
