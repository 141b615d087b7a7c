"""Delta commits from Spark or Arrow: keys, indexes, transactions; scheduling and compaction beside ingest.

The ground file `options` defines the options of a write.

May import: all of timeline; all of compactor_daemon.
"""
