"""What a table's timeline is, as plain data: for `timeline show` and for the service's pages.

`overview.overview` is the way in.

May import: format, ground, instants, locks, metadata_table, storage, table, terminal.
"""
