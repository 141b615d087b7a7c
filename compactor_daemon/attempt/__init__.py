"""One pending compaction or clustering from its plan to its published files: open, stage, decide, publish, retire."""
