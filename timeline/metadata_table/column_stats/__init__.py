"""Statistics of columns by file: measured from new files, and encoded as records of the index partitions.

May import: arrow, avro, filter, format, ground, log, metadata_table/records, parquet, storage, table.
"""
