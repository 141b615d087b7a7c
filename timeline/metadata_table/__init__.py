"""Hudi's metadata table: reading it, comparing it with the table, and keeping it true through our own changes.

The ways in are `read`, `validate` and `update`.

May import: avro, format, ground, instants, locks, log, metadata_table/column_stats, metadata_table/records, read,
    storage, table, traces, view.
"""
