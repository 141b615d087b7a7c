"""Verifies a completed compaction again: the files that still exist against its ledger and the audit log.

The way in is `audit`.

May import: avro, format, ground, instants, log, merge, parquet, read, storage, table, view.
"""
