"""The services of a table, each in one line: its metadata table, cluster, clean, orphan files, archive."""
