"""Merges one file slice: which entry of a key wins, in memory or spilled, and the ledger that proves it."""
