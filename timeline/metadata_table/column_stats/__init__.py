"""Statistics of columns by file: measured from new files, and encoded as records of the index partitions."""
