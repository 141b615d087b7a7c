"""One pending compaction from its claim to its published base files: open, stage, decide, publish, retire."""
