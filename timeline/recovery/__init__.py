"""Repairs what dead writers and copied tables leave: rollbacks of pending writes, modification times of version 6.

The ways in are `dead_writers` and `modification_times`.

May import: clock, format, ground, locks, metadata_table, metadata_table/records, storage, table, traces, view.
"""
