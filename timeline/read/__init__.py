"""Reads of a table to Arrow or Parquet: snapshot, read-optimized, as of an instant, and incremental.

The way in is `table_read.read_table`; `slice_stream` reads one file slice, `incremental` plans a window.

May import: arrow, avro, format, ground, instants, log, merge, parquet, storage, table, view.
"""
