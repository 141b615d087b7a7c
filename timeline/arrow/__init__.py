"""Arrow columns and rows without Hudi: hashes, key lookup, ordering values, types, spill files. All vectorised.

A helper belongs here if it works on arrays and knows nothing of log files or instants.

May import: ground.
"""
