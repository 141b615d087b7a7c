"""Merges one file slice: its files, which entry of a key wins, in memory or spilled, and the rows as a stream."""
