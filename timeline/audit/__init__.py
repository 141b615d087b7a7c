"""Verifies completed compactions and stitchings again: the files that still exist against its ledger and the audit log.

The ways in are `audit` and `stitchings`.

May import: avro, format, ground, instants, log, merge, parquet, read, storage, table, view.
"""
