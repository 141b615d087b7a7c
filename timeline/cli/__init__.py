"""The `timeline` command: shows a table, reads it and checks it.

`main` names the commands, `show` and `check` hold them, `report` computes their output, `render` draws it.

May import: audit, avro, clock, dashboard, dashboard/actions, format, ground, instants, metadata_table, parquet, pins,
read, recovery, report, service, storage, storage/access, table, terminal, view, windows.
"""
