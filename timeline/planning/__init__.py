"""What to compact, when, and how much of it: triggers, strategies, limits, and the plan that Hudi can read.

The way in is `schedule.schedule_compaction`; `planner` decides, as a pure function of what `survey` shows it.

May import: clock, format, ground, instants, locks, log, merge, metadata_table, parquet, read, storage, table, view.
"""
