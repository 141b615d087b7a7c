"""Savepoints: states of a table that no cleaner removes and no archiver passes, until they are deleted.

The way in is `savepoint`.

May import: clock, format, ground, instants, locks, table, view, windows.
"""
