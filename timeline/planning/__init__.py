"""What to compact, when, and how much at once: triggers, strategies, limits, and the plan in Hudi's form.

The way in is `schedule.schedule_compaction`; `planner` decides, as a pure function of what `survey` reads.

May import: arrow, clock, format, ground, instants, locks, log, merge, metadata_table, parquet, planning/operations,
read, storage, table, view.
"""
