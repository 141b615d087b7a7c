"""Hudi's metadata table: read, compared with the table, and updated when phantombase changes the table."""
