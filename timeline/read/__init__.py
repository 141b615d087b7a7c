"""Reads of a table to Arrow or Parquet: snapshot, read-optimized, and as of an instant.

The way in is `table_read.read_table`; `slice_stream` reads one file slice.

May import: arrow, avro, format, ground, instants, log, merge, parquet, storage, table, view.
"""
