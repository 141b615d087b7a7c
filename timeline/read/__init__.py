"""Reads of a table to Arrow or Parquet: snapshot, read-optimized, as of an instant, and incremental."""
