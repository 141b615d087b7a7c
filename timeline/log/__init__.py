"""Log files: framing of blocks, their content to Arrow and back, and which blocks a reader counts.

The ways in are `block` (framing), `decode` and `encode` (content) and `visibility` (which blocks count).

May import: arrow, avro, ground, parquet.
"""
