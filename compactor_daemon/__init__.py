"""Executes pending compactions: attempts, file slices on Spark, publishing, the daemon and its commands."""

if __name__ != "phantombase.compactor_daemon":
    # In a checkout the folder is found under both names: each would have its own errors, and its own locks.
    raise ImportError("import phantombase.compactor_daemon, not compactor_daemon", name=__name__)
