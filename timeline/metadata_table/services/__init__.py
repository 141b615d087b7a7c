"""The metadata table's own services: when its compaction is due, what it merges, and its execution.

The way in is `serve.serve_metadata`.

May import: avro, format, ground, instants, locks, log, metadata_table, metadata_table/records, table, view.
"""
