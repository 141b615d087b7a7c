"""The `timeline` command: looks at a table, reads it and checks it.

`main` has the commands, `report` computes what they say, `render` draws it.

May import: audit, clock, format, ground, instants, locks, metadata_table, read, recovery, storage, table, terminal,
    view.
"""
