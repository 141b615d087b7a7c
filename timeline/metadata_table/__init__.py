"""Hudi's metadata table: reads it, compares it with the table, and keeps it correct when phantombase changes the table.

The ways in are `read`, `validate` and `update`.

May import: arrow, avro, format, ground, instants, locks, log, look, metadata_table/column_stats,
metadata_table/records, payloads, storage, table, traces, view.
"""
