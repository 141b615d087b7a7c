"""Arrow, Avro and Parquet without Hudi: rows, their hashes and order, schemas, encoded records and files."""
