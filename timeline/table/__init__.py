"""A table on storage: the way in to its configuration, instants, view and schema.

The way in is `table.Table`.

May import: arrow, avro, clock, format, ground, instants, locks, look, storage, storage/access, view.
"""
