"""Arrow columns and rows without Hudi: hashes, key lookup, ordering values, types, spill files. All vectorised."""
