"""The services of a table in their order, as the daemon and writers run them: its metadata table, clean, archive.

The way in is `serve.serve_table`.

May import: archiving, cleaning; all of timeline.
"""
