"""Removes a requested compaction, or an unreadable plan or record of one, from the table."""
