"""The metadata table's own services, when each is due, and their execution: compactions, cleans and archiving.

The way in is `serve.serve_metadata`.

May import: archiving, avro, cleaning, clock, format, ground, instants, locks, log, metadata_table,
metadata_table/records, pins, storage, table, view.
"""
