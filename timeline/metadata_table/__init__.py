"""Hudi's metadata table: read, compared with the table, and kept correct when phantombase changes the table."""
