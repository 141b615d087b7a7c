"""Delta commits from Spark or Arrow: keys, indexes, transactions; scheduling and compaction beside ingest."""
