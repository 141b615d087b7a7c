"""Reads of a table to Arrow or Parquet: snapshot, read-optimized, as of an instant, and incremental.

The ways in are `rows.Rows` and `table_read.read_table`; `slice_stream` reads one file slice, `changes` plans a change
feed. `pruning`, `data_skipping` and `where` say what a filter leaves out before anything is merged.

May import: avro, arrow, filter, format, ground, instants, log, merge, metadata_table,
metadata_table/column_stats, metadata_table/records, parquet, payloads, pins, storage, table, view, windows.
"""
