"""Parquet files: reads them in batches of bounded size, and writes base files with the footer that Hudi needs.

The ways in are `read` and `base_file`; `output_options` holds what a user may choose.

May import: arrow, avro, filter, ground.
"""
