"""The records that attempts at a compaction leave in storage: paths, fates, decisions and reserved times."""
