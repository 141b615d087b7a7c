"""The file-system view: which files make a file slice, and which slices a reader merges.

`view` holds the rules as pure functions, the pending-compaction rule among them; `view_loader` loads what they
need.

May import: format, ground, instants, storage.
"""
