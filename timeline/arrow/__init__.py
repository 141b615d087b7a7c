"""Arrow columns and rows without Hudi: hashes, key lookup, ordering values, types, spill files. All vectorised.

A helper that works on arrays and knows nothing of log files or instants belongs here.

May import: ground.
"""
