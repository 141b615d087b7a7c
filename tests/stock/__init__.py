"""Stock tables: made by real Hudi on Spark with its own defaults, then read, compacted and written on by both.

`cases` says how each table is made, `verdict` walks it through, `record` keeps what was seen, `page` shows it.
"""
