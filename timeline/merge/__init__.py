"""The merge of one file slice: which entry of a key wins, in memory or spilled, and the ledger that proves it.

The way in is `slice_merge`; `rule` and `winner` hold Hudi's merge modes, `ledger` what must add up.

May import: arrow, avro, format, ground, log.
"""
