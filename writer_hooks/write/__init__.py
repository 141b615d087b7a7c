"""One write from a DataFrame or Arrow table to its delta commit.

The way in is `writer.writer`.

May import: commit, engine, files, ground, index, keys, new_table, schema; all of timeline; all of compactor_daemon.
"""
