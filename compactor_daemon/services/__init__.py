"""The services of a table in the order of daemon and writers: its metadata table, cluster, clean, archive."""
