"""Cancels a requested compaction, or removes an unreadable plan or record of one."""
