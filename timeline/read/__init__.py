"""Reads of a table to Arrow or Parquet: snapshot, as of an instant, incremental; and the pins that hold states."""
