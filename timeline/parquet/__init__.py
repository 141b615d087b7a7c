"""Parquet files: reading them in batches of bounded size, and writing base files with the footer Hudi wants.

The ways in are `read` and `base_file`; `output_options` holds what a user may choose.

May import: arrow, avro, ground.
"""
