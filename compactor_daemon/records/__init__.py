"""The records that attempts at a compaction leave in storage: paths, outcomes, decisions and reserved times."""
