"""Undoes writes (those of dead writers, and for restores completed ones) and repairs modification times of version 6.

The ways in are `dead_writers`, `undo` and `modification_times`.

May import: clock, format, ground, instants, locks, metadata_table, metadata_table/records, storage, table, traces,
view.
"""
