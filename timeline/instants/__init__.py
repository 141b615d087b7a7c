"""The instants of a table: the timeline as a value, how it is loaded, its clock, and when a compaction is due."""
