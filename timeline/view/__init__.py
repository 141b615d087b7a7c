"""The file-system view: which files make a file slice, and which slices a reader merges.

`view` holds the rules as pure functions, among them the pending-compaction rule; `view_loader` loads their
input.

May import: avro, format, ground, instants, log, look, parquet, storage.
"""
