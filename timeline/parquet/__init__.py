"""Parquet files: reads them in batches of bounded size, and writes base files with the footer that Hudi needs."""
