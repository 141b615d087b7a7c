"""Delta commits from Spark or Arrow: keys, indexes, transactions; scheduling and compaction after a write."""

if __name__ != "phantombase.writer_hooks":
    # In a checkout the folder is found under both names: each would have its own errors, and its own locks.
    raise ImportError("import phantombase.writer_hooks, not writer_hooks", name=__name__)
