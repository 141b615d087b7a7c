"""Delta commits from Spark or Arrow: keys, indexes, transactions; scheduling and compaction after a write."""
