"""Operations of compaction plans: what one reads and writes, and how many of them are held.

`operation` makes one of a file slice; `packed` holds those of a plan without limits as bytes.

May import: avro, format, ground, view.
"""
