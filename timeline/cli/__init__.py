"""The `timeline` command: shows a table, reads it and checks it.

`main` holds the commands, `report` computes their output, `render` draws it.

May import: audit, avro, clock, format, ground, instants, locks, metadata_table, parquet, pins, read, recovery,
storage, storage/access, table, terminal, view, windows.
"""
