"""Makes a table: what it is to be, and the folders and hoodie.properties Hudi would give it.

May import: keys; all of timeline.
"""
