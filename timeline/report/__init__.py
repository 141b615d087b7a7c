"""What a table's timeline is, as plain data: for `timeline show` and for the service's pages.

`overview.overview` is the way in; `next_plan`: how far each trigger is.

May import: format, ground, instants, locks, metadata_table, planning, storage, table, terminal.
"""
