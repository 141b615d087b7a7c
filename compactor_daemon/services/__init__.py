"""The services of a table in their order, as daemon and writers run them: its metadata table, stitch, clean, archive.

The way in is `serve.serve_table`.

May import: archiving, cleaning, stitching; all of timeline.
"""
