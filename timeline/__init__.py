"""The table format of Apache Hudi MERGE_ON_READ tables, and all code that reads, plans and checks such tables."""

if __name__ != "phantombase.timeline":
    # In a checkout the folder is found under both names: each would have its own errors, and its own locks.
    raise ImportError("import phantombase.timeline, not timeline", name=__name__)
