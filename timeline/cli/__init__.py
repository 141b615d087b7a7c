"""The `timeline` command: shows a table, reads it and checks it.

`main` names the commands, `show` and `check` hold them, `report` computes their output, `render` draws it.

May import: audit, avro, clock, format, ground, instants, locks, metadata_table, parquet, pins, read, recovery, service,
storage, storage/access, table, terminal, view, windows.
"""
