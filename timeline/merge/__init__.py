"""The merge of one file slice: which entry of a key wins, in memory or spilled, and the ledger that proves the merge.

The way in is `slice_merge`; `rule` and `winner` hold Hudi's merge modes, `ledger` the equations that must hold.

May import: arrow, avro, format, ground, log, payloads.
"""
